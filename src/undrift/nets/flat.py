"""A module whose trainable parameters are views into one flat vector.

Methods and engines work on that vector; the module is only used to compute outputs and gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from undrift.nets.modes import mark_eval_parts
from undrift.utils.errors import require


class FlatModule:
    """A copy of a module whose trainable parameters lie end to end in the vector `x`, `[P]`.

    Their gradients are views of the vector `gradient`, `[P]`. Frozen parameters and buffers are
    not part of `x`. Tied parameters are in it once.

    Parameters
    ----------
    module
        the user's model; it is copied, never changed
    device
        where the copy is placed
    personal
        names of parameters that come last in `x`, and of buffers: they rest with the clients
    """

    def __init__(self, module: nn.Module, device: torch.device, personal: Collection[str] = ()):
        self.module = deepcopy(module).to(device)
        mark_eval_parts(self.module)
        self.device = device
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        require(bool(named), "The model has no trainable parameters.")
        named.sort(key=lambda each: each[0] in personal)  # stable: shared ones keep their order
        dtypes = {p.dtype for _, p in named}
        require(
            len(dtypes) == 1,
            f"All trainable parameters must have the same dtype, but this model has "
            f"{', '.join(sorted(str(t) for t in dtypes))}.",
        )
        self.personal_names = frozenset(personal)
        self.shared = sum(p.numel() for n, p in named if n not in personal)
        """number of shared parameters, the first ones of `x`"""
        require(self.shared > 0, "All parameters are personal: at least one must be shared.")
        self.names = [n for n, _ in named]
        self.shapes = [p.shape for _, p in named]
        size = sum(p.numel() for _, p in named)
        self.x = torch.empty(size, dtype=dtypes.pop(), device=device)
        self.gradient = torch.zeros_like(self.x)
        first = 0
        for _, p in named:
            last = first + p.numel()
            self.x[first:last] = p.data.reshape(-1)
            p.data = self.x[first:last].view(p.shape)
            p.grad = self.gradient[first:last].view(p.shape)
            first = last

    def load(self, x: Tensor) -> None:
        """Set the trainable parameters to the vector `x`, `[P]`, or the first of them."""
        if x.data_ptr() != self.x.data_ptr():
            self.x[: len(x)].copy_(x)

    def buffers(self) -> dict[str, Tensor]:
        """Copies of all buffers by name."""
        return {name: value.clone() for name, value in self.module.named_buffers()}

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Set the buffers that are given; the others stay unchanged."""
        for name, value in self.module.named_buffers():
            if name in buffers:
                value.copy_(buffers[name])

    def filled(self, x: Tensor, buffers: Mapping[str, Tensor]) -> nn.Module:
        """A new module in evaluation mode with the given parameters and buffers."""
        self.load(x)
        self.load_buffers(buffers)
        # The memo gives deepcopy each parameter's copy. It would copy the whole vectors of which
        # parameters and gradients are views.
        own = {
            id(p): nn.Parameter(p.detach().clone(), p.requires_grad)
            for p in self.module.parameters()
        }
        return deepcopy(self.module, own).eval()
