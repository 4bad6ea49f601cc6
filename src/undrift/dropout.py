"""Dropout that draws from a generator of its own, so that several threads can train at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyedDropout(nn.Module):
    """What `nn.Dropout` does, with the draws of a given generator (None: torch's own).

    It draws in the order of the shape, whatever the order of memory: that of a convolution's
    outputs depends on what came before it.
    """

    def __init__(self, p: float, generator: torch.Generator | None):
        super().__init__()
        self.p = p
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        """Zeroes at random, in training."""
        if not self.training or self.p == 0:
            return x
        kept = x.new_empty(x.shape).bernoulli_(1 - self.p, generator=self.generator)
        return x * (kept / (1 - self.p) if self.p < 1 else kept)


def with_keyed_dropout(module: nn.Module, generator: torch.Generator | None) -> None:
    """Put a keyed dropout in the place of every dropout of a module."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            keyed = KeyedDropout(child.p, generator).train(child.training)
            setattr(module, name, keyed)
        else:
            with_keyed_dropout(child, generator)
