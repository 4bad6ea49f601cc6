"""The interface of an engine, and the job it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from undrift.core.clients import ClientStates, Roster
from undrift.core.diagnostics import MOVED
from undrift.core.losses import Losses
from undrift.core.messages import CHANGE, COHORT, Assignment, Reply, TrackedModels
from undrift.core.method import Method
from undrift.core.replies import Weight, q, q_draws
from undrift.core.round_result import RoundResult
from undrift.core.uploads import UploadChain
from undrift.local.solvers import Local
from undrift.utils.errors import UndriftError

OwnModel = tuple[int, Tensor, Collection[str]]
"""A client's place in the data, its own model, and the parts of its data to look at."""


class Trainer(ABC):
    """Solves the local problems of a round's clients."""

    job: Job
    strategy: str = "serial"
    """how it computes, in a few words"""

    @abstractmethod
    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        """The replies of one round, added up.

        It changes no state: the caller stores the states it accepts. `diagnose` says whether what
        `undrift.core.diagnostics` needs is uploaded as well.
        """

    def saved(self) -> dict[str, Any]:
        """What a resumed run needs to compute the same bits."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue as `saved` says."""


class Evaluator(ABC):
    """Measures models on the clients' data."""

    @abstractmethod
    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
    ) -> dict[str, float]:
        """Metrics of a model, as `Losses.evaluate` gives them."""


class Engine(Trainer, Evaluator):
    """What a loop needs: training and evaluation, wherever the clients are."""


class SimulationEngine(Engine):
    """An engine that has the clients' losses: it can compute single replies and gradients, too.

    `together` is how many assignments it likes to get at once, where there is a choice.
    """

    together: int = 1
    losses: Losses

    @abstractmethod
    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        """Each client's reply, in the order of the assignments. It changes no state."""

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        result = self.job.result(method, round, diagnose)
        for reply in self.replies(method, assignments, states, diagnose):
            result.take(reply)
        return result

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
    ) -> dict[str, float]:
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


def require_simulation(engine: Engine, what: str) -> SimulationEngine:
    """The same engine, if it has the clients' losses; an error that names what needs them."""
    if not isinstance(engine, SimulationEngine):
        raise UndriftError(f"{what} needs the clients' data in one place, not at their sites.")
    return engine


@dataclass
class Job:
    """What stays the same in every round: the clients, their local work, the seed."""

    roster: Roster
    local: Local
    seed: int
    tracked: TrackedModels = field(default_factory=TrackedModels)
    uploads: UploadChain = field(default_factory=UploadChain)
    """what happens to every upload between `finish` and `fold`"""

    def __post_init__(self) -> None:
        self.local.check(self.roster.position)

    def result(self, method: Method, round: int, diagnose: bool) -> RoundResult:
        """An empty result of a round, to take in replies."""
        sums = method.sums() | self.tracked_sums(diagnose)
        return RoundResult(sums, len(self.roster), self.local.rate(round), self.tracked)

    def tracked_sums(self, diagnose: bool) -> dict[str, tuple[Weight, ...]]:
        """What is added up besides the method's own uploads."""
        sums: dict[str, tuple[Weight, ...]] = {MOVED: (q_draws,)} if diagnose else {}
        if self.tracked.cohort:
            sums[COHORT] = (q_draws,)
        if self.tracked.last:
            sums[CHANGE] = (q,)
        return sums
