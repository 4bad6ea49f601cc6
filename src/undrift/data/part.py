"""One part of federated data (train, validation or test): its tensors, and each client's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A training, validation or test part: the tensors of all samples, and each client's rows.

    Client k holds the samples `rows[bounds[k]:bounds[k + 1]]` of `x` and `y`. In a part that is
    common to all clients, such as a standard test set, `bounds` is None.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    bounds: Tensor | None

    @property
    def by_client(self) -> bool:
        """Whether each sample belongs to a client; False for a common part."""
        return self.bounds is not None

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

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of client k: views if its rows are contiguous, else copies."""
        return self.piece(*self.places(k))

    def piece(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of `rows[first:last]`: views if rows are contiguous, else copies."""
        chosen = slice(first, last) if self.in_order else self.rows[first:last]
        return self.x[chosen], self.y[chosen]

    def of_clients(self, clients: Tensor) -> Part:
        """A part with copies of some clients' samples; `clients` are ascending indices."""
        kept = torch.zeros(len(self.sizes), dtype=torch.bool)
        kept[clients] = True
        rows = self.rows[torch.repeat_interleave(kept, self.sizes).to(self.rows.device)]
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), self.sizes[clients].cumsum(0)])
        order = torch.arange(len(rows), device=rows.device)
        return Part(self.x[rows], self.y[rows], order, ends)

    @cached_property
    def in_order(self) -> bool:
        """Whether the rows are 0, 1, 2, …, so that slices of `x` and `y` can be views."""
        return torch.equal(self.rows, torch.arange(len(self.rows), device=self.rows.device))

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def common(x: Tensor, y: Tensor) -> Part:
        """A part that is common to all clients."""
        return Part(x, y, torch.arange(len(y)), None)

    @staticmethod
    def joined(clients: Sequence[tuple[Tensor, Tensor]]) -> Part:
        """A part from (inputs, targets) of each client, in order."""
        x = torch.cat([x for x, _ in clients])
        y = torch.cat([y for _, y in clients])
        ends = torch.tensor([0] + [len(y) for _, y in clients]).cumsum(0)
        return Part(x, y, torch.arange(len(y)), ends)
