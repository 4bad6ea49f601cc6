"""The batches of several clients side by side, gathered by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from undrift.data.part import Part
from undrift.solvers import SGD, Work, batches


@dataclass(frozen=True)
class Batch:
    """One batch of each client; those with fewer samples than others are padded."""

    x: Tensor
    """`[C, B, …]`"""
    y: Tensor
    sizes: list[int]
    """how many samples are a client's own"""
    padded: bool

    def shares(self, like: Tensor) -> Tensor | float:
        """The weight of each sample in its client's mean, `[C, B]`, or one for all."""
        if not self.padded:
            return 1.0 / self.x.shape[1]
        sizes = torch.tensor(self.sizes, dtype=like.dtype, device=like.device)[:, None]
        places = torch.arange(self.x.shape[1], device=like.device)
        return (places < sizes) / sizes


class Stream:
    """The batches of clients in the order of their steps, most steps first."""

    def __init__(self, part: Part, places: Sequence[int], works: Sequence[Work], solver: SGD):
        self._part = part
        assert part.bounds is not None
        sizes = [int(part.bounds[k + 1] - part.bounds[k]) for k in places]
        width = max(solver.batch_of(size) for size in sizes)
        steps = max(work.steps for work in works)
        self._rows = np.zeros((steps, len(places), width), dtype=np.int64)
        self._sizes = np.zeros((steps, len(places)), dtype=np.int64)
        for c, (k, size, work) in enumerate(zip(places, sizes, works, strict=True)):
            self._fill(c, int(part.bounds[k]), size, work, solver)
        self._padded = bool((self._sizes < width).any())

    def _fill(self, c: int, begin: int, size: int, work: Work, solver: SGD) -> None:
        """Write down the rows of a client's batches."""
        batch, steps = solver.batch_of(size), work.steps
        if batch == size:
            self._rows[:steps, c, :size] = begin + np.arange(size)
            self._sizes[:steps, c] = size
        elif solver.fresh_batches or size % batch:
            own = batches(size, batch, work.rng, solver.fresh_batches)
            for step in range(steps):
                chosen = next(own)
                assert chosen is not None
                self._rows[step, c, : len(chosen)] = begin + chosen
                self._sizes[step, c] = len(chosen)
        else:
            rng, per_epoch = work.rng(), size // batch
            for first in range(0, steps, per_epoch):
                order = rng.permutation(size).reshape(per_epoch, batch)
                last = min(first + per_epoch, steps)
                self._rows[first:last, c, :batch] = begin + order[: last - first]
            self._sizes[:steps, c] = batch

    def at(self, step: int, active: int) -> Batch:
        """The batches of the first clients in a step."""
        part, device = self._part, self._part.x.device
        rows = torch.from_numpy(self._rows[step, :active].reshape(-1)).to(device)
        if not part.in_order:
            rows = part.rows[rows]
        shape = (active, self._rows.shape[2])
        x = part.x.index_select(0, rows)
        y = part.y.index_select(0, rows)
        return Batch(
            x.view(*shape, *x.shape[1:]),
            y.view(*shape, *y.shape[1:]),
            self._sizes[step, :active].tolist() if self._padded else [shape[1]] * active,
            self._padded,
        )
