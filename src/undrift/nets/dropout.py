"""Dropout whose draws are keyed, so that a client draws the same beside whomever it trains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from undrift.nets.modes import rests


class Coins:
    """What dropout draws, as a function of a number.

    On a processor NumPy draws, ten times as fast as torch; elsewhere the device does.
    """

    def __init__(self, device: torch.device, number: int = 0):
        self._device = device
        self.seed(number)

    def seed(self, number: int) -> None:
        """Begin again, with another number."""
        if self._device.type == "cpu":
            self._bits = np.random.SFC64(number)
        else:
            self._generator = torch.Generator(device=self._device)
            self._generator.manual_seed(number % 2**63)

    def factors(self, shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
        """Zeroes with probability p, else 1/(1 − p), in the order of the shape."""
        scale = 1 / (1 - p) if p < 1 else 0.0
        size = int(np.prod(shape))
        if self._device.type == "cpu":
            drawn = self._bits.random_raw(-(-size // 2)).view(np.uint32)[:size]
            kept = drawn >= np.uint32(p * 2**32) if p < 1 else np.zeros(size, dtype=bool)
            return torch.from_numpy(kept).view(*shape).to(dtype).mul_(scale)
        found = torch.empty(*shape, dtype=dtype, device=self._device)
        return found.bernoulli_(1 - p, generator=self._generator).mul_(scale)


class KeyedDropout(nn.Module):
    """What `nn.Dropout` does, with draws of its own.

    It draws in the order of the shape, whatever the order of memory: that of a convolution's
    outputs depends on what came before it.
    """

    def __init__(self, p: float, coins: Coins):
        super().__init__()
        self.p = p
        self.coins = coins

    def forward(self, x: Tensor) -> Tensor:
        """Zeroes at random, in training."""
        if not self.training or self.p == 0:
            return x
        return x * self.coins.factors(x.shape, self.p, x.dtype)


def with_keyed_dropout(module: nn.Module, coins: Coins) -> None:
    """Put a keyed dropout in the place of every dropout of a module."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            keyed = KeyedDropout(0.0 if rests(child) else child.p, coins).train(child.training)
            setattr(module, name, keyed)
        else:
            with_keyed_dropout(child, coins)
