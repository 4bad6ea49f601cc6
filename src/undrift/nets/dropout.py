"""Dropout whose masks are a function of a key, not of torch's global generator.

A client therefore gets the same masks in every engine, whichever clients train beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undrift.nets.modes import stays_in_eval


class MaskGenerator:
    """Generates the dropout masks of one client from a key.

    On the CPU it uses NumPy's SFC64, which is ten times as fast as torch's generator; on other
    devices it uses a torch generator of that device.
    """

    def __init__(self, device: torch.device, key: int = 0):
        self._device = device
        self.seed(key)

    def seed(self, key: int) -> None:
        """Restart the sequence of masks with another key."""
        if self._device.type == "cpu":
            self._bits = np.random.SFC64(key)
        else:
            self._generator = torch.Generator(device=self._device)
            self._generator.manual_seed(key % 2**63)

    def state(self) -> Any:
        """The place in the sequence of masks, for `restore`."""
        return self._bits.state if self._device.type == "cpu" else self._generator.get_state()

    def restore(self, state: Any) -> None:
        """Go back to a place in the sequence of masks."""
        if self._device.type == "cpu":
            self._bits.state = state
        else:
            self._generator.set_state(state)

    def mask(self, shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
        """A mask of the given shape: 0 with probability p, else 1/(1 − p), in row-major order."""
        scale = 1 / (1 - p) if p < 1 else 0.0
        size = int(np.prod(shape))
        if self._device.type == "cpu":
            # Each 64-bit word gives two 32-bit numbers, hence half as many words, rounded up.
            words = self._bits.random_raw(-(-size // 2)).view(np.uint32)[:size]
            kept = words >= np.uint32(p * 2**32) if p < 1 else np.zeros(size, dtype=bool)
            return torch.from_numpy(kept).view(*shape).to(dtype).mul_(scale)
        found = torch.empty(*shape, dtype=dtype, device=self._device)
        return found.bernoulli_(1 - p, generator=self._generator).mul_(scale)


class KeyedDropout(nn.Module):
    """`nn.Dropout` with masks from a `MaskGenerator`.

    Masks are filled in row-major order of the shape. torch's own dropout fills them in memory
    order, and the memory order of a convolution's outputs depends on the layers before it, so
    that engines would get different masks.
    """

    def __init__(self, p: float, generator: MaskGenerator):
        super().__init__()
        self.p = p
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by a random mask in training mode; return the inputs in evaluation mode."""
        if not self.training or self.p == 0:
            return x
        return x * self.generator.mask(x.shape, self.p, x.dtype)


def use_keyed_dropout(module: nn.Module, generator: MaskGenerator) -> None:
    """Replace every `nn.Dropout` inside a module by a `KeyedDropout`, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            p = 0.0 if stays_in_eval(child) else child.p
            setattr(module, name, KeyedDropout(p, generator).train(child.training))
        else:
            use_keyed_dropout(child, generator)
