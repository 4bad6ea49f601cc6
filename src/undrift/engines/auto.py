"""Times the ways to compute on the first round's work, and goes on with the best."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from undrift.core.clients import ClientStates
from undrift.core.losses import Losses
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.round_result import RoundResult
from undrift.engines.base import Engine, Job, SimulationEngine
from undrift.engines.choices import question, recall, remember
from undrift.engines.strategies import SERIAL, Strategy, candidates
from undrift.nets.modules import ModuleLosses
from undrift.utils.errors import UndriftError

TRIAL = 0.3
"""Seconds of work on which a strategy is timed."""
REPEATS = 3
ENOUGH = 5.0
"""Seconds after which nothing is timed again: long trials tell at the first time."""
HOPELESS = 2.0
"""A strategy that takes so many times as long as the best is not timed again."""


class AutoEngine(SimulationEngine):
    """Chooses a strategy on the first round's work, by time.

    The choice is remembered in the user's cache by machine, model and shapes, and by a run that is
    kept. It changes results in their last bits only.

    Parameters
    ----------
    losses, job
        as for every engine
    threads
        how many may be used
    memory
        the most megabytes for models at work
    chunk
        how many clients are to work at once, if that is given
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
        self._limits = threads, float(memory), chunk  # as one number: 1000 is 1000.0
        self._chosen: Strategy | None = None
        self._engine: SimulationEngine | None = None
        self._reason = ""
        if not isinstance(losses, ModuleLosses):
            self._use(SERIAL)

    @property
    def strategy(self) -> str:  # type: ignore[override]
        """How it works, in a few words, once it is chosen."""
        if self._engine is None:
            return ""
        return self._engine.strategy + (f" ({self._reason})" if self._reason else "")

    @property
    def preferred_assignments(self) -> int:  # type: ignore[override]
        """How many errands it likes to be given at once."""
        threads, _, chunk = self._limits
        return (
            (chunk or 8) * threads if self._engine is None else self._engine.preferred_assignments
        )

    def saved(self) -> dict[str, Any]:
        if self._chosen is None:
            return {}
        return {**self._chosen.as_dict(), "reason": self._reason}

    def restore(self, saved: Mapping[str, Any]) -> None:
        if saved:
            self._use(Strategy.from_dict(saved))
            self._reason = saved.get("reason", "")

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        assignments = list(assignments)
        return self.settled(method, assignments, states).run(
            method, assignments, states, round, diagnose
        )

    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        assignments = list(assignments)
        return self.settled(method, assignments, states).replies(
            method, assignments, states, diagnose
        )

    def settled(
        self, method: Method, assignments: list[Assignment], states: ClientStates
    ) -> SimulationEngine:
        """The engine that was chosen, or is chosen now, on this work."""
        if self._engine is None and assignments:
            self._choose(method, assignments, states)
        return self._engine or SERIAL.engine(self.losses, self.job)

    def _use(self, strategy: Strategy) -> None:
        self._chosen = strategy
        self._engine = strategy.engine(self.losses, self.job)

    def _choose(self, method: Method, assignments: list[Assignment], states: ClientStates) -> None:
        assert isinstance(self.losses, ModuleLosses)
        threads, memory, chunk = self._limits
        found = candidates(self.losses, len(assignments), threads, memory, chunk)
        self._reason = found.reason
        name = question(self.losses, self.job.local, len(assignments), self._limits)
        chosen = recall(name)
        if chosen not in found.strategies:
            fastest = self._fastest(found.strategies, method, assignments, states)
            chosen = remember(name, fastest, found.strategies)
        self._use(chosen)

    def _fastest(
        self,
        strategies: list[Strategy],
        method: Method,
        assignments: list[Assignment],
        states: ClientStates,
    ) -> Strategy:
        """Time every strategy on the work, or on as much of it as time allows.

        One that the model does not bear is left out.
        """
        if len(strategies) == 1:
            return strategies[0]
        engines = {each: each.engine(self.losses, self.job) for each in strategies}
        best = dict.fromkeys(strategies, float("inf"))
        trial: list[Assignment] | None = None
        began = time.perf_counter()
        for turn in range(REPEATS):
            if turn and time.perf_counter() - began > ENOUGH:
                break
            for strategy in list(best):
                if turn and best[strategy] > HOPELESS * min(best.values()):
                    continue
                engine = engines[strategy]
                try:
                    if trial is None:
                        together = max(each.chunk * each.threads for each in strategies)
                        trial = self._trial(engine, method, assignments, states, together)
                    if not turn:  # what is only done once is not counted
                        first = [replace(e, work=replace(e.work, steps=1)) for e in trial[:2]]
                        self._seconds(engine, method, first, states)
                    seconds = self._seconds(engine, method, trial, states)
                except UndriftError:
                    del best[strategy]
                    if not best:
                        raise
                else:
                    best[strategy] = min(best[strategy], seconds)
        return min(best, key=lambda strategy: best[strategy])

    def _trial(
        self,
        engine: Engine,
        method: Method,
        assignments: list[Assignment],
        states: ClientStates,
        together: int,
    ) -> list[Assignment]:
        """The errands, or fewer steps of them, or fewer of them, for a trial that is not long.

        There are as many as may work together: with fewer, threads would stand idle for want of
        clients, and many at once would seem slow.
        """
        threads, _, _ = self._limits
        some = [replace(e, work=replace(e.work, steps=1)) for e in assignments[: 2 * threads]]
        self._seconds(engine, method, some, states)
        step = self._seconds(engine, method, some, states) / len(some)
        share = TRIAL / (step * sum(assignment.work.steps for assignment in assignments))
        if share >= 1:
            return assignments
        number = max(2 * threads, together, int(TRIAL / step))
        return [
            replace(e, work=replace(e.work, steps=max(1, int(share * e.work.steps))))
            for e in assignments[:number]
        ]

    def _seconds(
        self, engine: Engine, method: Method, assignments: list[Assignment], states: ClientStates
    ) -> float:
        began = time.perf_counter()
        engine.run(method, assignments, states, assignments[0].work.round, diagnose=False)
        return time.perf_counter() - began
