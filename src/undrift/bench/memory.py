"""`undrift bench --memory`: the peak memory of rounds, next to the bare loop's.

The largest memory of a process never shrinks, so each measurement has a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass

from undrift.bench.bare import BareLoop
from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, peak_mb
from undrift.bench.workloads import WORKLOADS, Workload
from undrift.utils.errors import UndriftError

ROUNDS = 4
"""Rounds of each; the memory of later rounds is that of the third."""
MAX_RATIO = 1.5
"""How many times as much memory as the bare loop a round may take at its peak."""


@dataclass(frozen=True)
class MemoryPeak:
    """The peak memory of a process that does rounds of undrift, and of one with the bare loop."""

    workload: str
    method: str
    engine: str
    strategy: str
    bare_mb: float
    """peak of the process with the bare loop, with Python, torch and the data"""
    our_mb: float
    bare_work_mb: float
    """the part of the peak that came after the data were in memory"""
    our_work_mb: float
    target: float = MAX_RATIO

    @property
    def ratio(self) -> float:
        """Return how many times as much memory as the bare loop undrift takes."""
        return self.our_mb / self.bare_mb

    @property
    def met(self) -> bool:
        """Whether the ratio is within the target."""
        return self.ratio <= self.target

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        return asdict(self) | {"ratio": self.ratio}


def measure_memory(
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    *,
    population: int | None = None,
    repeats: int | None = None,
    tick: Tick = lambda share: None,
) -> MemoryPeak:
    """Measure the peak memory of undrift and of the bare loop, each in a new process."""
    rounds = repeats or ROUNDS
    ask = {"workload": workload.name, "population": population, "rounds": rounds}
    bare = _in_new_process({**ask, "threads": 1})
    tick(0.5)
    ours = _in_new_process({**ask, "threads": threads, "method": method, "engine": engine})
    tick(1.0)
    return MemoryPeak(
        workload=workload.name,
        method=method,
        engine=engine,
        strategy=str(ours["strategy"]),
        bare_mb=float(bare["peak"]),
        our_mb=float(ours["peak"]),
        bare_work_mb=float(bare["peak"] - bare["data"]),
        our_work_mb=float(ours["peak"] - ours["data"]),
    )


def _in_new_process(asked: dict[str, object]) -> dict[str, float]:
    """Answer a request in a new process; its last line of output is the answer."""
    command = [sys.executable, "-m", "undrift.bench.memory", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UndriftError(f"The process that measures memory failed: {last}.")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _answer(asked: dict[str, object]) -> dict[str, object]:
    """Do the rounds that were asked for in this process, and return what memory they took."""
    workload = WORKLOADS[str(asked["workload"])]
    threads, population = int(str(asked["threads"])), asked["population"]
    data = workload.data(None if population is None else int(str(population)))
    before, strategy = peak_mb(), "bare loop"
    if "engine" not in asked:
        bare = BareLoop(workload, data)
        for _ in range(int(str(asked["rounds"]))):
            bare.timed(threads)
    else:
        run = BenchRun(workload, data, str(asked["method"]), str(asked["engine"]), threads)
        for _ in range(int(str(asked["rounds"]))):
            run.round()
        strategy = run.strategy
    if before is None:
        raise UndriftError("This system does not tell the peak memory of a process.")
    return {"data": before, "peak": peak_mb(), "strategy": strategy}


if __name__ == "__main__":
    print(json.dumps(_answer(json.loads(sys.argv[1]))))
