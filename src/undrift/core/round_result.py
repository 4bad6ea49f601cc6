"""Adds up the replies of a round, so that no cohort's uploads are ever held at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from undrift.core.messages import CHANGE, COHORT, Reply, TrackedModels
from undrift.core.problem import Client, Keep
from undrift.core.replies import Replies, Weight, accumulator_dtype, q, q_draws


class RoundResult:
    """What came of the work of several clients, added up as their replies are taken in."""

    def __init__(
        self,
        sums: Mapping[str, tuple[Weight, ...]],
        clients: int,
        rate: float,
        tracked: TrackedModels,
    ):
        self._tracked = tracked
        self.replies = Replies(sums, clients=clients, rate=rate)
        self.kept: dict[Hashable, Keep] = {}
        """the new states, to be stored when the round is accepted"""
        self.rejected: dict[Hashable, str] = {}
        """clients whose reply was unusable, with the reason"""
        self.lost: dict[Hashable, str] = {}
        """clients of whom no reply came, with the reason"""
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()
        """bytes that travelled, by tensor"""
        self.steps = self.wasted_steps = 0
        self.evaluations = self.wasted_evaluations = 0
        """gradients of single samples that were computed, for replies that were used or refused"""
        self.partial = 0
        """replies with less work than was asked for"""
        self._buffers = WeightedMean()

    def take(self, reply: Reply) -> None:
        """Take in a client's reply; one that is wrong is counted and left out."""
        self.down.update(reply.down)
        self.up.update(reply.up)
        if reply.wrong is not None:
            self.rejected[reply.client.id] = reply.wrong
            self.wasted_steps += reply.steps
            self.wasted_evaluations += reply.evaluations
            return
        self.steps += reply.steps
        self.evaluations += reply.evaluations
        self.partial += not reply.complete
        self._buffers.add(reply.buffers, float(reply.client.samples))
        self.replies.add(reply.client, reply.upload)
        self.kept[reply.client.id] = reply.keep

    def take_several(self, reply: Reply, clients: Sequence[Client]) -> None:
        """Take in the replies of several clients as one, `[C, …]`, none of them wrong."""
        self.down.update(reply.down)
        self.up.update(reply.up)
        self.steps += reply.steps
        self.evaluations += reply.evaluations
        self.partial += len(clients) - reply.complete
        self.replies.add_several(clients, reply.client, reply.upload)
        if not any(reply.keep.items()):
            self.kept |= dict.fromkeys((client.id for client in clients), reply.keep)
            return
        for row, client in enumerate(clients):
            self.kept[client.id] = reply.keep.row(row)

    def merge(self, later: RoundResult) -> None:
        """Take in what came of the work of further clients, added up by itself."""
        self.down.update(later.down)
        self.up.update(later.up)
        self.steps += later.steps
        self.evaluations += later.evaluations
        self.wasted_steps += later.wasted_steps
        self.wasted_evaluations += later.wasted_evaluations
        self.partial += later.partial
        self.rejected |= later.rejected
        self.lost |= later.lost
        self.kept |= later.kept
        self.replies.merge(later.replies)
        self._buffers.merge(later._buffers)

    def make_own(self, sums: bool) -> None:
        """Copy the new states, and the sums too if asked, where others hold their memory."""
        self.kept = {
            client: Keep(**{n: v.clone() if isinstance(v, Tensor) else v for n, v in keep.items()})
            for client, keep in self.kept.items()
        }
        if sums:
            self.replies.make_own()

    def arrange(self, clients: Sequence[Hashable]) -> None:
        """Name clients in this order, whatever the order in which their replies came."""
        for named in (self.kept, self.rejected):
            ordered = {client: named[client] for client in clients if client in named}
            named.clear()
            named.update(ordered)  # type: ignore[arg-type]

    def finite(self) -> bool:
        """Whether all sums are finite and all new states."""
        states = (value for keep in self.kept.values() for _, value in keep.items())
        return self.replies.finite() and all(bool(v.sum().isfinite()) for v in states)

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The clients' buffers, averaged by samples."""
        return self._buffers.value()

    @property
    def cohort_mean(self) -> Tensor | None:
        """The mean of the clients' models, where it is watched."""
        if not self._tracked.cohort or not self.replies.count:
            return None
        return self.replies.mean(COHORT, by=q_draws)

    @property
    def last_change(self) -> Tensor | None:
        """Σ_S q_k (x_k − the client's last x_k), where last models are watched."""
        if not self._tracked.last or not self.replies.count:
            return None
        return self.replies.sum(CHANGE, by=q)


class WeightedMean:
    """The mean of some named tensors; whole numbers are rounded."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._like: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, values: dict[str, Tensor], weight: float) -> None:
        """Take in one client's tensors."""
        self._weight += weight
        for name, value in values.items():
            dtype = torch.complex128 if value.is_complex() else accumulator_dtype(value)
            part = value.to(dtype) * weight
            self._sums[name] = self._sums[name] + part if name in self._sums else part
            self._like[name] = value.dtype

    def merge(self, later: WeightedMean) -> None:
        """Take in what was added up elsewhere."""
        self._weight += later._weight
        self._like |= later._like
        for name, part in later._sums.items():
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def value(self) -> dict[str, Tensor]:
        """The mean, in the tensors' own types."""
        means = {}
        for name, total in self._sums.items():
            mean, dtype = total / self._weight, self._like[name]
            whole = not dtype.is_floating_point and not dtype.is_complex
            means[name] = (mean.round() if whole else mean).to(dtype)
        return means
