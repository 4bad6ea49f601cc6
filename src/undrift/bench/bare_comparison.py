"""`undrift bench`: rounds of undrift against rounds of the bare loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from undrift.bench.bare import BareLoop
from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved, peak_mb
from undrift.bench.workloads import Workload

YARDSTICK = "FedAvg"
"""The method that the bare loop computes, and that other methods are compared with."""


@dataclass(frozen=True)
class RoundTiming:
    """How long a round of one method takes on one engine."""

    workload: str
    method: str
    engine: str
    strategy: str
    bare_seconds: float
    our_seconds: float
    committed_seconds: float | None
    """with a commit of the round to a store; None if not measured"""
    bare_threads: int
    """the number of threads with which the bare loop was fastest"""
    peak_mb: float | None
    """peak memory of the process so far"""
    target: float | None

    @property
    def ratio(self) -> float:
        """Return how many times as fast as the bare loop the round is."""
        return self.bare_seconds / self.our_seconds

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the target; None without a target."""
        return None if self.target is None else self.ratio >= self.target

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
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
    """Time the bare loop and every method on every engine, in turn.

    The bare loop does FedAvg's work whatever the method. The target of another method is relative
    to FedAvg on the same engine, so FedAvg is always timed as well.
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
    with_commits = runs(True) if commits else []
    try:
        bare = BareLoop(workload, data)
        settings = bare.settings(threads)
        for run in ours + with_commits:
            run.warm_up()
        timed = [partial(bare.timed, each) for each in settings]
        best = interleaved([*timed, *(run.round for run in ours + with_commits)], repeats, tick)
    finally:
        for run in with_commits:
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
    """Return the ratio to reach; `reference` is FedAvg's ratio on the same engine."""
    if method == YARDSTICK:
        return workload.target
    return None if workload.allowance is None else reference / workload.allowance
