"""One part of federated data (train, validation or test): its samples, and each client's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from undrift.data.samples.lazy import LazySamples, Request
from undrift.data.samples.structure import Tree, concatenated, rows_in, rows_of
from undrift.utils.keys import generator


@dataclass(frozen=True)
class Part:
    """A training, validation or test part: the tensors of all samples, and each client's rows.

    Client k holds the samples `rows[bounds[k]:bounds[k + 1]]` of `x` and `y`. In a part that is
    common to all clients, such as a standard test set, `bounds` is None.
    """

    x: Tree
    """the inputs: one tensor, a tuple of tensors or named ones; or `LazySamples`, which read inputs
    and targets when they are needed"""
    y: Tree
    """the targets, usually one tensor; None if samples have none, or if they are not known before
    they are read"""
    rows: Tensor
    bounds: Tensor | None

    @property
    def by_client(self) -> bool:
        """Whether each sample belongs to a client; False for a common part."""
        return self.bounds is not None

    @property
    def lazy(self) -> LazySamples | None:
        """The samples if they are read when they are needed; None if they are in memory."""
        return self.x if isinstance(self.x, LazySamples) else None

    @property
    def sizes(self) -> Tensor:
        """Number of samples of each client, n_k, `[N]`."""
        assert self.bounds is not None
        return self.bounds.diff()

    def of(self, k: int) -> Tensor:
        """Rows of `x` and `y` that client k holds."""
        first, last = self.places(k)
        return self.rows[first:last]

    def places(self, k: int) -> tuple[int, int]:
        """Start and end of client k's rows within `rows`."""
        assert self.bounds is not None
        return int(self.bounds[k]), int(self.bounds[k + 1])

    def owners(self) -> Tensor:
        """Index of the client that holds each row, `[n]`."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes)

    def client(self, k: int) -> tuple[Tree, Tree]:
        """Inputs and targets of client k: views if its rows are contiguous, else copies."""
        return self.piece(*self.places(k))

    def piece(self, first: int, last: int) -> tuple[Tree, Tree]:
        """Inputs and targets of `rows[first:last]`: views if rows are contiguous, else copies."""
        return self.samples(slice(first, last) if self.in_order else self.rows[first:last])

    def samples(self, rows: Tensor | slice) -> tuple[Tree, Tree]:
        """Inputs and targets of some samples, given by their rows of `x` and `y`."""
        if isinstance(self.x, LazySamples):
            numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
            return self.x.samples(numbers)
        return rows_of(self.x, rows), rows_of(self.y, rows)

    def read(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[Tree, Tree]]:
        """Inputs and targets of `rows[first:last]` of each span; lazy ones are read ahead."""
        if isinstance(self.x, LazySamples):
            yield from self.x.batches(Request(self.rows[a:b].tolist()) for a, b in spans)
        else:
            for first, last in spans:
                yield self.piece(first, last)

    def cut_by_client(self, first: int, last: int) -> list[tuple[int, int]]:
        """`rows[first:last]` cut where another client's rows begin."""
        if self.bounds is None:
            return [(first, last)]
        ends = torch.tensor([first + 1, last])
        low, high = torch.searchsorted(self.bounds, ends).tolist()
        inside = self.bounds[low:high].unique().tolist()
        return list(pairwise([first, *inside, last]))

    def of_clients(self, clients: Tensor) -> Part:
        """A part with copies of some clients' samples; `clients` are ascending indices.

        Samples that are read when needed are not copied.
        """
        kept = torch.zeros(len(self.sizes), dtype=torch.bool)
        kept[clients] = True
        rows = self.rows[torch.repeat_interleave(kept, self.sizes).to(self.rows.device)]
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), self.sizes[clients].cumsum(0)])
        if self.lazy is not None:
            return Part(self.x, self.y, rows, ends)
        order = torch.arange(len(rows), device=rows.device)
        return Part(*self.samples(rows), order, ends)

    def random_part(self, samples: int) -> Part:
        """A part with copies of a number of samples, one from each of as many equal stretches.

        So every client has its share of them. They depend on the numbers of samples only, and are
        the same for every seed. Samples that are read when needed are not copied.
        """
        ends = torch.arange(samples + 1) * len(self) // samples
        drawn = torch.from_numpy(generator(0, "evaluation").random(samples))
        chosen = (ends[:-1] + (drawn * ends.diff()).long()).to(self.rows.device)
        rows = self.rows[chosen]
        bounds = None if self.bounds is None else torch.searchsorted(chosen.cpu(), self.bounds)
        if self.lazy is not None:
            return Part(self.x, self.y, rows, bounds)
        order = torch.arange(len(rows), device=rows.device)
        return Part(*self.samples(rows), order, bounds)

    @cached_property
    def in_order(self) -> bool:
        """Whether the rows are 0, 1, 2, …, so that slices of `x` and `y` can be views."""
        return torch.equal(self.rows, torch.arange(len(self.rows), device=self.rows.device))

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def common(x: Tree, y: Tree) -> Part:
        """A part that is common to all clients."""
        return Part(x, y, torch.arange(rows_in(x)), None)

    @staticmethod
    def joined(clients: Sequence[tuple[Tree, Tree]]) -> Part:
        """A part from (inputs, targets) of each client, in order."""
        x = concatenated([x for x, _ in clients])
        y = None if clients[0][1] is None else concatenated([y for _, y in clients])
        ends = torch.tensor([0] + [rows_in(x) for x, _ in clients]).cumsum(0)
        return Part(x, y, torch.arange(rows_in(x)), ends)
