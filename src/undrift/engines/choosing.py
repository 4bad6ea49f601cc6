"""The base of engines that choose their strategy when they first see a round's work.

"auto" chooses by a rule (`auto.py`), "tuned" by timing (`tuned.py`). Loops use both like any other
engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from undrift.core.clients import ClientStates
from undrift.core.losses import Losses
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.round_result import RoundResult
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.strategies import SERIAL, Strategy
from undrift.nets.module_losses import ModuleLosses

DEFAULT_CHUNK = 8
"""Clients per thread that are asked for before a strategy is chosen."""


class ChoosingEngine(SimulationEngine):
    """Chooses a strategy on the first round's work and keeps it, also in resumed runs.

    The choice affects only the last bits of results.

    Parameters
    ----------
    losses, job
        as for every engine
    threads
        how many threads may be used
    memory
        the most megabytes for the models of clients that train
    chunk
        how many clients train at once, if the user chose that
    """

    def __init__(
        self,
        losses: Losses,
        job: Job,
        threads: int = 1,
        memory: float = 1000,
        chunk: int | None = None,
    ):
        self.losses = losses
        self.job = job
        # The limits are part of a key of stored choices, where 1000 and 1000.0 must be the same.
        self._limits = threads, float(memory), chunk
        self._chosen: Strategy | None = None
        self._engine: SimulationEngine | None = None
        self._reason = ""
        if not isinstance(losses, ModuleLosses):
            self._use(SERIAL)

    @abstractmethod
    def _choose(
        self,
        losses: ModuleLosses,
        method: Method,
        assignments: list[Assignment],
        states: ClientStates,
    ) -> tuple[Strategy, str]:
        """The strategy for this work, and why clients do not train many at once if they do not."""

    @property
    def strategy(self) -> str:  # type: ignore[override]
        """The chosen strategy in a few words; empty until there is one."""
        if self._engine is None:
            return ""
        return self._engine.strategy + (f" ({self._reason})" if self._reason else "")

    @property
    def preferred_assignments(self) -> int:  # type: ignore[override]
        """How many assignments the engine prefers to get at once."""
        threads, _, chunk = self._limits
        if self._engine is None:
            return (chunk or DEFAULT_CHUNK) * threads
        return self._engine.preferred_assignments

    def saved(self) -> dict[str, Any]:
        if self._chosen is None:
            return {}
        assert self._engine is not None
        return {**self._chosen.as_dict(), "reason": self._reason, **self._engine.saved()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        if saved:
            self._use(Strategy.from_dict(saved))
            self._reason = saved.get("reason", "")
            assert self._engine is not None
            self._engine.restore(saved)

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
        limits: NormLimits | None = None,
    ) -> RoundResult:
        assignments = list(assignments)
        engine = self.chosen_engine(method, assignments, states)
        return engine.run(method, assignments, states, round, diagnose, limits)

    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        assignments = list(assignments)
        engine = self.chosen_engine(method, assignments, states)
        return engine.replies(method, assignments, states, diagnose)

    def chosen_engine(
        self, method: Method, assignments: list[Assignment], states: ClientStates
    ) -> SimulationEngine:
        """The engine of the chosen strategy; if there is none yet, choose it on this work."""
        if self._engine is None and assignments:
            assert isinstance(self.losses, ModuleLosses)
            chosen, self._reason = self._choose(self.losses, method, assignments, states)
            self._use(chosen)
        return self._engine or SERIAL.engine(self.losses, self.job)

    def _use(self, strategy: Strategy) -> None:
        self._chosen = strategy
        self._engine = strategy.engine(self.losses, self.job)
