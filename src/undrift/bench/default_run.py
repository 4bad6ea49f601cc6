"""`undrift bench --default`: a run as users get it, against the same rounds without the rest.

The run goes through the driver into a run folder: with the default evaluation, records and commits.
After each of its rounds a round without them is timed, so that a busy moment slows both.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from undrift.bench.bench_run import METHODS, WARM_UP_ROUNDS, BenchRun
from undrift.bench.timing import Tick, torch_threads
from undrift.bench.workloads import Workload
from undrift.core.clients import ClientStates
from undrift.core.records import Record
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.engines import EngineOptions
from undrift.nets.module_losses import ModuleLosses
from undrift.runs.driver import SilentObserver, execute
from undrift.runs.plan import Plan
from undrift.runs.storage import FolderStorage
from undrift.utils.errors import require

MOST_TEST_SAMPLES, TEST_SHARE = 10_000, 1 / 5
"""The test part has this share of the training samples, and no more than MNIST's and CIFAR's."""
LEAST_ROUNDS = 12
"""Rounds of the run, at least; it has two evaluations between the first and the last."""
MAX_RATIO = 1.25
"""How many times as long as its rounds the run may take."""


@dataclass(frozen=True)
class DefaultTiming:
    """A run with all defaults, and the same rounds without evaluation and commits."""

    workload: str
    method: str
    engine: str
    strategy: str
    every: int
    """rounds between evaluations"""
    train_samples: int
    test_samples: int
    """samples of an evaluation that is not the last"""
    start_seconds: float
    """until the first round begins: checks, fingerprint, evaluation of the initial model"""
    plain_seconds: float
    """a round without evaluation and commit"""
    committed_seconds: float
    """a round of the run that is not evaluated"""
    evaluated_seconds: float
    """a round of the run that is evaluated"""
    last_seconds: float
    """the last round, which is evaluated on all samples"""
    target: float = MAX_RATIO

    @property
    def ratio(self) -> float:
        """Return how many times as long a round takes, averaged from evaluation to evaluation."""
        others = (self.every - 1) * self.committed_seconds
        return (others + self.evaluated_seconds) / (self.every * self.plain_seconds)

    def ratio_of(self, rounds: int) -> float:
        """Return the ratio of a run of some rounds, with its start and its last evaluation."""
        ends = self.start_seconds + self.last_seconds - self.committed_seconds
        return self.ratio + ends / (rounds * self.plain_seconds)

    @property
    def met(self) -> bool:
        """Whether the ratio is within the target."""
        return self.ratio <= self.target

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        return asdict(self) | {"ratio": self.ratio, "ratio_of_100_rounds": self.ratio_of(100)}


class _Stopwatch(SilentObserver):
    """Times each round of the run, and after it a round of `plain`."""

    def __init__(self, plain: BenchRun, rounds: int, tick: Tick):
        self.seconds: dict[int, float] = {}
        self.plain_seconds: list[float] = []
        self.records: list[Record] = []
        self._plain = plain
        self._rounds = rounds
        self._tick = tick
        self._began = time.perf_counter()

    def show(self, label: str, seed: int, record: Record) -> None:
        self.seconds[record.round] = time.perf_counter() - self._began
        self.records.append(record)
        self.plain_seconds.append(self._plain.round())
        self._tick(record.round / self._rounds)
        self._began = time.perf_counter()


def time_default(
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    *,
    population: int | None = None,
    repeats: int | None = None,
    tick: Tick = lambda share: None,
) -> DefaultTiming:
    """Time a run with all defaults; it has `repeats` rounds, and enough for two evaluations."""
    data = _with_test(workload, workload.data(population))
    plain = BenchRun(workload, data, method, engine, threads)
    plain.warm_up()
    with torch_threads(threads):
        plan = Plan(
            {method: METHODS[method]()},
            lambda seed: ModuleLosses(workload.model(), data),
            {method: workload.local()},
            cohort=workload.cohort,
            engine=EngineOptions(engine, threads),
        )
        schedule = plan.loop(method, plan.spec(method, 0, plan.losses(0)), ClientStates).schedule
        rounds = max(repeats or LEAST_ROUNDS, 2 * schedule.every + 1)
        with tempfile.TemporaryDirectory(prefix="undrift-bench-") as folder:
            watch = _Stopwatch(plain, rounds, tick)
            (ended,) = execute(replace(plan, rounds=rounds), FolderStorage(Path(folder)), watch)
    require(
        ended.status == "finished",
        f"The run of {workload.name} was {ended.status} before its last round: {ended.reason}.",
    )
    return _timing(workload, plain, schedule.every, watch)


def _timing(workload: Workload, plain: BenchRun, every: int, watch: _Stopwatch) -> DefaultTiming:
    """The fastest rounds of each kind; those in which the engine settles do not count."""
    last = max(watch.seconds)
    warm = {r: s for r, s in watch.seconds.items() if WARM_UP_ROUNDS < r < last}
    measured = {r.round: r.measured for r in watch.records if r.metrics}
    evaluated = [s for r, s in warm.items() if r in measured]
    committed = [s for r, s in warm.items() if r not in measured] or evaluated
    first = measured[0]
    return DefaultTiming(
        workload=workload.name,
        method=plain.method,
        engine=plain.engine,
        strategy=plain.strategy,
        every=every,
        train_samples=first["train"][0],
        test_samples=first["test"][0],
        start_seconds=watch.seconds[0],
        plain_seconds=min(watch.plain_seconds[1:]),
        committed_seconds=min(committed),
        evaluated_seconds=min(evaluated),
        last_seconds=watch.seconds[last],
    )


def _with_test(workload: Workload, data: FederatedData) -> FederatedData:
    """The data with a test part that is common to all clients, of random samples."""
    x = data.train.x
    assert isinstance(x, torch.Tensor)
    samples = min(MOST_TEST_SAMPLES, int(TEST_SHARE * len(data.train)))
    rows = torch.arange(samples) % len(x)
    g = torch.Generator().manual_seed(1)
    y = torch.randint(workload.classes, (samples,), generator=g)
    return FederatedData(data.train, Part.common(x[rows].clone(), y), name=data.name)
