"""Matrix products in single precision through oneDNN, where torch's own BLAS library is slow.

torch multiplies matrices with MKL, which leaves half of a processor unused if another maker than
Intel built it: it does not use AVX-512 there. oneDNN, with which torch computes convolutions, does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

LARGE_PRODUCT = 2_000_000
"""Multiplications from which a product is worth oneDNN's cost per call, about 12 microseconds."""


def pays(rows: int, inner: int, columns: int, like: Tensor) -> bool:
    """Whether oneDNN multiplies `[rows, inner]` by `[inner, columns]` faster than torch does."""
    large = rows * inner * columns >= LARGE_PRODUCT
    return large and like.dtype == torch.float32 and like.device.type == "cpu" and available()


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a bᵀ + bias for matrices for which `pays` is true: `[rows, inner]`, `[columns, inner]`."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b, bias, "none", [], "")
    return found


def products(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x_k w_kᵀ + bias_k for every client k: `[C, B, inner]`, `[C, columns, inner]`, `[C, columns]`.

    If clients share w and bias (expanded, with a stride of zero), this is one product for all.
    """
    clients, rows, inner = x.shape
    columns = w.shape[1]
    if clients > 1 and w.stride(0) == 0 and (bias is None or bias.stride(0) == 0):
        own = None if bias is None else bias[0]
        return shared_product(x, w[0], own)
    if not pays(rows, inner, columns, x):
        back = w.transpose(1, 2)
        return torch.bmm(x, back) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, back)
    none = [None] * clients
    each = zip(x.unbind(), w.unbind(), none if bias is None else bias.unbind(), strict=True)
    found = [product(*own) for own in each]
    return found[0][None] if clients == 1 else torch.stack(found)


def shared_product(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """x_k wᵀ + bias for a matrix that clients share, as one product for all of them."""
    joined = x.reshape(-1, x.shape[-1])
    rows, inner = joined.shape
    if pays(rows, inner, len(w), x):
        found = product(joined, w, bias)
    elif bias is None:
        found = joined @ w.t()
    else:
        found = torch.addmm(bias, joined, w.t())
    return found.view(*x.shape[:-1], len(w))


def product_over_rows(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b, for which oneDNN copies one of the two: the smaller one. `[rows, m]`, `[rows, n]`."""
    if not pays(a.shape[1], len(a), b.shape[1], a):
        return a.t() @ b
    return product(a.t(), b.t()) if a.shape[1] <= b.shape[1] else product(b.t(), a.t()).t()


def multiply(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Write a_k b_k of every client k to `out`, and return it: `[C, B, inner]`, `[C, inner, n]`."""
    if not pays(a.shape[1], a.shape[2], b.shape[2], a):
        return torch.bmm(a, b, out=out)
    for left, right, own in zip(a.unbind(), b.unbind(), out.unbind(), strict=True):
        own.copy_(product(left, right.t()))
    return out


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a_k b_k of every client k to `total`, `[C, B, n]`."""
    if not pays(a.shape[1], a.shape[2], b.shape[2], a):
        total.baddbmm_(a, b)
        return
    for own, left, right in zip(total.unbind(), a.unbind(), b.unbind(), strict=True):
        own.add_(product(left, right.t()))


class LinearByOneDNN(TorchFunctionMode):
    """While it is entered, this thread computes linear layers of any module with oneDNN.

    Only where `pays` is true; without gradients, which this product does not have; and neither in
    a block of `torch.autocast`, which chooses the precision, nor under `torch.func.vmap`.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is nn.functional.linear and not kwargs and self._applies(*args[:2]):
            return shared_product(*args)
        return function(*args, **(kwargs or {}))

    @staticmethod
    def _applies(x: Tensor, w: Tensor) -> bool:
        plain = type(x) is Tensor and type(w) in (Tensor, nn.Parameter)
        transformed = torch._C._functorch.maybe_current_level() is not None
        changed = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or transformed
        return plain and w.dim() == 2 and w.dtype == x.dtype and not changed


@cache
def available() -> bool:
    """Whether oneDNN is there, faster than MKL on this processor, and computes what it should."""
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    libraries = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    if not wide or not libraries or _maker() in (None, "GenuineIntel"):
        return False
    try:
        a, b = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)
        return torch.equal(product(a, b), a @ b.t())
    except (AttributeError, RuntimeError):  # not in this version of torch
        return False


def _maker() -> str | None:
    """The maker of the processor, as the kernel names it; None where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    return None if found is None else found.group(1)
