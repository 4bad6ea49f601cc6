"""What an engine does: clients' work, reply by reply or added up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift.amounts import Unfinished
from undrift.clients import ClientStates, Roster
from undrift.diagnostics import MOVED
from undrift.errors import UndriftError, require, require_whole
from undrift.keys import keys
from undrift.losses import Losses
from undrift.methods.base import Method
from undrift.problem import Client, Download, Keep, Named, Upload
from undrift.replies import Replies, Weight, accumulator_dtype, q, q_draws
from undrift.sampling import Cohort
from undrift.solvers import Local, Solver, Work, call, require_known

Limit = Unfinished | Mapping[Hashable, int | None] | Callable[[Hashable, int], int | None]
"""How much a client manages in a round, in the unit of its local work (None: everything): a share
of the cohort that does not finish, by client id, or a function of (client id, round), with rounds
counted from 0."""

Within = Callable[[Client, Solver, int], int]
"""How many of so many steps a client's device manages in time."""

LAST = "@last"
"""The name under which a client's last model is kept, when it is watched."""
COHORT, CHANGE = "@cohort", "@change"


@dataclass(frozen=True)
class Watch:
    """Which models are followed besides the server's."""

    cohort: bool = False
    """the mean of the cohort's models"""
    last: bool = False
    """the last model of every client"""


@dataclass(frozen=True)
class Errand:
    """A client's work, with what was sent to it."""

    client: Client
    work: Work
    download: Download
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Reply:
    """What one client sent back, and what its work came to."""

    client: Client
    upload: Upload
    keep: Keep
    """its new state, to be stored when the reply is accepted"""
    buffers: dict[str, Tensor]
    steps: int
    evaluations: int
    complete: int
    """whether all of it was done, or how many clients of several did all"""
    down: Mapping[str, int]
    up: Mapping[str, int]
    """bytes, by tensor"""
    wrong: str | None = None
    """why it cannot be used"""


class RoundResult:
    """What came of the work of several clients, added up as their replies are taken in."""

    def __init__(self, method: Method, job: Job, round: int, diagnose: bool):
        self._watch = job.watch
        sums = method.sums() | job.watched_sums(diagnose)
        self.replies = Replies(sums, clients=len(job.roster), rate=job.local.rate(round))
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
        if not self._watch.cohort or not self.replies.count:
            return None
        return self.replies.mean(COHORT, by=q_draws)

    @property
    def last_change(self) -> Tensor | None:
        """Σ_S q_k (x_k − the client's last x_k), where last models are watched."""
        if not self._watch.last or not self.replies.count:
            return None
        return self.replies.sum(CHANGE, by=q)


OwnModel = tuple[int, Tensor, Collection[str]]
"""A client's place in the data, its own model, and the parts of its data to look at."""


class Engine(ABC):
    """Solves the local problems of clients.

    `together` is how many errands it likes to be given at once, where there is a choice.
    """

    together: int = 1
    strategy: str = "serial"
    """how it works, in a few words"""
    job: Job
    losses: Losses

    def saved(self) -> dict[str, Any]:
        """What a run that goes on later needs, to compute the same bits."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on as `saved` says."""

    @abstractmethod
    def replies(
        self, method: Method, errands: Iterable[Errand], states: ClientStates, diagnose: bool = True
    ) -> Iterator[Reply]:
        """Each client's reply, in the order of the errands. It changes no state.

        `diagnose` says whether what `undrift.diagnostics` needs is uploaded as well.
        """

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
    ) -> dict[str, float]:
        """Metrics of a model, as `Losses.evaluate` gives them."""
        return self.losses.evaluate(x, weights, buffers, parts)

    def evaluate_own(
        self, models: Iterable[OwnModel], buffers: Mapping[str, Tensor]
    ) -> Iterator[dict[str, float]]:
        """Metrics of clients' own models, as `Losses.evaluate_own` gives them."""
        for k, x, parts in models:
            yield self.losses.evaluate_own(k, x, buffers, parts)

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        """Σ q_k ∇f_k(x)"""
        return self.losses.total_gradient(x, weights)

    def run(
        self,
        method: Method,
        errands: Iterable[Errand],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        """The replies of one round, added up. The caller stores the states it accepts."""
        result = RoundResult(method, self.job, round, diagnose)
        for reply in self.replies(method, errands, states, diagnose):
            result.take(reply)
        return result


@dataclass
class Job:
    """What stays the same in every round: whose losses, which local work, which draws."""

    roster: Roster
    local: Local
    seed: int
    limit: Limit | None = None
    watch: Watch = Watch()

    def __post_init__(self) -> None:
        self.local.check(self.roster.position)
        if isinstance(self.limit, Mapping):
            require_known("limit", self.limit, self.roster.position)

    def work(
        self,
        method: Method,
        cohort: Cohort,
        round: int,
        turn: int | None = None,
        within: Within | None = None,
    ) -> dict[Client, Work]:
        """What each client of a cohort does, as its local work, its limit and the method say.

        A client that manages nothing is left out. `within` says what its device manages in time.
        """
        turn = round if turn is None else turn
        asked = {id: self.local.of(id).amount(id, round, self.seed, turn) for id in cohort}
        limits = self._limits(asked, round)
        clients, full, managed = [], [], []
        for id, draws in cohort.items():
            client, solver = self.roster.client(id, draws), self.local.of(id)
            samples = int(client.samples)
            whole = steps = solver.steps_of(asked[id], samples)
            amount = limits.get(id)
            if amount is not None:
                steps = min(steps, solver.steps_of(amount, samples)) if amount else 0
            if within is not None and steps:
                steps = min(steps, within(client, solver, steps))
            if steps:
                clients.append(client)
                full.append(whole)
                managed.append(steps)
        if not clients:
            return {}
        rate, positions = self.local.rate(round), self.roster.position
        hashed = self.roster.hashes[[positions[client.id] for client in clients]]
        own = keys(self.seed, "batches", turn, hashed).tolist()
        return {
            client: Work(
                client=client.id,
                round=round,
                turn=turn,
                steps=steps,
                expected=whole if steps == could else steps,
                rate=rate,
                key=key,
            )
            for client, steps, could, whole, key in zip(
                clients, method.steps(managed), managed, full, own, strict=True
            )
        }

    def _limits(self, asked: Mapping[Hashable, int], round: int) -> Mapping[Hashable, int | None]:
        """How much the clients manage of what they are asked for, where it is less."""
        limit = self.limit
        if limit is None or isinstance(limit, Mapping):
            return limit or {}
        if isinstance(limit, Unfinished):
            return limit.managed(asked, round, self.seed)
        found = {id: call("limit", limit, id, round) for id in asked}
        for id, amount in found.items():
            if amount is not None:
                require_whole(f"The limit of client {id!r} in round {round + 1}", amount, 0)
        return found

    def watched_sums(self, diagnose: bool) -> dict[str, tuple[Weight, ...]]:
        """What is added up besides the method's own uploads."""
        sums: dict[str, tuple[Weight, ...]] = {MOVED: (q_draws,)} if diagnose else {}
        if self.watch.cohort:
            sums[COHORT] = (q_draws,)
        if self.watch.last:
            sums[CHANGE] = (q,)
        return sums


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


def check_declared(method: Method, finished: object, like: Tensor) -> None:
    """Refuse a method that uploads or keeps something else than it declares."""
    pair = finished if isinstance(finished, tuple) and len(finished) == 2 else (None, None)
    upload, keep = pair
    if not isinstance(upload, Upload) or not isinstance(keep, Keep):
        raise UndriftError(
            f"{method.name}'s finish must return an Upload and a Keep (Keep() for nothing), not "
            f"{finished!r}."
        )
    kept, declared = {name for name, _ in keep.items()} - {LAST}, set(method.kept())
    require(
        kept == declared,
        f"{method.name} declares that clients keep {_names(declared)}, but finish returned "
        f"{_names(kept)}.",
    )
    for name, value in upload.items():
        require(
            name in method.uploads or torch.as_tensor(value).numel() == 1 or like.numel() == 1,
            f"{method.name} uploads the vector {name!r}, but does not declare in its uploads how "
            f"the server adds it up.",
        )


def fault(method: Method, upload: Upload, keep: Keep, like: Tensor) -> str | None:
    """What is wrong with a client's reply, or None."""
    for values in (upload, keep):
        for name, value in values.items():
            value = torch.as_tensor(value)
            if name in method.uploads and values is upload and value.shape != like.shape:
                return f"{name} has shape {list(value.shape)} instead of {list(like.shape)}"
            if not bool(torch.isfinite(value).all()):
                return f"{name} is not finite (NaN or Inf)"
    return None


def fault_of_buffers(buffers: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the statistics of a client's model, or None."""
    for name, value in buffers.items():
        if not bool(torch.isfinite(value).all()):
            return f"buffer {name} is not finite (NaN or Inf)"
    return None


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def bytes_of(values: Named) -> dict[str, int]:
    """The size of what travels, by name: vectors as they are, numbers in eight bytes."""
    return {
        name: value.numel() * value.element_size()
        if isinstance(value, Tensor) and value.numel() > 1
        else 8
        for name, value in values.items()
    }


def damaged(upload: Upload) -> Upload:
    """What arrives of an upload that a device damaged."""
    return upload.replace(
        **{
            name: torch.full_like(value, torch.nan)
            if isinstance(value, Tensor) and value.is_floating_point()
            else float("nan")
            for name, value in upload.items()
        }
    )


def statistics(buffers: Mapping[str, Tensor]) -> dict[str, int]:
    """The bytes of the model's buffers, which travel both ways."""
    total = sum(value.numel() * value.element_size() for value in buffers.values())
    return {"buffers": total} if total else {}
