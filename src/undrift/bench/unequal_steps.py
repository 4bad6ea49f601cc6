"""What it costs that clients do different numbers of steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload
from undrift.local.amounts import NormalAmount

STEPS = 30
SPREAD = NormalAmount(STEPS, 20, 1, 96)
"""FedNova's numbers of steps, drawn anew in every round."""
ALLOWED = 1.3


@dataclass(frozen=True)
class UnequalTiming:
    """A round in which every client does 30 steps, and one with the same number on average.

    The rounds with unequal steps have different numbers of them, so seconds are those per step
    times what the equal cohort does.
    """

    workload: str
    method: str
    engine: str
    strategy: str
    equal_seconds: float
    unequal_seconds: float
    target: float = ALLOWED

    @property
    def ratio(self) -> float:
        """How many times as long the unequal round takes."""
        return self.unequal_seconds / self.equal_seconds

    @property
    def met(self) -> bool:
        """Whether that is allowed."""
        return self.ratio <= self.target

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
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
        for amount in (STEPS, SPREAD)
    )
    for run in (equal, spread):
        run.settle()
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
