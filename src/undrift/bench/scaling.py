"""What a client's step costs as the cohort and the population grow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload

COHORTS, AMONG = (10, 30, 100, 300), 1000
"""Growing cohorts, and the population they are drawn from."""
POPULATIONS, COHORT = (100, 1000, 10_000, 100_000), 30
"""Growing populations, and the cohort that is drawn from them."""
SHARED = 50
"""So many clients' samples serve all populations, so that only the number of clients differs."""
ENOUGH = 12.0
"""Seconds for all sizes together, in which small differences are to be seen."""
ALLOWED, START = 1.1, 3.0
"""How many times what it costs with the smallest population, and seconds to start."""


@dataclass(frozen=True)
class ScalingPoint:
    """What a round takes at one size."""

    workload: str
    method: str
    engine: str
    strategy: str
    grows: str
    """the cohort or the population"""
    cohort: int
    population: int
    start_seconds: float
    """to build the federation, the losses, the roster and the loop"""
    seconds: float
    step_seconds: float
    """of a client"""
    relative: float
    """the cost of a step, over that at the smallest size"""

    @property
    def met(self) -> bool | None:
        """Whether it is what is allowed; None for a cohort, of which nothing is laid down."""
        if self.grows == "cohort":
            return None
        return self.relative <= ALLOWED and self.start_seconds <= START

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        limits = {"target": ALLOWED, "start_target": START} if self.grows == "population" else {}
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
    """Time rounds of growing cohorts in turn, then of growing populations."""
    shared = replace(workload, clients=SHARED)
    cohort = min(COHORT, workload.cohort, min(populations))
    grown = [(each, max(AMONG, each)) for each in cohorts]
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
    """Rounds at several sizes (cohort, population), in turn."""
    runs, started = [], []
    for cohort, population in sizes:
        began = time.perf_counter()
        data = workload.data(population)
        runs.append(BenchRun(workload, data, method, engine, threads, cohort=cohort))
        started.append(time.perf_counter() - began)
        runs[-1].settle()
    best = interleaved([run.step for run in runs], repeats, tick, enough=ENOUGH)
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
    """The first or the second half of the work."""
    return lambda share: tick((done + share) / 2)
