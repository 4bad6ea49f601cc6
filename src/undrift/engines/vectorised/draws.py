"""What a network draws while it trains, for each client from its own key."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undrift.nets.dropout import Coins


class Draws:
    """The draws of several clients, each as if it trained alone."""

    def __init__(self, numbers: Sequence[int], device: torch.device):
        self.coins = [Coins(device, number) for number in numbers]
        self.sizes: Sequence[int] = ()
        """how many samples of the present batch are each client's own; others are padding"""

    def keep(self, active: int) -> None:
        """Go on with the first clients only."""
        del self.coins[active:]

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """The factors by which dropout multiplies `[C, B, …]`: zero, or 1/(1 − p)."""
        width, shape = x.shape[1], x.shape[2:]
        whole = all(size == width for size in self.sizes)
        if whole and len(self.coins) == 1:
            return self.coins[0].factors(x.shape[1:], p, x.dtype)[None]
        factors = x.new_zeros(x.shape)
        for own, coins, size in zip(factors, self.coins, self.sizes, strict=True):
            own[:size] = coins.factors((size, *shape), p, x.dtype)
        return factors
