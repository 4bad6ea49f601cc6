"""The interfaces of engines, and `Job`, what an engine needs to know of a run.

A loop uses only `Engine`; what needs the clients' losses in one place asks for a
`SimulationEngine`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from undrift.core.client_metrics import ClientMetrics
from undrift.core.clients import ClientStates, Roster
from undrift.core.diagnostics import MOVED
from undrift.core.losses import Losses
from undrift.core.messages import CHANGE, COHORT, Assignment, Reply, TrackedModels
from undrift.core.method import Method
from undrift.core.replies import Weight, q, q_draws
from undrift.core.round_result import RoundResult
from undrift.core.uploads import Statistic, UploadChain
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.local.solvers import Local
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError

OwnModel = tuple[int, Tensor, Collection[str]]
"""A client's index in the data, its own model, and the parts of its data to evaluate on."""


class Trainer(ABC):
    """Solves the local problems of a round's clients."""

    job: Job
    strategy: str = "serial"
    """how the engine computes, in a few words, for records and progress"""

    @abstractmethod
    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
        limits: NormLimits | None = None,
    ) -> RoundResult:
        """The sums of the replies of one round.

        `states` is only read: the caller stores the states it accepts. With `diagnose`, replies
        also have what `undrift.core.diagnostics` needs. Replies beyond `limits` are rejected.
        """

    def saved(self) -> dict[str, Any]:
        """What a resumed run needs to compute the same bits, such as the chosen strategy."""
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue as the engine that returned `saved`."""


class Evaluator(ABC):
    """Measures models on the clients' data."""

    @abstractmethod
    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
        clients: ClientMetrics | None = None,
        train_samples: int | None = None,
    ) -> dict[str, float]:
        """Metrics of a model, as `Losses.evaluate` returns them.

        If `clients` is given, the metrics of every client are added to it. Metrics of the training
        data are estimated from `train_samples` of them; None for all.
        """


class Engine(Trainer, Evaluator):
    """What a loop needs: training and evaluation, in this process or at remote sites."""


class SimulationEngine(Engine):
    """An engine that has the clients' losses, so that it can also compute single replies."""

    losses: Losses
    preferred_assignments: int = 1
    """number of assignments that keeps the engine busy; a caller that may choose passes as many"""

    @abstractmethod
    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        """Each client's reply, in the order of the assignments; `states` is only read."""

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
        limits: NormLimits | None = None,
    ) -> RoundResult:
        result = self.job.result(method, round, diagnose, limits)
        result.hold = states.hold
        for reply in self.replies(method, assignments, states, diagnose):
            result.take(reply)
        return result

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
        clients: ClientMetrics | None = None,
        train_samples: int | None = None,
    ) -> dict[str, float]:
        if clients is not None:
            return self.losses.evaluate_clients(x, weights, buffers, parts, clients)
        if train_samples is not None and isinstance(self.losses, ModuleLosses):
            return self.losses.evaluate(x, weights, buffers, parts, train_samples=train_samples)
        return self.losses.evaluate(x, weights, buffers, parts)

    def evaluate_own(
        self, models: Iterable[OwnModel], buffers: Mapping[str, Tensor]
    ) -> Iterator[dict[str, float]]:
        """Metrics of clients' own models, as `Losses.evaluate_own` returns them."""
        for k, x, parts in models:
            yield self.losses.evaluate_own(k, x, buffers, parts)

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        """Σ q_k ∇f_k(x)"""
        return self.losses.total_gradient(x, weights)


def require_simulation(engine: Engine, what: str) -> SimulationEngine:
    """The same engine, typed as `SimulationEngine`; an error that names `what` if it is not one."""
    if not isinstance(engine, SimulationEngine):
        raise UndriftError(
            f"{what} needs the clients' data in one place; in a deployment they are at the sites."
        )
    return engine


@dataclass
class Job:
    """What an engine needs to know of a run, the same in every round."""

    roster: Roster
    local: Local
    seed: int
    tracked: TrackedModels = field(default_factory=TrackedModels)
    uploads: UploadChain = field(default_factory=UploadChain)
    """the upload transforms between `finish` and `fold`"""
    statistic: Statistic | None = None
    """the robust statistic in place of the mean of uploads; None for the mean"""
    attackers: frozenset[Hashable] = frozenset()
    """clients whose replies the loop changes before they are added up"""

    def __post_init__(self) -> None:
        self.local.check(self.roster.position)

    def result(
        self, method: Method, round: int, diagnose: bool, limits: NormLimits | None = None
    ) -> RoundResult:
        """An empty result of a round, to which replies are added."""
        sums = method.sums() | self.tracked_sums(diagnose)
        rate, counts = self.local.rate(round), self.roster.counts
        robust = () if self.statistic is None else tuple(method.sums())
        return RoundResult(
            sums,
            len(self.roster),
            rate,
            self.tracked,
            limits,
            counts,
            self.statistic,
            robust,
            self.attackers,
        )

    def tracked_sums(self, diagnose: bool) -> dict[str, tuple[Weight, ...]]:
        """Vectors that are summed besides the method's uploads, with the weights of the sums."""
        sums: dict[str, tuple[Weight, ...]] = {MOVED: (q_draws,)} if diagnose else {}
        if self.tracked.cohort:
            sums[COHORT] = (q_draws,)
        if self.tracked.last:
            sums[CHANGE] = (q,)
        return sums
