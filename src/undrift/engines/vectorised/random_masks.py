"""The dropout masks of several clients that train at once, each from its own key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from undrift.nets.dropout import MaskGenerator


class RandomMasks:
    """Generates the masks of several clients; each client's are those it would get alone."""

    def __init__(self, keys: Sequence[int], device: torch.device):
        self.generators = [MaskGenerator(device, key) for key in keys]
        self.sizes: Sequence[int] = ()
        """how many samples of the present batch belong to each client; the rest is padding"""

    def keep(self, active: int) -> None:
        """Continue with the first `active` clients only; the others have finished."""
        del self.generators[active:]

    def states(self) -> list[Any]:
        """The places in the clients' sequences of masks, for `restore`."""
        return [each.state() for each in self.generators]

    def restore(self, states: Sequence[Any]) -> None:
        """Go back to places in the clients' sequences of masks."""
        for generator, state in zip(self.generators, states, strict=True):
            generator.restore(state)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """The mask by which dropout multiplies `x`, `[C, B, …]`: 0 or 1/(1 − p).

        Padding gets no random numbers, since a client that trains alone has none; its mask is 0.
        """
        width, shape = x.shape[1], x.shape[2:]
        unpadded = all(size == width for size in self.sizes)
        if unpadded and len(self.generators) == 1:
            return self.generators[0].mask(x.shape[1:], p, x.dtype)[None]
        mask = x.new_zeros(x.shape)
        for own, generator, size in zip(mask, self.generators, self.sizes, strict=True):
            own[:size] = generator.mask((size, *shape), p, x.dtype)
        return mask
