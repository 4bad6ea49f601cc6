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
        self._trained = [p for _, p in named]
        self._gradient: Tensor | None = None
        for p, own in zip(self._trained, self._views(self.x), strict=True):
            own.copy_(p.data)
            p.data = own
            p.grad = None

    def _views(self, vector: Tensor) -> list[Tensor]:
        """The parts of a vector `[P]` that belong to the trained parameters, in their shapes."""
        parts = vector.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    @property
    def gradient(self) -> Tensor:
        """The vector `[P]` of which the parameters' gradients are views.

        It exists from its first use on: engines that compute gradients in their own memory do
        without it.
        """
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.x)
            for p, own in zip(self._trained, self._views(self._gradient), strict=True):
                p.grad = own
        return self._gradient

    def release_gradient(self) -> None:
        """Free the memory of the gradient until it is needed again."""
        self._gradient = None
        for p in self._trained:
            p.grad = None

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
