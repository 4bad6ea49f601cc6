"""The batches of several clients side by side, gathered by index."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from undrift.core.problem import Work
from undrift.data.augmentation import Augmentation
from undrift.data.part import Part
from undrift.local.solvers import SGD
from undrift.utils.keys import generator, orders

BLOCK = 1 << 20
"""Bytes of inputs that are gathered at once: the batches of several steps where these are small."""


@dataclass(frozen=True)
class Batch:
    """One batch of each client; those with fewer samples than others are padded."""

    x: Tensor
    """`[C, B, …]`"""
    y: Tensor
    sizes: Sequence[int]
    """how many samples are a client's own"""
    weights: Tensor | float
    """of each sample in its client's mean, `[C, B]`, or one for all"""


@dataclass(frozen=True)
class Block:
    """The batches of several steps, `[steps, C, B, …]`."""

    first: int
    last: int
    """the first step, and the one after the last"""
    x: Tensor
    y: Tensor
    weights: Tensor | float


@dataclass(frozen=True)
class Indices:
    """Which samples make up the batches of several clients, most steps first."""

    rows: np.ndarray
    """`[steps, C, B]`"""
    sizes: np.ndarray
    """`[steps, C]`, zero where a client is done"""

    def of(self, some: slice) -> Indices:
        """Those of some of the clients."""
        sizes = self.sizes[:, some]
        steps = np.count_nonzero(sizes[:, 0])
        return Indices(self.rows[:steps, some], sizes[:steps])


def indices(part: Part, places: Sequence[int], works: Sequence[Work], solver: SGD) -> Indices:
    """The batches of clients at the given places, for all that they do in a round."""
    assert part.bounds is not None
    bounds, at = part.bounds.numpy(), np.array(places)
    begins = bounds[at]
    own = bounds[at + 1] - begins
    steps = np.array([work.steps for work in works])
    keys = np.array([work.key for work in works], dtype=np.uint64)
    different = np.unique(own).tolist()
    width = max(solver.batch_of(size) for size in different)
    every = np.zeros((steps[0], len(places), width), dtype=np.int64)
    sizes = np.zeros((steps[0], len(places)), dtype=np.int64)
    for size in different:
        who = np.flatnonzero(own == size) if len(different) > 1 else slice(None)
        most = steps[who][0]
        rows, filled = _rows(size, solver, keys[who], most)
        every[:most, who] = rows[..., :1] + begins[who, None]  # a padding that does no harm
        every[:most, who, : rows.shape[2]] = rows + begins[who, None]
        sizes[:most, who] = filled[:, None]
    if steps[-1] < steps[0]:
        sizes[np.arange(steps[0])[:, None] >= steps] = 0
    return Indices(every, sizes)


class Stream:
    """The batches of clients that work at once, in the order of their steps, most steps first.

    Parameters
    ----------
    part
        the samples
    chosen
        which of them make up the batches
    like
        a tensor of the model's type
    augmentations, numbers
        random changes of the inputs, and each client's key for these
    ahead
        a thread that gathers the next batches while the present ones are computed with
    """

    def __init__(
        self,
        part: Part,
        chosen: Indices,
        like: Tensor,
        augmentations: Sequence[Augmentation] = (),
        numbers: Sequence[int] = (),
        ahead: Executor | None = None,
    ):
        self._part, self._like, self._augmentations = part, like, augmentations
        self._rngs = [generator(n, "augmentation") for n in numbers] if augmentations else []
        self._rows, self._sizes = chosen.rows, chosen.sizes
        self.active = np.count_nonzero(chosen.sizes, axis=1).tolist()
        """how many are at work in each step; they are the first ones"""
        self.evaluations = int(chosen.sizes.sum())
        self._widths = chosen.sizes.max(1).tolist()
        self._ahead = ahead
        self._coming: Future[Block] | None = None
        self._block = Block(0, 0, like, like, 0.0)

    def __len__(self) -> int:
        return len(self.active)

    def at(self, step: int) -> Batch:
        """The batches of those that are at work in a step; steps are asked for in turn."""
        if step >= self._block.last:
            self._block = self._gathered(step) if self._coming is None else self._coming.result()
            self._coming = None
            if self._ahead is not None and self._block.last < len(self):
                self._coming = self._ahead.submit(self._gathered, self._block.last)
        block, place = self._block, step - self._block.first
        sizes = self._sizes[step, : self.active[step]].tolist()
        weights = block.weights if isinstance(block.weights, float) else block.weights[place]
        return Batch(block.x[place], block.y[place], sizes, weights)

    def _gathered(self, first: int) -> Block:
        """The samples of a step, and of those after it that look alike, up to `BLOCK`."""
        active, width = self.active[first], self._widths[first]
        part, x, y = self._part, self._part.x, self._part.y
        bytes = active * width * x[0].numel() * x.element_size()
        last = min(len(self), first + max(1, BLOCK // max(bytes, 1)))
        for step in range(first + 1, last):
            if self.active[step] != active or self._widths[step] != width:
                last = step
                break
        shape = (last - first, active, width)
        rows = torch.from_numpy(self._rows[first:last, :active, :width].reshape(-1)).to(x.device)
        if not part.in_order:
            rows = part.rows[rows]
        inputs = x.index_select(0, rows).view(*shape, *x.shape[1:])
        targets = y.index_select(0, rows).view(*shape, *y.shape[1:])
        sizes = self._sizes[first:last, :active]
        if self._augmentations:
            for some, own in zip(inputs, sizes.tolist(), strict=True):
                self._augment(some, own)
        weights: Tensor | float = 1.0 / width
        if (sizes < width).any():
            own = sizes[:, :, None]
            weights = torch.from_numpy((np.arange(width) < own) / own)
            weights = weights.to(self._like.device, self._like.dtype)
        return Block(first, last, inputs, targets, weights)

    def _augment(self, x: Tensor, sizes: Sequence[int]) -> None:
        """Change the inputs as the clients' own draws say; padding stays as it is."""
        for own, rng, size in zip(x, self._rngs, sizes, strict=False):
            changed = own[:size]
            for each in self._augmentations:
                changed = each.apply(changed, each.draw(size, rng))
            own[:size] = changed


def _rows(size: int, solver: SGD, keys: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of every batch among a client's samples, `[steps, keys, batch]`, and their sizes.

    All of these clients have `size` samples.
    """
    batch = solver.batch_of(size)
    if batch == size:
        whole = np.broadcast_to(np.arange(size), (steps, len(keys), size))
        return whole, np.full(steps, size)
    if solver.fresh_batches:
        drawn = orders(keys, 0, steps, size)[:, :, :batch]
        return drawn.transpose(1, 0, 2), np.full(steps, batch)
    per_epoch = -(-size // batch)
    epochs = -(-steps // per_epoch)
    order = np.zeros((len(keys), epochs, per_epoch * batch), dtype=np.int64)
    order[:, :, :size] = orders(keys, 0, epochs, size)
    order[:, :, size:] = order[:, :, (per_epoch - 1) * batch, None]  # of the same batch
    filled = np.full(per_epoch, batch)
    filled[-1] = size - (per_epoch - 1) * batch
    rows = order.reshape(len(keys), -1, batch)[:, :steps].transpose(1, 0, 2)
    return rows, np.tile(filled, epochs)[:steps]
