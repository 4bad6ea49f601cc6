"""`undrift bench --scaling`: the cost of a client's step as cohort and population grow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload
from undrift.data.partitions import Dirichlet
from undrift.devices import Devices, Duty, LogNormal

COHORTS, POPULATION = (10, 30, 100, 300), 1000
"""Cohort sizes, and the number of clients they are drawn from."""
POPULATIONS, COHORT = (100, 1000, 100_000, 1_000_000), 30
"""Numbers of clients, and the size of the cohort that is drawn from them."""
SHARED_CLIENTS = 50
"""All populations share the samples of this many clients: memory does not grow with them."""
ENOUGH_SECONDS = 12.0
"""Time for all sizes together, long enough to see small differences."""
LARGE_POPULATION = 1_000_000
"""Numbers of clients from which the limits of large populations hold."""
MAX_RELATIVE, MAX_LARGE_RELATIVE = 1.1, 1.2
"""Limits of the growth of a step's cost over the smallest population."""
MAX_START_SECONDS, MAX_LARGE_START_SECONDS = 3.0, 5.0
"""Limits of the seconds to start, and to share samples out over the clients."""
LEAST_ON_CLOCK = 1000
"""Smallest population on the clock: with fewer clients, too few for a cohort are available."""
PARTITIONED_SAMPLES = 4
"""Samples per client that a partition shares out when it is timed."""
ON_THE_CLOCK = Devices(
    speed=LogNormal(20.0, 0.5),
    up=1e6,
    down=1e7,
    latency=0.1,
    jitter=0.2,
    dropout=0.02,
    availability=Duty(period=86_400, share=0.3),
)
"""Devices that differ and that come and go, for rounds on the virtual clock."""


@dataclass(frozen=True)
class ScalingPoint:
    """The time of a round with one cohort size and one population."""

    workload: str
    method: str
    engine: str
    strategy: str
    grows: str
    """what grows in this series: cohort, population, or population on the virtual clock"""
    cohort: int
    population: int
    start_seconds: float
    """to build the data, the losses, the roster, the devices and the loop"""
    partition_seconds: float | None
    """to share the samples of such a population out by Dirichlet(0.3); None if not timed"""
    seconds: float
    step_seconds: float
    """of one client"""
    relative: float
    """seconds of a step, relative to the smallest size of the series"""

    @property
    def max_relative(self) -> float | None:
        """The limit of `relative`; None for a growing cohort, which has no limit."""
        if self.grows == "cohort":
            return None
        return MAX_LARGE_RELATIVE if self.population >= LARGE_POPULATION else MAX_RELATIVE

    @property
    def max_start(self) -> float:
        """The limit of the seconds to start and of those to partition."""
        large = self.population >= LARGE_POPULATION
        return MAX_LARGE_START_SECONDS if large else MAX_START_SECONDS

    @property
    def met(self) -> bool | None:
        """Whether the limits hold; None for a growing cohort, which has no limit."""
        if self.max_relative is None:
            return None
        slowest = max(self.start_seconds, self.partition_seconds or 0.0)
        return self.relative <= self.max_relative and slowest <= self.max_start

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        limits = {"target": self.max_relative, "start_target": self.max_start}
        return asdict(self) | ({} if self.max_relative is None else limits)


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
    """Time rounds of growing cohorts in turn, then rounds of growing populations.

    The populations are timed twice: without a clock, and with devices on the virtual clock.
    """
    shared = replace(workload, clients=SHARED_CLIENTS)
    cohort = min(COHORT, workload.cohort, min(populations))
    grown = [(each, max(POPULATION, each)) for each in cohorts]
    series: list[tuple[str, list[tuple[int, int]], Devices | None]] = [("cohort", grown, None)]
    sizes = [(cohort, each) for each in populations]
    series.append(("population", sizes, None))
    several = [each for each in sizes if each[1] >= LEAST_ON_CLOCK]
    if several:
        series.append(("on clock", several, ON_THE_CLOCK))
    found: list[ScalingPoint] = []
    for number, (grows, each, devices) in enumerate(series):
        part = _part_of(tick, number, len(series))
        found += _timed(grows, each, shared, method, engine, threads, repeats, part, devices)
    return found


def _timed(
    grows: str,
    sizes: Sequence[tuple[int, int]],
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    repeats: int | None,
    tick: Tick,
    devices: Devices | None,
) -> list[ScalingPoint]:
    """Time rounds of several sizes (cohort, population), in turn."""
    runs, started, partitioned = [], [], []
    for cohort, population in sizes:
        began = time.perf_counter()
        data = workload.data(population)
        run = BenchRun(workload, data, method, engine, threads, cohort=cohort, devices=devices)
        runs.append(run)
        started.append(time.perf_counter() - began)
        partitioned.append(_partition_seconds(population) if grows == "population" else None)
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
            partition_seconds=partition,
            seconds=per_step * run.steps,
            step_seconds=per_step,
            relative=per_step / best[0],
        )
        for run, (cohort, population), start, partition, per_step in zip(
            runs, sizes, started, partitioned, best, strict=True
        )
    ]


def _partition_seconds(population: int) -> float:
    """The seconds of a partition by labels, of a few samples for each client."""
    labels = np.random.default_rng(0).integers(0, 10, PARTITIONED_SAMPLES * population)
    began = time.perf_counter()
    Dirichlet(0.3).split(labels, population)
    return time.perf_counter() - began


def _part_of(tick: Tick, number: int, parts: int) -> Tick:
    """Report progress of one of several parts of the work."""
    return lambda share: tick((number + share) / parts)
