"""A part of federated data: contiguous tensors, and which of their rows each client holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A training, validation or test part: all samples, and the rows of each client in turn.

    Client k holds the samples `rows[bounds[k]:bounds[k + 1]]`. A part that belongs to no
    client in particular (a common test set) has `bounds` of None.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    bounds: Tensor | None

    @property
    def by_client(self) -> bool:
        """Whether the samples belong to clients."""
        return self.bounds is not None

    @property
    def sizes(self) -> Tensor:
        """n_k, `[N]`"""
        assert self.bounds is not None
        return self.bounds.diff()

    def of(self, k: int) -> Tensor:
        """The rows of a client."""
        first, last = self.places(k)
        return self.rows[first:last]

    def places(self, k: int) -> tuple[int, int]:
        """From where to where among the rows a client's are."""
        assert self.bounds is not None
        return int(self.bounds[k]), int(self.bounds[k + 1])

    def owners(self) -> Tensor:
        """The place of the client that holds each row, `[n]`."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes)

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        """A client's inputs and targets: views where its samples lie together, else copies."""
        return self.piece(*self.places(k))

    def piece(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets from one place among the rows to another: views where they can be."""
        chosen = slice(first, last) if self.in_order else self.rows[first:last]
        return self.x[chosen], self.y[chosen]

    def of_clients(self, clients: Tensor) -> Part:
        """A copy of the samples of some clients, given by their places in ascending order."""
        kept = torch.zeros(len(self.sizes), dtype=torch.bool)
        kept[clients] = True
        rows = self.rows[torch.repeat_interleave(kept, self.sizes).to(self.rows.device)]
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), self.sizes[clients].cumsum(0)])
        places = torch.arange(len(rows), device=rows.device)
        return Part(self.x[rows], self.y[rows], places, ends)

    @cached_property
    def in_order(self) -> bool:
        """Whether the rows are 0, 1, 2, …"""
        return torch.equal(self.rows, torch.arange(len(self.rows), device=self.rows.device))

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def common(x: Tensor, y: Tensor) -> Part:
        """Samples that belong to no client in particular."""
        return Part(x, y, torch.arange(len(y)), None)

    @staticmethod
    def joined(clients: Sequence[tuple[Tensor, Tensor]]) -> Part:
        """The samples of several clients, one after another."""
        x = torch.cat([x for x, _ in clients])
        y = torch.cat([y for _, y in clients])
        ends = torch.tensor([0] + [len(y) for _, y in clients]).cumsum(0)
        return Part(x, y, torch.arange(len(y)), ends)
