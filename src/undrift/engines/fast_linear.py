"""`nn.Linear` with the matrix products of `undrift.utils.products`, forwards and backwards.

The engine that trains one client at a time with the user's module puts it into its own copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from undrift.utils import products


class LinearFunction(torch.autograd.Function):
    """x Wᵀ + b on the last axis, and its gradients; frozen parameters get none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        wants_x, wants_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None)
        return products.shared_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        back = None if weight is None else products.shared_product(gradient, weight.t())
        of_weight = None
        if x is not None:
            of_weight = products.product_over_rows(rows, x.reshape(len(rows), -1))
        return back, of_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


class FastLinear(nn.Linear):
    """`nn.Linear` that multiplies large matrices with the faster library."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // max(1, x.shape[-1])
        pays = products.pays(rows, self.in_features, self.out_features, x)
        if pays and self.weight.dtype == x.dtype:
            found: Tensor = LinearFunction.apply(x, self.weight, self.bias)
            return found
        return super().forward(x)


def use_fast_linear(module: nn.Module) -> None:
    """Replace the linear layers of a module, in place; subclasses of `nn.Linear` stay."""
    for each in module.modules():
        if type(each) is nn.Linear and "forward" not in vars(each):
            each.__class__ = FastLinear
