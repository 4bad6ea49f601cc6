"""`undrift bench --strategies`: every candidate strategy's time, and which one "auto" chooses.

It is how the constants of `undrift.engines.cost_model` were found and can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from undrift.bench.bare import BareLoop
from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload
from undrift.engines import EngineOptions
from undrift.engines.cost_model import RoundWork
from undrift.engines.strategies import SERIAL, candidates
from undrift.nets.module_losses import ModuleLosses

ALLOWED = 1.1
"""The chosen strategy may take this many times as long as the fastest one."""


@dataclass(frozen=True)
class StrategyTiming:
    """How long a round takes under one strategy."""

    workload: str
    strategy: str
    chosen: bool
    """whether "auto" chooses it"""
    seconds: float
    expected_seconds: float
    """by the cost model, on the machine that it imagines"""
    bare_seconds: float
    fastest_seconds: float
    """under the fastest strategy"""

    @property
    def ratio(self) -> float:
        """Return how many times as fast as the bare loop the round is."""
        return self.bare_seconds / self.seconds

    @property
    def met(self) -> bool | None:
        """Whether the chosen strategy is near the fastest, and no slower than the bare loop."""
        if not self.chosen:
            return None
        return self.seconds <= min(ALLOWED * self.fastest_seconds, self.bare_seconds)

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        names = ("workload", "strategy", "chosen", "seconds", "expected_seconds", "bare_seconds")
        return {name: getattr(self, name) for name in (*names, "ratio")}


def time_strategies(
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    *,
    population: int | None = None,
    repeats: int | None = None,
    tick: Tick = lambda share: None,
) -> list[StrategyTiming]:
    """Time all candidates and the serial engine in turn, with the bare loop."""
    data = workload.data(population)
    losses, local = ModuleLosses(workload.model(), data), workload.local()
    memory = EngineOptions(engine).memory
    found = candidates(losses, local, workload.cohort, threads, memory).strategies
    work = RoundWork.of(losses, local, workload.cohort)
    chosen = found[0]
    if SERIAL not in found:
        found.append(SERIAL)
    bare = BareLoop(workload, data)
    runs = [BenchRun(workload, data, method, each, threads) for each in found]
    for run in runs:
        run.warm_up()
    timed = [partial(bare.timed, each) for each in bare.settings(threads)]
    best = interleaved([*timed, *(run.round for run in runs)], repeats, tick)
    seconds = best[len(timed) :]
    return [
        StrategyTiming(
            workload=workload.name,
            strategy=run.strategy,
            chosen=each is chosen,
            seconds=own,
            expected_seconds=work.seconds(
                each.network, each.chunk, each.threads, each.channels_last
            ),
            bare_seconds=min(best[: len(timed)]),
            fastest_seconds=min(seconds),
        )
        for each, run, own in zip(found, runs, seconds, strict=True)
    ]
