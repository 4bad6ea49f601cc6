"""Federated data: contiguous tensors, and which of their rows each client holds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.errors import UndriftError, require

Pair = tuple[Any, Any]
"""Inputs and targets: arrays or tensors with one row per sample."""


@dataclass(frozen=True)
class Part:
    """A training or test part: all samples, and the rows of each client one after another.

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
        assert self.bounds is not None
        return self.rows[self.bounds[k] : self.bounds[k + 1]]

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        """A client's inputs and targets."""
        return self.x[self.of(k)], self.y[self.of(k)]

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


class FederatedData:
    """Training data by client, and test data by client or in common."""

    def __init__(
        self,
        train: Part,
        test: Part | None = None,
        ids: Sequence[Hashable] | None = None,
        name: str = "data",
    ):
        require(train.by_client, "The training part must say which samples each client holds.")
        self.train = train
        self.test = test
        self.ids = list(ids) if ids is not None else list(range(len(train.sizes)))
        self.name = name
        require(
            len(self.ids) == len(train.sizes),
            f"There are {len(train.sizes)} clients but {len(self.ids)} ids.",
        )
        self._require_finite("training", train)
        if test is not None:
            self._require_finite("test", test)

    def _require_finite(self, name: str, part: Part) -> None:
        for what, values in (("inputs", part.x), ("targets", part.y)):
            if not values.is_floating_point() or bool(values.isfinite().all()):
                continue
            bad = ~values.reshape(len(values), -1).isfinite().all(1)
            whose = range(len(self)) if part.by_client else ()
            first = next(
                (f" of client {self.ids[k]!r}" for k in whose if bad[part.of(k)].any()), ""
            )
            raise UndriftError(
                f"The {name} {what}{first} contain NaN or Inf ({int(bad.sum())} samples in all)."
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        test = 0 if self.test is None else len(self.test)
        return (
            f"FederatedData({self.name}: {len(self)} clients, {len(self.train)} + {test} samples)"
        )

    @staticmethod
    def from_clients(
        clients: Sequence[Pair] | Mapping[Hashable, Pair],
        test: Pair | Sequence[Pair] | Mapping[Hashable, Pair] | None = None,
        name: str = "data",
    ) -> FederatedData:
        """Each client's own (inputs, targets), as a list or by id.

        `test` is one common pair, or a pair per client in the same form.
        """
        own = _by_id(clients)
        ids = list(own)
        require(len(ids) > 0, "There are no clients.")
        pairs = [_pair(own[id], f"client {id!r}") for id in ids]
        for id, pair in zip(ids, pairs, strict=True):
            for what, values, first in zip(("inputs", "targets"), pair, pairs[0], strict=True):
                require(
                    values.shape[1:] == first.shape[1:],
                    f"The {what} of client {id!r} have shape {list(values.shape[1:])} per sample, "
                    f"but those of client {ids[0]!r} have {list(first.shape[1:])}.",
                )
        part: Part | None = None
        if isinstance(test, tuple):
            part = Part.common(*_pair(test, "the test part"))
        elif test is not None:
            tests = _by_id(test)
            for id in ids:
                require(id in tests, f"The test part has nothing for client {id!r}.")
            part = Part.joined([_pair(tests[id], f"client {id!r}") for id in ids])
        return FederatedData(Part.joined(pairs), part, ids, name)

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        parts: Sequence[Sequence[int]] | Mapping[Hashable, Sequence[int]],
        test: Pair | None = None,
        name: str = "data",
    ) -> FederatedData:
        """One array of samples, and the numbers of those each client holds."""
        x, y = _pair((x, y), "the data")
        held = _by_id(parts)
        ids = list(held)
        require(len(ids) > 0, "There are no clients.")
        for id in ids:
            require(
                np.asarray(held[id]).dtype != bool,
                f"Client {id!r} is given by a mask, but must be by the numbers of its samples.",
            )
        rows = [torch.as_tensor(np.asarray(held[id], dtype=np.int64)) for id in ids]
        for id, own in zip(ids, rows, strict=True):
            require(
                own.numel() == 0 or (int(own.min()) >= 0 and int(own.max()) < len(y)),
                f"Client {id!r} holds a sample number outside 0 … {len(y) - 1}.",
            )
        ends = torch.tensor([0] + [len(own) for own in rows]).cumsum(0)
        train = Part(x, y, torch.cat(rows), ends)
        part = None if test is None else Part.common(*_pair(test, "the test part"))
        return FederatedData(train, part, ids, name)

    def pooled(self) -> FederatedData:
        """The same samples in the hands of one client, for a centralised baseline."""
        everything = torch.tensor([0, len(self.train)])
        train = Part(self.train.x, self.train.y, self.train.rows, everything)
        return FederatedData(train, self.test, ["all"], self.name)


def _by_id(values: Sequence[Any] | Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """What each client has, under its id: a list is numbered from 0."""
    return dict(values) if isinstance(values, Mapping) else dict(enumerate(values))


def _pair(pair: Any, where: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets as tensors, with as many rows each."""
    try:
        x, y = pair
    except (TypeError, ValueError):
        raise UndriftError(f"{where} must be a pair (inputs, targets).") from None
    try:
        x, y = torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):
        raise UndriftError(
            f"The inputs and targets of {where} must be arrays of numbers."
        ) from None
    require(
        x.ndim >= 1 and y.ndim >= 1 and len(x) == len(y),
        f"The inputs of {where} have {len(x) if x.ndim else 0} rows, but its targets have "
        f"{len(y) if y.ndim else 0}.",
    )
    return x, y
