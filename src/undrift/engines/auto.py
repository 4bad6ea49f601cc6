"""The "auto" engine: times the candidate strategies on the first round's work, keeps the fastest.

The loops use it like any other engine; `strategy_cache` remembers its choice.
"""

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
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.engines import strategy_cache
from undrift.engines.base import Engine, Job, SimulationEngine
from undrift.engines.strategies import SERIAL, Strategy, candidates
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError

TRIAL_SECONDS = 0.3
"""Length of the work on which a strategy is timed."""
REPEATS = 3
"""How often a strategy is timed; its shortest time counts."""
ENOUGH_SECONDS = 5.0
"""After this time no strategy is timed again: a long trial is precise at the first time."""
HOPELESS_RATIO = 2.0
"""A strategy that takes this many times as long as the fastest is not timed again."""
DEFAULT_CHUNK = 8
"""Clients per thread that are asked for before a strategy is chosen."""


class AutoEngine(SimulationEngine):
    """Chooses a strategy by timing the candidates on the first round's work.

    The choice is stored in the user's cache, by machine, model and shapes, and in the run's own
    store, so that a resumed run keeps it. It affects only the last bits of results.

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
        # The limits are part of the cache's key, where 1000 and 1000.0 must be the same.
        self._limits = threads, float(memory), chunk
        self._chosen: Strategy | None = None
        self._engine: SimulationEngine | None = None
        self._reason = ""
        if not isinstance(losses, ModuleLosses):
            self._use(SERIAL)

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
        key = strategy_cache.cache_key(self.losses, self.job.local, len(assignments), self._limits)
        chosen = strategy_cache.lookup(key)
        if chosen not in found.strategies:
            fastest = self._fastest(found.strategies, method, assignments, states)
            chosen = strategy_cache.store(key, fastest, found.strategies)
        self._use(chosen)

    def _fastest(
        self,
        strategies: list[Strategy],
        method: Method,
        assignments: list[Assignment],
        states: ClientStates,
    ) -> Strategy:
        """Time every strategy on the work, or on as much of it as time allows.

        A strategy under which the model fails is dropped. Trials change no state: clients' states
        are only read, and random numbers are functions of keys.
        """
        if len(strategies) == 1:
            return strategies[0]
        engines = {each: each.engine(self.losses, self.job) for each in strategies}
        best = dict.fromkeys(strategies, float("inf"))
        trial: list[Assignment] | None = None
        began = time.perf_counter()
        for turn in range(REPEATS):
            if turn and time.perf_counter() - began > ENOUGH_SECONDS:
                break
            for strategy in list(best):
                if turn and best[strategy] > HOPELESS_RATIO * min(best.values()):
                    continue
                engine = engines[strategy]
                try:
                    if trial is None:
                        together = max(each.chunk * each.threads for each in strategies)
                        trial = self._trial(engine, method, assignments, states, together)
                    if not turn:
                        # Warm up: allocations and copies of the first call must not be timed.
                        warm_up = [replace(e, work=replace(e.work, steps=1)) for e in trial[:2]]
                        self._seconds(engine, method, warm_up, states)
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
        """Work for a trial of about `TRIAL_SECONDS`: fewer steps first, then fewer clients.

        It keeps at least `together` clients, the most that any strategy trains at once. With
        fewer, threads would be idle, and strategies with large chunks would seem slow.
        """
        threads, _, _ = self._limits
        some = [replace(e, work=replace(e.work, steps=1)) for e in assignments[: 2 * threads]]
        self._seconds(engine, method, some, states)  # warm up
        step_seconds = self._seconds(engine, method, some, states) / len(some)
        all_steps = sum(assignment.work.steps for assignment in assignments)
        share = TRIAL_SECONDS / (step_seconds * all_steps)
        if share >= 1:
            return assignments
        number = max(2 * threads, together, int(TRIAL_SECONDS / step_seconds))
        return [
            replace(e, work=replace(e.work, steps=max(1, int(share * e.work.steps))))
            for e in assignments[:number]
        ]

    def _seconds(
        self, engine: Engine, method: Method, assignments: list[Assignment], states: ClientStates
    ) -> float:
        """How long an engine takes for some assignments."""
        began = time.perf_counter()
        engine.run(method, assignments, states, assignments[0].work.round, diagnose=False)
        return time.perf_counter() - began
