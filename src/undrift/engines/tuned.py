"""The "tuned" engine: times the candidate strategies on the first round's work, keeps the fastest.

`strategy_cache` remembers the choice with how noisy its timing was; a noisy one is timed again by
the next process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from undrift.core.clients import ClientStates
from undrift.core.messages import Assignment
from undrift.core.method import Method
from undrift.engines import strategy_cache
from undrift.engines.base import Engine
from undrift.engines.choosing import ChoosingEngine
from undrift.engines.strategies import Strategy, candidates
from undrift.engines.strategy_cache import Choice
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError

TRIAL_SECONDS = 0.3
"""Length of the work on which a strategy is timed."""
REPEATS = 3
"""How often a strategy is timed; its shortest time counts."""
ENOUGH_SECONDS = 5.0
"""After this time no strategy is timed a third time: a long trial is precise sooner."""
HOPELESS_RATIO = 2.0
"""A strategy that takes this many times as long as the fastest is not timed again."""


class TunedEngine(ChoosingEngine):
    """Chooses a strategy by timing the candidates on the first round's work.

    The choice is stored in the user's cache, by machine, model and shapes, and in the run's own
    store, so that a resumed run keeps it.
    """

    def _choose(
        self,
        losses: ModuleLosses,
        method: Method,
        assignments: list[Assignment],
        states: ClientStates,
    ) -> tuple[Strategy, str]:
        local, clients = self.job.local, len(assignments)
        found = candidates(losses, local, clients, *self._limits)
        key = strategy_cache.cache_key(losses, local, clients, self._limits)
        choice = strategy_cache.lookup(key, found.strategies)
        if choice is None:
            timed = self._timed(found.strategies, method, assignments, states)
            choice = strategy_cache.store(key, timed, found.strategies)
        return choice.strategy, found.reason

    def _timed(
        self,
        strategies: list[Strategy],
        method: Method,
        assignments: list[Assignment],
        states: ClientStates,
    ) -> Choice:
        """Time every strategy on the work, or on as much of it as time allows.

        A strategy under which the model fails is dropped. Trials change no state: clients' states
        are only read, and random numbers are functions of keys.
        """
        if len(strategies) == 1:
            return Choice(strategies[0], noise=0.0)
        engines = {each: each.engine(self.losses, self.job) for each in strategies}
        times: dict[Strategy, list[float]] = {each: [] for each in strategies}
        trial: list[Assignment] | None = None
        began = time.perf_counter()
        for turn in range(REPEATS):
            # At least two turns: the difference between them is what tells how noisy they are.
            if turn > 1 and time.perf_counter() - began > ENOUGH_SECONDS:
                break
            for strategy in list(times):
                fastest = min((min(each) for each in times.values() if each), default=0.0)
                if turn and min(times[strategy]) > HOPELESS_RATIO * fastest:
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
                    times[strategy].append(self._seconds(engine, method, trial, states))
                except UndriftError:
                    del times[strategy]
                    if not times:
                        raise
        assert trial is not None
        steps = sum(assignment.work.steps for assignment in trial)
        best = {strategy: min(each) / steps for strategy, each in times.items()}
        chosen = min(best, key=lambda strategy: best[strategy])
        return Choice(chosen, noise_of(list(times.values())), best)

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


def noise_of(times: Sequence[Sequence[float]]) -> float:
    """How much longer than the shortest the other times of a strategy are, relative to it.

    `times` are the seconds of each strategy; the largest of the strategies' medians counts, since
    one strategy that was disturbed is enough for a wrong choice.
    """
    found = []
    for each in times:
        if len(each) > 1:
            ordered = sorted(each)
            found.append(ordered[len(ordered) // 2] / ordered[0] - 1)
    return max(found, default=0.0)
