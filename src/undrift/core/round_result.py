"""`RoundResult` sums the replies of a round, so that a cohort's uploads are never all in memory.

Engines fill one per round (or one per chunk or block, which they merge); loops read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from undrift.core.messages import CHANGE, COHORT, Reply, TrackedModels
from undrift.core.problem import Client, Keep
from undrift.core.replies import Replies, Weight, accumulator_dtype, q, q_draws
from undrift.core.uploads.norm_bounds import NormLimits, Norms
from undrift.core.uploads.statistic import Statistic


class RoundResult:
    """Sums of the replies of several clients, with their new states, failures and costs.

    Parameters
    ----------
    sums, clients, rate
        as in `Replies`
    tracked
        which models are tracked besides the server's
    limits
        the largest allowed norms of uploads; None for no bound
    counts
        the numbers of samples by which buffers are averaged, if they are not the clients' own
    statistic, robust
        as in `Replies`
    attackers
        clients whose replies are put aside, unchecked, until the attack has changed them
    """

    def __init__(
        self,
        sums: Mapping[str, tuple[Weight, ...]],
        clients: int,
        rate: float,
        tracked: TrackedModels,
        limits: NormLimits | None = None,
        counts: Mapping[Hashable, float] | None = None,
        statistic: Statistic | None = None,
        robust: Collection[str] = (),
        attackers: Collection[Hashable] = frozenset(),
    ):
        self._attackers = attackers
        self.held: list[Reply] = []
        """the replies of attackers, as they would be if they were honest"""
        self._tracked = tracked
        self._limits = limits
        self._counts = counts
        self.norms: dict[Hashable, Norms] = {}
        """the norms of all finite uploads, also of rejected ones; empty without limits"""
        self.norm_steps: dict[Hashable, int] = {}
        """the steps of the clients in `norms`"""
        self.replies = Replies(sums, clients, rate, statistic, robust)
        self.kept: dict[Hashable, Keep] = {}
        """the clients' new states; the loop stores them if it accepts the round"""
        self.hold: Callable[[Keep], Keep] = _unchanged
        """where new states wait for the end of the round: `ClientStates.hold` of the run"""
        self.states_placed = False
        """whether new states already are where they wait, so that `merge` need not hold them"""
        self.rejected: dict[Hashable, str] = {}
        """clients whose replies were rejected, with the reason"""
        self.lost: dict[Hashable, str] = {}
        """clients that did not reply, with the reason"""
        self.up: Counter[str] = Counter()
        self.down: Counter[str] = Counter()
        """bytes that travelled, by tensor"""
        self.steps = self.wasted_steps = 0
        self.evaluations = self.wasted_evaluations = 0
        """gradients of single samples that were computed, for used and for rejected replies"""
        self.partial = 0
        """number of used replies with fewer steps than expected"""
        self._buffers = WeightedMean()

    def take(self, reply: Reply) -> None:
        """Add one client's reply; a wrong one is recorded as rejected and not summed."""
        if reply.client.id in self._attackers:
            self.held.append(reply)
            return
        reply = self._within_limits(reply)
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
        id = reply.client.id
        count = float(reply.client.samples) if self._counts is None else self._counts[id]
        self._buffers.add(reply.buffers, count)
        self.replies.add(reply.client, reply.upload)
        self.kept[id] = self.hold(reply.keep)

    def _within_limits(self, reply: Reply) -> Reply:
        """The reply, marked as wrong if a norm of its upload is over its bound."""
        if self._limits is None or reply.wrong is not None:
            return reply
        norms = self._limits.norms(reply.upload, reply.buffers)
        self.norms[reply.client.id] = norms
        self.norm_steps[reply.client.id] = reply.steps
        return replace(reply, wrong=self._limits.fault(norms, reply.steps))

    def allows(self, reply: Reply, clients: Sequence[Client], steps: Sequence[int]) -> bool:
        """Whether no norm of a stacked reply without buffers, `[C, …]`, is over its bound."""
        if self._limits is None:
            return True
        rows = self._limits.row_norms(reply.upload, len(clients))
        for client, norms, own in zip(clients, rows, steps, strict=True):
            self.norms[client.id] = norms
            self.norm_steps[client.id] = own
        faults = map(self._limits.fault, rows, steps)
        return not any(fault is not None for fault in faults)

    def take_several(
        self, reply: Reply, clients: Sequence[Client], keeps: Sequence[Keep] = ()
    ) -> None:
        """Add the stacked reply, `[C, …]`, of several clients, none of which is wrong.

        `keeps` are their new states if the reply does not have them stacked.
        """
        self.down.update(reply.down)
        self.up.update(reply.up)
        self.steps += reply.steps
        self.evaluations += reply.evaluations
        self.partial += len(clients) - reply.complete
        self.replies.add_several(clients, reply.client, reply.upload)
        if keeps:
            self.kept |= {client.id: keep for client, keep in zip(clients, keeps, strict=True)}
            return
        if not any(reply.keep.items()):
            self.kept |= dict.fromkeys((client.id for client in clients), reply.keep)
            return
        # In memory of their own: views would keep the vectors of all clients of a chunk.
        rows = {
            name: torch._foreach_mul(value.unbind(), 1.0)
            if isinstance(value, Tensor) and value.ndim
            else [value] * len(clients)
            for name, value in reply.keep.items()
        }
        for client, *own in zip(clients, *rows.values(), strict=True):
            self.kept[client.id] = Keep(**dict(zip(rows, own, strict=True)))

    def take_summed(
        self,
        replies: Sequence[Reply],
        sums: Mapping[tuple[str, str], Tensor],
        dtype: torch.dtype,
    ) -> None:
        """Add replies without vectors, and the sums of their vectors as in `Replies.add_sums`."""
        for reply in replies:
            self.down.update(reply.down)
            self.up.update(reply.up)
            self.steps += reply.steps
            self.evaluations += reply.evaluations
            self.partial += not reply.complete
            self.kept[reply.client.id] = reply.keep
            self.replies.add(reply.client, reply.upload)
        self.replies.add_sums(sums, dtype)

    def merge(self, later: RoundResult) -> list[Tensor]:
        """Add the result of further clients; returns its vectors that nobody needs any more."""
        self.held += later.held
        self.down.update(later.down)
        self.up.update(later.up)
        self.steps += later.steps
        self.evaluations += later.evaluations
        self.wasted_steps += later.wasted_steps
        self.wasted_evaluations += later.wasted_evaluations
        self.partial += later.partial
        self.rejected |= later.rejected
        self.lost |= later.lost
        if later.states_placed:
            self.kept |= later.kept
        else:
            self.kept |= {client: self.hold(keep) for client, keep in later.kept.items()}
        self.norms |= later.norms
        self.norm_steps |= later.norm_steps
        self._buffers.merge(later._buffers)
        return self.replies.merge(later.replies)

    def make_own(self, sums: bool) -> None:
        """Copy the new states, and the sums if asked, out of memory that others own.

        Ray's results are views of its shared memory, which is freed only when no view is left.
        """
        self.kept = {
            client: Keep(**{n: v.clone() if isinstance(v, Tensor) else v for n, v in keep.items()})
            for client, keep in self.kept.items()
        }
        self.replies.make_vectors_own()
        if sums:
            self.replies.make_own()

    def arrange(self, clients: Sequence[Hashable]) -> None:
        """Order kept and rejected clients as given, so that no order of computation shows."""
        for named in (self.kept, self.rejected, self.norms, self.norm_steps):
            ordered = {client: named[client] for client in clients if client in named}
            named.clear()
            named.update(ordered)  # type: ignore[arg-type]

    def finite(self) -> bool:
        """Whether all sums and all new states are finite."""
        states = [value for keep in self.kept.values() for _, value in keep.items()]
        if not self.replies.finite():
            return False
        # Norms of all states in one call: a NaN or infinity in a state is one in its norm.
        return not states or bool(torch.stack(torch._foreach_norm(states, 1)).isfinite().all())

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The clients' buffers, averaged with the numbers of samples as weights."""
        return self._buffers.value()

    @property
    def cohort_mean(self) -> Tensor | None:
        """The mean of the clients' models, weighted by q_k times draws; None if not tracked."""
        if not self._tracked.cohort or not self.replies.count:
            return None
        return self.replies.mean(COHORT, by=q_draws)

    @property
    def last_change(self) -> Tensor | None:
        """Σ q_k (x_k − the client's previous x_k) over the cohort; None if not tracked."""
        if not self._tracked.last or not self.replies.count:
            return None
        return self.replies.sum(CHANGE, by=q)


def _unchanged(keep: Keep) -> Keep:
    return keep


class WeightedMean:
    """The weighted mean of named tensors; means of integer tensors are rounded."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._like: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, values: dict[str, Tensor], weight: float) -> None:
        """Add one client's tensors."""
        self._weight += weight
        for name, value in values.items():
            dtype = torch.complex128 if value.is_complex() else accumulator_dtype(value)
            part = value.to(dtype) * weight
            self._sums[name] = self._sums[name] + part if name in self._sums else part
            self._like[name] = value.dtype

    def merge(self, later: WeightedMean) -> None:
        """Add the sums of another mean."""
        self._weight += later._weight
        self._like |= later._like
        for name, part in later._sums.items():
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def value(self) -> dict[str, Tensor]:
        """The means, each in the type of its tensors."""
        means = {}
        for name, total in self._sums.items():
            mean, dtype = total / self._weight, self._like[name]
            whole = not dtype.is_floating_point and not dtype.is_complex
            means[name] = (mean.round() if whole else mean).to(dtype)
        return means
