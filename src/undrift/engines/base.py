"""What an engine does: a round's work of a cohort, added up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from undrift.clients import ClientStates, Roster
from undrift.errors import UndriftError, require, require_whole
from undrift.keys import generator
from undrift.methods.base import Method
from undrift.problem import Client, Download, Keep, Named, Upload
from undrift.replies import Replies
from undrift.sampling import Cohort
from undrift.solvers import Local, Work, call, require_known

Limit = Mapping[Hashable, int | None] | Callable[[Hashable, int], int | None]
"""How much a client manages in a round, in the unit of its local work (None: everything): by its
id, or as a function of (client id, round), with rounds counted from 0."""

LAST = "@last"
"""The name under which a client's last model is kept, when it is watched."""


@dataclass(frozen=True)
class Watch:
    """Which models are followed besides the server's."""

    cohort: bool = False
    """the mean of the cohort's models"""
    last: bool = False
    """the last model of every client"""


@dataclass
class RoundResult:
    """What came of a round's local work."""

    replies: Replies
    kept: dict[Hashable, Keep] = field(default_factory=dict)
    """the new states, to be stored when the round is accepted"""
    rejected: dict[Hashable, str] = field(default_factory=dict)
    """clients whose reply was unusable, with the reason"""
    absent: list[Hashable] = field(default_factory=list)
    """clients that managed no work, and did not reply"""
    up: Counter[str] = field(default_factory=Counter)
    """bytes uploaded, by tensor"""
    down: Counter[str] = field(default_factory=Counter)
    """bytes downloaded, by tensor"""
    steps: int = 0
    evaluations: int = 0
    """gradients of single samples that were computed"""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """the cohort's buffers, averaged by samples"""
    cohort_mean: Tensor | None = None
    last_change: Tensor | None = None
    """Σ_S q_k (x_k − the client's last x_k)"""


class Engine(ABC):
    """Solves the local problems of a cohort."""

    @abstractmethod
    def run(
        self,
        method: Method,
        download: Download,
        cohort: Cohort,
        states: ClientStates,
        buffers: Mapping[str, Tensor],
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        """The work of one round. It changes no state: the caller stores what it accepts.

        `diagnose` says whether what `undrift.diagnostics` needs is added up as well.
        """


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

    def work(self, method: Method, cohort: Cohort, round: int) -> dict[Client, Work]:
        """What each client of a cohort does, as its local work, its limit and the method say.

        A client that manages nothing is left out.
        """
        full, managed = {}, {}
        for id, draws in cohort.items():
            client, solver = self.roster.client(id, draws), self.local.of(id)
            samples = int(client.samples)
            full[client] = solver.planned(id, samples, round)
            amount = self._limit_of(id, round)
            if amount is None:
                managed[client] = full[client]
            elif require_whole(f"The limit of client {id!r} in round {round + 1}", amount, 0):
                managed[client] = solver.limited(int(amount), samples, full[client])
        if not managed:
            return {}
        rate = self.local.rate(round)
        return {
            client: Work(
                client=client.id,
                round=round,
                steps=steps,
                expected=full[client] if steps == managed[client] else steps,
                rate=rate,
                rng=partial(generator, self.seed, "batches", round, client.id),
            )
            for client, steps in zip(managed, method.steps([*managed.values()]), strict=True)
        }

    def _limit_of(self, client: Hashable, round: int) -> int | None:
        if self.limit is None or isinstance(self.limit, Mapping):
            return (self.limit or {}).get(client)
        return call("limit", self.limit, client, round)


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
