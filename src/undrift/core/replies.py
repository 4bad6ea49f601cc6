"""Replies: what a fold sees of a round, which is weighted sums of the uploads.

A method declares the weights by which its uploads are summed. Engines can therefore sum them
part by part, in chunks or on workers, and never hold all uploads of a cohort in memory. Uploads
declared without weights are kept one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undrift.core.problem import Client, Number, Upload
from undrift.core.unformed import UnformedRows
from undrift.utils.errors import UndriftError

if TYPE_CHECKING:
    from undrift.core.uploads.statistic import Statistic

Weight = Callable[[Client], Number]
"""A function that gives the weight of a client's upload in a sum."""


def q(client: Client) -> Number:
    """The client's weight q_k in the objective."""
    return client.q


def once(client: Client) -> Number:
    """1 for every client that replied, whatever its draws."""
    return 1.0


def draws(client: Client) -> Number:
    """The client's draws: how often it was drawn for the cohort."""
    return client.draws


def q_draws(client: Client) -> Number:
    """q_k times the client's draws."""
    return client.q * client.draws


Sum = tuple[str, str]
"""The names of an uploaded vector and of its weight, which together name a sum."""

PIECE_NUMBERS = 100_000
"""How many numbers are converted to double precision at a time, so that the copy stays in cache."""


def accumulator_dtype(like: Tensor) -> torch.dtype:
    """The dtype of sums: double precision on every device that supports it (Apple's does not)."""
    return like.dtype if like.device.type == "mps" else torch.float64


class Replies:
    """The uploads of a round as weighted sums.

    Parameters
    ----------
    sums
        the weights by which each uploaded vector is summed (see `Method.uploads`); uploads that
        it does not name are numbers, which are kept one by one
    clients
        N, the number of all clients
    rate
        η, the clients' nominal learning rate in this round
    statistic
        a robust statistic that takes the place of the weighted mean of each vector in `robust`;
        those vectors are kept one by one
    robust
        the names of those vectors
    """

    def __init__(
        self,
        sums: Mapping[str, tuple[Weight, ...]],
        clients: int,
        rate: float = 1.0,
        statistic: Statistic | None = None,
        robust: Collection[str] = (),
    ):
        self.clients = clients
        self.rate = rate
        self._by = dict(sums)
        self._statistic = statistic
        self._robust = frozenset(robust)
        self._centers: dict[str, Tensor] = {}
        """the statistics of vectors, computed when a fold first asks for them"""
        self._sums: dict[Sum, Tensor] = {}
        self._same: dict[Sum, tuple[Sum, float]] = {}
        """sums that are another one times a number, and have no memory of their own"""
        self._waiting: list[tuple[Sum, UnformedRows, Tensor]] | None = None
        """sums that `merge` forms, with the weights of the rows; None: they are formed at once"""
        self._single: dict[str, list[Tensor]] = {}
        self._who: list[Client] = []
        self._dtypes: dict[str, torch.dtype] = {}

    def wait_for_merge(self) -> None:
        """Do not form the sums of unformed vectors: `merge` adds them to those of other replies.

        Each sum of a large model, in double precision, takes two copies of it. The unformed vectors
        must stay valid until then.
        """
        self._waiting = []

    def add(self, client: Client, upload: Upload) -> None:
        """Add the upload of one client."""
        self.add_several([client], client, upload)

    def add_several(self, clients: Sequence[Client], stacked: Client, upload: Upload) -> None:
        """Add the uploads of several clients, stacked as `[C, P]`; `stacked` has their numbers."""
        self._who += clients
        for name, value in upload.items():
            if name not in self._by:
                number = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
                self._single.setdefault(name, []).append(number)
            elif not self._by[name] or name in self._robust:
                self._dtypes[name] = value.dtype
                rows = value if value.ndim == 2 else value[None]
                self._single.setdefault(name, []).append(rows)
            else:
                self._dtypes[name] = value.dtype
                for by in self._by[name]:
                    which = name, by.__name__
                    if self._waiting is not None and isinstance(value, UnformedRows):
                        self._waiting.append((which, value, _row_weights(value, by(stacked))))
                    else:
                        self._add_sum(which, _weighted(value, by(stacked)))

    def add_sums(self, sums: Mapping[tuple[str, str], Tensor], dtype: torch.dtype) -> None:
        """Add sums of vectors of clients that were added without their vectors.

        `sums` are in double precision, by the names of the vector and of its weight; `dtype` is
        that of the uploaded vectors.
        """
        for which, total in sums.items():
            self._dtypes[which[0]] = dtype
            self._add_sum(which, total)

    def merge(self, later: Replies) -> list[Tensor]:
        """Add the replies of further clients, summed by a chunk or a worker.

        Returns the sums of `later` that were added to others, and that nobody needs any more.
        """
        self._who += later._who
        self._dtypes |= later._dtypes
        waiting = later._waiting or []
        same = later._same | _proportional(waiting)
        for which in [*self._same]:
            if self._same[which] != same.get(which):  # they differ from here on
                other, ratio = self._same.pop(which)
                self._sums[which] = self._sums[other] * ratio
        if not self._sums:
            self._same = dict(same)
        added = [part for which, part in later._sums.items() if which in self._sums]
        for which, part in later._sums.items():
            self._add_sum(which, part)
        for which, (other, ratio) in later._same.items():
            if which not in self._same:
                self._add_sum(which, later._sums[other] * ratio)
        for which, rows, weights in waiting:
            if which in self._same:
                continue
            if which not in self._sums:
                like = rows.center
                self._sums[which] = torch.zeros(
                    like.shape[-1], dtype=accumulator_dtype(like), device=like.device
                )
            rows.add_weighted_sum(weights, self._sums[which])
        for name, parts in later._single.items():
            self._single.setdefault(name, []).extend(parts)
        return added

    def make_own(self) -> None:
        """Copy the sums into memory of their own, if they are views of shared memory."""
        self._sums = {which: part.clone() for which, part in self._sums.items()}

    def make_vectors_own(self) -> None:
        """Copy vectors that are kept one by one into memory of their own."""
        for name in self._by:
            if name in self._single:
                self._single[name] = [part.clone() for part in self._single[name]]

    def finite(self) -> bool:
        """Whether all sums and numbers are finite; if not, some upload is not."""
        values = [*self._sums.values(), *(each for some in self._single.values() for each in some)]
        # One reduction per tensor: a NaN or infinity in any element makes its sum non-finite.
        formed = all(bool(value.sum().isfinite()) for value in values)
        return formed and all(rows.finite() for _, rows, _ in self._waiting or ())

    def _add_sum(self, which: tuple[str, str], part: Tensor) -> None:
        if which in self._sums:
            self._sums[which].add_(part)
        else:
            self._sums[which] = part

    @property
    def count(self) -> int:
        """|S|, the number of clients that replied."""
        return len(self._who)

    @property
    def share(self) -> float:
        """|S|/N"""
        return self.count / self.clients

    def weight(self, by: Weight) -> float:
        """Σ_S by(k), the sum of a weight over the clients that replied."""
        return float(sum(float(by(client)) for client in self._who))

    def weights(self, by: Weight) -> Tensor:
        """by(k) for each client that replied, in the order of `stack` and `each`."""
        return torch.tensor([float(by(client)) for client in self._who], dtype=torch.float64)

    def sum(self, name: str, by: Weight) -> Any:
        """Σ_S by(k)·upload_k, for an uploaded vector or number of this name.

        With a robust statistic, Σ_S by(k) times the statistic of the uploads.
        """
        if name in self._robust and by.__name__ in {each.__name__ for each in self._by[name]}:
            return self.weight(by) * self._center(name)
        total = self.exact_sum(name, by)
        if total is not None:
            return total.to(self._dtypes[name])
        if name in self._single and name not in self._by:
            return float(self.weights(by) @ self.each(name))
        known = ", ".join(f"{n} by {w}" for n, w in self._sums) or "none"
        raise UndriftError(
            f"The sum of {name!r} by {by.__name__!r} is not declared in the method's uploads "
            f"({known})."
        )

    def _center(self, name: str) -> Tensor:
        """The robust statistic of the uploads of this name."""
        assert self._statistic is not None
        if name not in self._centers:
            rows = self.stack(name)
            self._single[name] = [rows]  # frees the parts
            self._centers[name] = self._statistic.checked(rows)
        return self._centers[name]

    def exact_sum(self, name: str, by: Weight) -> Tensor | None:
        """Σ_S by(k)·upload_k of a declared vector in double precision; None without replies."""
        which = name, by.__name__
        if which not in self._same:
            return self._sums.get(which)
        other, ratio = self._same[which]
        return self._sums[other] if ratio == 1.0 else self._sums[other] * ratio

    def mean(self, name: str, by: Weight = once) -> Any:
        """The weighted mean: `sum` divided by the sum of the weights."""
        return self.sum(name, by) / self.weight(by)

    def each(self, name: str) -> Tensor:
        """The uploaded numbers of this name, `[|S|]` in double precision."""
        return torch.cat([part.cpu() for part in self._single[name]])

    def stack(self, name: str) -> Tensor:
        """The uploaded vectors of this name, `[|S|, P]`, if declared without weights."""
        return torch.cat(self._single[name])


def _weighted(value: Tensor | UnformedRows, weight: Number) -> Tensor:
    """Σ weight_k·value_k over the rows of a chunk, in double precision."""
    if isinstance(value, UnformedRows):
        return value.weighted_sum(_row_weights(value, weight))
    dtype = accumulator_dtype(value)
    if value.ndim == 1 or len(value) == 1:
        return (
            torch.empty(value.shape[-1], dtype=dtype, device=value.device)
            .copy_(value.view(-1))
            .mul_(float(weight))
        )
    clients, size = value.shape
    weights = torch.as_tensor(weight, device=value.device).to(dtype).reshape(-1).expand(clients)
    total = torch.empty(size, dtype=dtype, device=value.device)
    width = min(size, max(1, PIECE_NUMBERS // clients))
    buffer = torch.empty(clients, width, dtype=dtype, device=value.device)
    # Convert and sum one piece of columns at a time: a copy of the whole chunk in double precision
    # would leave the cache.
    for part, place in zip(value.split(width, dim=1), total.split(width), strict=True):
        piece = buffer if part.shape == buffer.shape else buffer[:, : part.shape[1]]
        torch.mv(piece.copy_(part).t(), weights, out=place)
    return total


def _row_weights(rows: UnformedRows, weight: Number) -> Tensor:
    """The weight of each row, `[C]` in double precision."""
    like = rows.center
    given = torch.as_tensor(weight, device=like.device).to(accumulator_dtype(like))
    return given.reshape(-1).expand(rows.shape[0])


def _proportional(
    waiting: Sequence[tuple[Sum, UnformedRows, Tensor]],
) -> dict[Sum, tuple[Sum, float]]:
    """Sums of the same rows as an earlier one with the same weights times a number, with both."""
    found: dict[Sum, tuple[Sum, float]] = {}
    for number, (which, rows, weights) in enumerate(waiting):
        for earlier, others, given in waiting[:number]:
            if earlier in found or not rows.same_as(others):
                continue
            ratio = weights_ratio(weights, given)
            if ratio is not None:
                found[which] = earlier, ratio
                break
    return found


def weights_ratio(weights: Tensor, others: Tensor) -> float | None:
    """The factor by which weights differ from others, if it is the same for all."""
    first = float(others[0])
    if first == 0.0:
        return None
    # Rounded, so that the chunks of a round, whose weights have rounding errors, find the same.
    ratio = float(f"{float(weights[0]) / first:.13g}")
    return ratio if torch.allclose(weights, others * ratio, rtol=1e-12, atol=0.0) else None
