"""What a network draws while it trains, for each client from its own key."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Draws:
    """The generators of several clients, each as if it trained alone."""

    def __init__(self, numbers: Sequence[int], device: torch.device):
        self._device = device
        self.generators = []
        for number in numbers:
            generator = torch.Generator(device=device)
            generator.manual_seed(number % 2**63)
            self.generators.append(generator)
        self.sizes: Sequence[int] = ()
        """how many samples of the present batch are each client's own; others are padding"""

    def keep(self, active: int) -> None:
        """Go on with the first clients only."""
        del self.generators[active:]

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """The factors by which dropout multiplies `[C, B, …]`: zero, or 1/(1 − p)."""
        mask = torch.zeros_like(x)
        for own, generator, size in zip(mask, self.generators, self.sizes, strict=True):
            own[:size].bernoulli_(1 - p, generator=generator)
        if p < 1:
            mask.div_(1 - p)
        return mask
