"""`undrift bench --profile`: which part of a round takes how long."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.bench.bench_run import BenchRun
from undrift.bench.profiling.arithmetic import kernel_seconds, peak_gigaflops, round_gigaflop
from undrift.bench.profiling.instrumentation import PARTS, REST, WAIT, instrumented
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload

EVALUATIONS = 2
"""How often the model is evaluated; the faster one counts."""


@dataclass(frozen=True)
class Profile:
    """The time of one round, split by part."""

    workload: str
    method: str
    engine: str
    strategy: str
    threads: int
    """threads that the engine uses"""
    seconds: dict[str, float]
    """by part, summed over threads; a thread that waits for Python's lock counts as busy"""
    clocked_seconds: float
    """the wall time of that round, with the clocks running"""
    round_seconds: float
    """the wall time of the fastest round without clocks"""
    evaluation_seconds: float
    """one evaluation of the server's model, which is not part of the round"""
    kernel_seconds: float
    """torch's products, convolutions, attention and recurrence in a round, of all threads; next to
    nothing if the compiled kernel trains"""
    gigaflop: float
    """billions of operations of the round: products and convolutions of all steps"""
    peak_gigaflops: float
    """billions of operations per second that this machine's fastest kernel reaches"""

    @property
    def busy_seconds(self) -> float:
        """Busy seconds of all threads together."""
        return sum(self.seconds.values())

    @property
    def idle_seconds(self) -> float:
        """Seconds that the engine's threads had nothing to do."""
        return max(0.0, self.threads * self.clocked_seconds - self.busy_seconds)

    @property
    def share_of_peak(self) -> float:
        """Return the operations per second of the round, relative to the peak."""
        return self.gigaflop / self.round_seconds / self.peak_gigaflops

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        names = (
            *("workload", "method", "engine", "strategy", "threads"),
            *("round_seconds", "clocked_seconds", "busy_seconds", "idle_seconds"),
            *("evaluation_seconds", "seconds", "kernel_seconds"),
            *("gigaflop", "peak_gigaflops", "share_of_peak"),
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
    """Profile the fastest of several rounds with clocks; time as many rounds without them."""
    run = BenchRun(workload, workload.data(population), method, engine, threads)
    run.warm_up()
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
        threads=run.threads_used,
        seconds={part: lap[part] for part in PARTS if part in lap},
        clocked_seconds=seconds,
        round_seconds=best,
        evaluation_seconds=min(run.evaluate() for _ in range(EVALUATIONS)),
        kernel_seconds=kernel_seconds(run.round),
        gigaflop=round_gigaflop(workload),
        peak_gigaflops=peak_gigaflops(threads),
    )
