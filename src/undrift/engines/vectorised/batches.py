"""The batches of several clients side by side, `[C, B, …]`, gathered from the data by index.

`batch_indices` draws which samples make up every batch of a round, with the same keys as the
serial engine; `BatchStream` gathers the samples step by step.
"""

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
from undrift.data.samples.structure import Tree, map_tensors, rows_of, tensors_of
from undrift.local.minibatches import MinibatchSolver
from undrift.utils.keys import generator, orders

BANDS = 4
"""Parts of a group's clients whose batches are drawn apart if their numbers of steps differ."""
GATHER_BYTES = 1 << 20
"""Inputs that are gathered at once: the batches of several steps, if these are small."""


@dataclass(frozen=True)
class Batch:
    """One batch of each client; batches with fewer samples than others are padded."""

    x: Tree
    """`[C, B, …]`, one tensor, several or named ones"""
    y: Tree
    """`[C, B, …]`"""
    sizes: Sequence[int]
    """how many samples belong to each client; the rest is padding"""
    weights: Tensor | float
    """of each sample in its client's mean, `[C, B]` with 0 for padding, or one for all"""


@dataclass(frozen=True)
class GatheredSteps:
    """The batches of several steps, gathered at once, `[steps, C, B, …]`."""

    first: int
    """the first step"""
    last: int
    """the step after the last"""
    x: Tree
    y: Tree
    weights: Tensor | float


@dataclass(frozen=True)
class BatchIndices:
    """Which samples make up the batches of several clients, those with most steps first."""

    rows: np.ndarray
    """positions in the part, `[steps, C, B]`"""
    sizes: np.ndarray
    """samples in each batch, `[steps, C]`; zero after a client's last step"""

    def of(self, some: slice) -> BatchIndices:
        """The indices of some of the clients, for as many steps as the first of them has."""
        sizes = self.sizes[:, some]
        steps = np.count_nonzero(sizes[:, 0])
        return BatchIndices(self.rows[:steps, some], sizes[:steps])


def batch_indices(
    part: Part, places: Sequence[int], works: Sequence[Work], solver: MinibatchSolver
) -> BatchIndices:
    """The samples of every batch of some clients in a round.

    Parameters
    ----------
    part
        the training samples
    places
        the clients' places in the data
    works
        the clients' work, those with most steps first
    solver
        says how large batches are and how they are drawn
    """
    assert part.bounds is not None
    bounds, at = part.bounds.numpy(), np.array(places)
    begins = bounds[at]
    client_sizes = bounds[at + 1] - begins
    steps = np.array([work.steps for work in works])
    keys = np.array([work.key for work in works], dtype=np.uint64)
    different = np.unique(client_sizes).tolist()
    width = max(solver.batch_of(size) for size in different)
    rows = np.zeros((steps[0], len(places), width), dtype=np.int64)
    sizes = np.zeros((steps[0], len(places)), dtype=np.int64)
    # Clients of equal size are drawn together: most of the time is spent per call, not per client.
    groups = [np.flatnonzero(client_sizes == size) for size in different]
    for size, who in (
        (s, w) for s, g in zip(different, groups, strict=True) for w in _bands(g, steps)
    ):
        most = steps[who[0]]
        own, filled = _batch_positions(size, solver, keys[who], most)
        # Padding repeats the batch's own first sample. Its weight is 0, but 0·NaN is NaN: a sample
        # of another client could spoil this client's gradient.
        rows[:most, who] = own[..., :1] + begins[who, None]
        rows[:most, who, : own.shape[2]] = own + begins[who, None]
        sizes[:most, who] = filled[:, None]
    if steps[-1] < steps[0]:
        sizes[np.arange(steps[0])[:, None] >= steps] = 0
    return BatchIndices(rows, sizes)


def _bands(who: np.ndarray, steps: np.ndarray) -> list[np.ndarray]:
    """Clients, those with most steps first, in parts of similar numbers of steps.

    Those of a part are drawn for as many steps as the first of them has.
    """
    similar = steps[who[0]] <= 2 * steps[who[-1]]
    return [who] if similar else np.array_split(who, min(len(who), BANDS))


class BatchStream:
    """The batches of clients that train at once, step by step.

    Clients with most steps come first, so that those still training are always the first ones.

    Parameters
    ----------
    part
        the samples
    indices
        which of them make up the batches
    like
        a tensor with the model's device and dtype
    augmentations, keys
        random changes of the inputs, and each client's key for them
    gatherer
        a thread that gathers the next batches while the present ones are computed with
    """

    def __init__(
        self,
        part: Part,
        indices: BatchIndices,
        like: Tensor,
        augmentations: Sequence[Augmentation] = (),
        keys: Sequence[int] = (),
        gatherer: Executor | None = None,
    ):
        self._part, self._like, self._augmentations = part, like, augmentations
        self._rngs = [generator(key, "augmentation") for key in keys] if augmentations else []
        self._rows, self._sizes = indices.rows, indices.sizes
        self.active = np.count_nonzero(indices.sizes, axis=1).tolist()
        """how many clients train in each step; they are the first ones"""
        self.evaluations = int(indices.sizes.sum())
        """gradients of single samples in all batches"""
        self._widths = indices.sizes.max(1).tolist()
        self._gatherer = gatherer
        self._next: Future[GatheredSteps] | None = None
        self._gathered = GatheredSteps(0, 0, like, like, 0.0)
        self._inputs: Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows of all batches of a client together, with padding."""
        return sum(self._widths)

    def gather_inputs(self) -> Tensor:
        """Gather the inputs of all steps at once, `[C, rows, …]`, and use them from then on.

        Inputs of steps that a client does not take are zero.
        """
        assert isinstance(self._part.x, Tensor)
        clients = self._rows.shape[1]
        pieces = [rows[:, :width] for rows, width in zip(self._rows, self._widths, strict=True)]
        rows = np.concatenate(pieces, axis=1)
        self._inputs = _gathered(self._part.x, self._positions(rows), rows.shape)
        if min(self.active) < clients:
            taken = np.repeat(self._sizes > 0, self._widths, axis=0).T
            self._inputs[torch.from_numpy(~taken)] = 0
        return self._inputs

    def __len__(self) -> int:
        return len(self.active)

    def at(self, step: int) -> Batch:
        """The batches of the clients that train in a step; steps must be asked for in order."""
        if step >= self._gathered.last:
            self._gathered = self._gather(step) if self._next is None else self._next.result()
            self._next = None
            # Only one gathering is ever under way, so the clients' generators for augmentation
            # are used by one thread at a time and in the order of steps.
            if self._gatherer is not None and self._gathered.last < len(self):
                self._next = self._gatherer.submit(self._gather, self._gathered.last)
        gathered, place = self._gathered, step - self._gathered.first
        sizes = self._sizes[step, : self.active[step]].tolist()
        weights = gathered.weights
        if isinstance(weights, Tensor):
            weights = weights[place]
        x = entry(gathered.x, place) if self._inputs is None else self._inputs_of(step)
        return Batch(x, entry(gathered.y, place), sizes, weights)

    def _inputs_of(self, step: int) -> Tensor:
        """The inputs of a step among those that `gather_inputs` gathered."""
        assert self._inputs is not None
        first = sum(self._widths[:step])
        return self._inputs[: self.active[step], first : first + self._widths[step]]

    def _positions(self, rows: np.ndarray) -> Tensor:
        """Positions in the part as positions in its tensors, in one dimension."""
        found = torch.from_numpy(rows.reshape(-1)).to(self._like.device)
        return found if self._part.in_order else self._part.rows[found]

    def _gather(self, first: int) -> GatheredSteps:
        """Gather a step and those after it with the same shape, up to `GATHER_BYTES`."""
        active, width = self.active[first], self._widths[first]
        x, y = self._part.x, self._part.y
        step_bytes = active * width * _row_bytes(x)
        last = min(len(self), first + max(1, GATHER_BYTES // max(step_bytes, 1)))
        for step in range(first + 1, last):
            if self.active[step] != active or self._widths[step] != width:
                last = step
                break
        shape = (last - first, active, width)
        rows = self._positions(self._rows[first:last, :active, :width])
        targets = _gathered(y, rows, shape)
        inputs = targets if self._inputs is not None else _gathered(x, rows, shape)
        sizes = self._sizes[first:last, :active]
        if self._augmentations:
            for number, step_sizes in enumerate(sizes.tolist()):
                self._augment(inputs[number], entry(targets, number), step_sizes)
        weights: Tensor | float = 1.0 / width
        if (sizes < width).any():
            own = sizes[:, :, None]
            weights = torch.from_numpy((np.arange(width) < own) / own)
            weights = weights.to(self._like.device, self._like.dtype)
        return GatheredSteps(first, last, inputs, targets, weights)

    def _augment(self, x: Tensor, y: Tree, sizes: Sequence[int]) -> None:
        """Augment the samples of a step with each client's random numbers, in place.

        Padding is left out, so that a client uses as many random numbers as it would alone.
        """
        for k, (own, rng, size) in enumerate(zip(x, self._rngs, sizes, strict=False)):
            changed = own[:size]
            targets = before = rows_of(entry(y, k), slice(0, size))
            for each in self._augmentations:
                changed, targets = each.apply_both(changed, targets, each.draw(size, rng))
            own[:size] = changed
            if targets is not before:
                for old, new in zip(tensors_of(before), tensors_of(targets), strict=True):
                    old.copy_(new)


def entry(tree: Tree, place: int) -> Tree:
    """One entry along the first dimension of every tensor of a tree."""
    return tree[place] if isinstance(tree, Tensor) else map_tensors(lambda t: t[place], tree)


def _gathered(tree: Tree, rows: Tensor, shape: tuple[int, ...]) -> Tree:
    """Some rows of every tensor of a tree, in a shape."""
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows).view(*shape, *tree.shape[1:])
    return map_tensors(lambda t: _gathered(t, rows, shape), tree)


def _row_bytes(tree: Tree) -> int:
    """The size of one row of a tree."""
    return sum(each[0].numel() * each.element_size() for each in tensors_of(tree))


def _batch_positions(
    size: int, solver: MinibatchSolver, keys: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The positions of every batch among a client's samples, `[steps, keys, batch]`.

    The second array is the size of each step's batches, `[steps]`. All of these clients have
    `size` samples.
    """
    batch = solver.batch_of(size)
    if batch == size:
        whole = np.broadcast_to(np.arange(size), (steps, len(keys), size))
        return whole, np.full(steps, size)
    if solver.fresh_batches:
        drawn = orders(keys, 0, steps, size)[:, :, :batch]
        return drawn.transpose(1, 0, 2), np.full(steps, batch)
    per_epoch = solver.per_epoch(size)
    epochs = -(-steps // per_epoch)
    if solver.drop_last:
        whole = orders(keys, 0, epochs, size)[:, :, : per_epoch * batch]
        rows = whole.reshape(len(keys), -1, batch)[:, :steps].transpose(1, 0, 2)
        return rows, np.full(steps, batch)
    order = np.zeros((len(keys), epochs, per_epoch * batch), dtype=np.int64)
    order[:, :, :size] = orders(keys, 0, epochs, size)
    # The last batch of an epoch may be smaller; it is padded with its own first sample.
    order[:, :, size:] = order[:, :, (per_epoch - 1) * batch, None]
    filled = np.full(per_epoch, batch)
    filled[-1] = size - (per_epoch - 1) * batch
    rows = order.reshape(len(keys), -1, batch)[:, :steps].transpose(1, 0, 2)
    return rows, np.tile(filled, epochs)[:steps]
