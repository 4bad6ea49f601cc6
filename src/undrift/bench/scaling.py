"""`undrift bench --scaling`: the cost of a client's step as cohort and population grow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload

COHORTS, POPULATION = (10, 30, 100, 300), 1000
"""Cohort sizes, and the number of clients they are drawn from."""
POPULATIONS, COHORT = (100, 1000, 10_000, 100_000), 30
"""Numbers of clients, and the size of the cohort that is drawn from them."""
SHARED_CLIENTS = 50
"""All populations share the samples of this many clients: memory does not grow with them."""
ENOUGH_SECONDS = 12.0
"""Time for all sizes together, long enough to see small differences."""
MAX_RELATIVE, MAX_START_SECONDS = 1.1, 3.0
"""Limits over the smallest population: growth of a step's cost, and seconds to start."""


@dataclass(frozen=True)
class ScalingPoint:
    """The time of a round with one cohort size and one population."""

    workload: str
    method: str
    engine: str
    strategy: str
    grows: str
    """which of the two grows in this series: cohort or population"""
    cohort: int
    population: int
    start_seconds: float
    """to build the data, the losses, the roster and the loop"""
    seconds: float
    step_seconds: float
    """of one client"""
    relative: float
    """seconds of a step, relative to the smallest size of the series"""

    @property
    def met(self) -> bool | None:
        """Whether the limits hold; None for a growing cohort, which has no limit."""
        if self.grows == "cohort":
            return None
        return self.relative <= MAX_RELATIVE and self.start_seconds <= MAX_START_SECONDS

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        limits = {"target": MAX_RELATIVE, "start_target": MAX_START_SECONDS}
        limits = limits if self.grows == "population" else {}
        return asdict(self) | limits


def scale(
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    *,
    repeats: int | None = None,
    tick: Tick = lambda share: None,
    cohorts: Sequence[int] = COHORTS,
    populations: Sequence[int] = POPULATIONS,
) -> list[ScalingPoint]:
    """Time rounds of growing cohorts in turn, then rounds of growing populations."""
    shared = replace(workload, clients=SHARED_CLIENTS)
    cohort = min(COHORT, workload.cohort, min(populations))
    grown = [(each, max(POPULATION, each)) for each in cohorts]
    found = _timed("cohort", grown, shared, method, engine, threads, repeats, _half(tick, 0))
    grown = [(cohort, each) for each in populations]
    return found + _timed(
        "population", grown, shared, method, engine, threads, repeats, _half(tick, 1)
    )


def _timed(
    grows: str,
    sizes: Sequence[tuple[int, int]],
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    repeats: int | None,
    tick: Tick,
) -> list[ScalingPoint]:
    """Time rounds of several sizes (cohort, population), in turn."""
    runs, started = [], []
    for cohort, population in sizes:
        began = time.perf_counter()
        data = workload.data(population)
        runs.append(BenchRun(workload, data, method, engine, threads, cohort=cohort))
        started.append(time.perf_counter() - began)
        runs[-1].warm_up()
    best = interleaved([run.step for run in runs], repeats, tick, enough_seconds=ENOUGH_SECONDS)
    return [
        ScalingPoint(
            workload=workload.name,
            method=method,
            engine=engine,
            strategy=run.strategy,
            grows=grows,
            cohort=cohort,
            population=population,
            start_seconds=start,
            seconds=per_step * run.steps,
            step_seconds=per_step,
            relative=per_step / best[0],
        )
        for run, (cohort, population), start, per_step in zip(
            runs, sizes, started, best, strict=True
        )
    ]


def _half(tick: Tick, done: int) -> Tick:
    """Report progress of the first (0) or second (1) half of the work."""
    return lambda share: tick((done + share) / 2)
