"""Where a round's time goes, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.bench.bench_run import BenchRun
from undrift.bench.instrumentation import PARTS, REST, WAIT, instrumented
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload

LOOKS = 2
"""The model is evaluated so often."""


@dataclass(frozen=True)
class Profile:
    """A round of a method, part by part."""

    workload: str
    method: str
    engine: str
    strategy: str
    threads: int
    """that the engine works with"""
    seconds: dict[str, float]
    """by part, of all threads together; one that waits for Python's lock counts as at work"""
    clocked_seconds: float
    """what that round took, with the clocks"""
    round_seconds: float
    """the fastest round without clocks"""
    evaluation_seconds: float
    """of an evaluation of the server's model, which is no part of the round"""

    @property
    def busy_seconds(self) -> float:
        """Of all threads together."""
        return sum(self.seconds.values())

    @property
    def idle_seconds(self) -> float:
        """Of the engine's threads, in which they had nothing to do."""
        return max(0.0, self.threads * self.clocked_seconds - self.busy_seconds)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        names = (
            *("workload", "method", "engine", "strategy", "threads"),
            *("round_seconds", "clocked_seconds", "busy_seconds", "idle_seconds"),
            *("evaluation_seconds", "seconds"),
        )
        return {name: getattr(self, name) for name in names}


def take_profile(
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    *,
    population: int | None = None,
    repeats: int | None = None,
    tick: Tick = lambda share: None,
) -> Profile:
    """The fastest of some rounds with clocks, beside the fastest of as many without."""
    run = BenchRun(workload, workload.data(population), method, engine, threads)
    run.settle()
    laps: list[tuple[float, dict[str, float]]] = []

    def clocked() -> float:
        with instrumented(run.loop) as watch:
            with watch.part(REST):
                seconds = run.round()
            laps.append((seconds, watch.lap()))
        return seconds

    best, _ = interleaved([run.round, clocked], repeats, tick)
    seconds, lap = min(laps, key=lambda each: each[0])
    lap.pop(WAIT, None)
    return Profile(
        workload=workload.name,
        method=method,
        engine=engine,
        strategy=run.strategy,
        threads=run.at_work,
        seconds={part: lap[part] for part in PARTS if part in lap},
        clocked_seconds=seconds,
        round_seconds=best,
        evaluation_seconds=min(run.evaluate() for _ in range(LOOKS)),
    )
