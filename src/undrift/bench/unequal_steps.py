"""`undrift bench --unequal`: what different numbers of steps per client cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload
from undrift.local.amounts import NormalAmount

STEPS = 30
UNEQUAL_STEPS = NormalAmount(STEPS, 20, 1, 96)
"""The numbers of steps in FedNova's paper, drawn anew in every round."""
MAX_RATIO = 1.3
"""How many times as long the unequal round may take."""


@dataclass(frozen=True)
class UnequalTiming:
    """A round with 30 steps for every client, and one with 30 steps on average.

    Rounds with unequal steps differ in their total number of steps. The seconds are therefore those
    per step, multiplied by the steps of the equal cohort.
    """

    workload: str
    method: str
    engine: str
    strategy: str
    equal_seconds: float
    unequal_seconds: float
    target: float = MAX_RATIO

    @property
    def ratio(self) -> float:
        """Return how many times as long the unequal round takes."""
        return self.unequal_seconds / self.equal_seconds

    @property
    def met(self) -> bool:
        """Whether the ratio is within the target."""
        return self.ratio <= self.target

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        return asdict(self) | {"ratio": self.ratio}


def time_unequal(
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    *,
    population: int | None = None,
    repeats: int | None = None,
    tick: Tick = lambda share: None,
) -> UnequalTiming:
    """Time rounds with equal and with unequal numbers of steps, in turn."""
    data = workload.data(population)
    equal, spread = (
        BenchRun(
            workload,
            data,
            method,
            engine,
            threads,
            local=replace(workload.local(), epochs=None, steps=amount),
        )
        for amount in (STEPS, UNEQUAL_STEPS)
    )
    for run in (equal, spread):
        run.warm_up()
    per_step = interleaved([equal.step, spread.step], repeats, tick)
    steps = STEPS * workload.cohort
    return UnequalTiming(
        workload=workload.name,
        method=method,
        engine=engine,
        strategy=spread.strategy,
        equal_seconds=per_step[0] * steps,
        unequal_seconds=per_step[1] * steps,
    )
