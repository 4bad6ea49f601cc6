"""undrift against the bare loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from undrift.bench.bare import BareLoop
from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved, peak_mb
from undrift.bench.workloads import Workload

YARDSTICK = "FedAvg"
"""The method of the bare loop, and the one that others are compared with."""


@dataclass(frozen=True)
class RoundTiming:
    """What a round of a method took."""

    workload: str
    method: str
    engine: str
    strategy: str
    bare_seconds: float
    our_seconds: float
    committed_seconds: float | None
    """with the round committed to a store, where that was asked for"""
    bare_threads: int
    """with which the bare loop was at its best"""
    peak_mb: float | None
    """the most memory the process had, all that it did before included"""
    target: float | None

    @property
    def ratio(self) -> float:
        """How many times as fast as the bare loop."""
        return self.bare_seconds / self.our_seconds

    @property
    def met(self) -> bool | None:
        """Whether the target is; None without one."""
        return None if self.target is None else self.ratio >= self.target

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        names = (
            *("workload", "method", "engine", "strategy", "ratio"),
            *("bare_seconds", "our_seconds", "peak_mb", "target"),
        )
        found = {name: getattr(self, name) for name in names}
        if self.committed_seconds is not None:
            found["committed_seconds"] = self.committed_seconds
        return found


def compare(
    workload: Workload,
    methods: Sequence[str],
    engines: Sequence[str],
    threads: int,
    *,
    population: int | None = None,
    repeats: int | None = None,
    commits: bool = False,
    tick: Tick = lambda share: None,
) -> list[RoundTiming]:
    """Time the bare loop, every method on every engine, the bare loop, … in turn.

    The bare loop does FedAvg's work whatever the method. What is laid down for other methods is
    relative to FedAvg on the same engine, which is therefore timed with them.
    """
    methods = list(dict.fromkeys(methods))
    if methods != [YARDSTICK]:
        methods = [YARDSTICK, *(name for name in methods if name != YARDSTICK)]
    data = workload.data(population)
    pairs = [(engine, method) for engine in dict.fromkeys(engines) for method in methods]

    def runs(committed: bool) -> list[BenchRun]:
        return [
            BenchRun(workload, data, method, engine, threads, committed=committed)
            for engine, method in pairs
        ]

    ours = runs(False)
    kept = runs(True) if commits else []
    try:
        bare = BareLoop(workload, data)
        settings = bare.settings(threads)
        for run in ours + kept:
            run.settle()
        timed = [partial(bare.timed, each) for each in settings]
        best = interleaved([*timed, *(run.round for run in ours + kept)], repeats, tick)
    finally:
        for run in kept:
            run.close()
    bare_seconds, bare_threads = min(zip(best, settings, strict=False))
    seconds = best[len(settings) :]
    reference = {
        run.engine: bare_seconds / own
        for run, own in zip(ours, seconds, strict=False)
        if run.method == YARDSTICK
    }
    return [
        RoundTiming(
            workload=workload.name,
            method=run.method,
            engine=run.engine,
            strategy=run.strategy,
            bare_seconds=bare_seconds,
            our_seconds=seconds[place],
            committed_seconds=seconds[len(ours) + place] if commits else None,
            bare_threads=bare_threads,
            peak_mb=peak_mb(),
            target=_target(workload, run.method, reference[run.engine]),
        )
        for place, run in enumerate(ours)
    ]


def _target(workload: Workload, method: str, reference: float) -> float | None:
    """The least ratio; `reference` is that of FedAvg."""
    if method == YARDSTICK:
        return workload.target
    return None if workload.allowance is None else reference / workload.allowance
