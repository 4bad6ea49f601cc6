"""Where a round's time goes, with the serial engine: clocks at the seams between its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from undrift import solvers
from undrift.bench.ours import Ours
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload
from undrift.data.part import Part
from undrift.engines import serial
from undrift.engines.base import Job, RoundResult
from undrift.modules import ModuleLoss, ModuleLosses
from undrift.sampling import Uniform
from undrift.solvers import SGD

PLAN, SET_UP, DRAW, GATHER = "cohort and work", "client set-up", "draw batches", "gather samples"
COMPUTE, UPDATE, METHOD = "forward and backward", "update", "method"
CHECK, FOLD, STATE, REST = "check replies", "fold", "client states", "the rest"

PARTS = {
    PLAN: "who takes part, and how much each does",
    STATE: "what clients remember, read and stored",
    METHOD: "its local problem and its uploads",
    SET_UP: "buffers and generators of a client",
    DRAW: "a client's batches, as numbers of samples",
    GATHER: "the samples of a batch, together in memory",
    COMPUTE: "the gradient of a batch",
    UPDATE: "the solver's step, with the method's terms",
    CHECK: "whether a reply is finite",
    FOLD: "replies added up, and the server's update",
    REST: "everything else",
}
"""The parts of a round, in their order, with what each is."""


@dataclass(frozen=True)
class Profile:
    """A round of a method, part by part."""

    workload: str
    method: str
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """Seconds of the round."""
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "workload": self.workload,
            "method": self.method,
            "engine": "serial",
            "total_seconds": self.total,
            "seconds": self.seconds,
        }


class Stopwatch:
    """Seconds by part: while one part is inside another, the outer one's clock stands still."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._within = [REST]
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block as a part."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str) -> None:
        """A part begins."""
        self._turn()
        self._within.append(name)

    def leave(self) -> None:
        """The part that began last is over."""
        self._turn()
        self._within.pop()

    def lap(self) -> dict[str, float]:
        """Seconds by part since the last time."""
        self._turn()
        found, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return found

    def _turn(self) -> None:
        now = time.perf_counter()
        self._seconds[self._within[-1]] += now - self._since
        self._since = now


def take_profile(
    workload: Workload,
    method: str,
    *,
    population: int | None = None,
    repeats: int | None = None,
    tick: Tick = lambda share: None,
) -> Profile:
    """The fastest of some rounds, part by part."""
    run = Ours(workload, workload.data(population), method)
    run.round()  # the first round is not counted
    laps: list[dict[str, float]] = []
    with watched(run) as watch:

        def timed() -> float:
            watch.lap()
            seconds = run.round()
            laps.append(watch.lap())
            return seconds

        interleaved([timed], repeats, tick)
    return Profile(workload.name, method, min(laps, key=lambda lap: sum(lap.values())))


@contextmanager
def watched(run: Ours) -> Iterator[Stopwatch]:
    """Clocks at every seam of a run, for the block."""
    watch = Stopwatch()
    loop = run.loop
    seams: list[tuple[Any, str, str]] = [
        (Uniform, "draw", PLAN),
        (Job, "work", PLAN),
        (loop.states, "get", STATE),
        (loop.states, "put", STATE),
        (loop.method, "problem", METHOD),
        (loop.method, "finish", METHOD),
        (Part, "client", GATHER),
        (ModuleLoss, "gradient", GATHER),
        (ModuleLoss, "_gradient", COMPUTE),
        (ModuleLoss, "buffers", SET_UP),
        (SGD, "run", UPDATE),
        (serial, "fault", CHECK),
        (RoundResult, "take", FOLD),
        (loop.method, "fold", FOLD),
    ]
    with ExitStack() as stack:
        for owner, name, part in seams:
            stack.enter_context(_replaced(owner, name, _clocked(getattr(owner, name), watch, part)))
        draw, train = solvers.batches, ModuleLosses.training

        def batches(*arguments: Any) -> Iterator[Any]:
            stream = draw(*arguments)
            while True:
                with watch.part(DRAW):
                    batch = next(stream)
                yield batch

        @contextmanager
        def training(*arguments: Any) -> Iterator[Any]:
            watch.enter(SET_UP)
            with train(*arguments) as loss:
                watch.leave()
                yield loss
                watch.enter(SET_UP)
            watch.leave()

        stack.enter_context(_replaced(solvers, "batches", batches))
        stack.enter_context(_replaced(ModuleLosses, "training", training))
        yield watch


def _clocked(function: Callable[..., Any], watch: Stopwatch, part: str) -> Callable[..., Any]:
    def clocked(*arguments: Any, **named: Any) -> Any:
        watch.enter(part)
        try:
            return function(*arguments, **named)
        finally:
            watch.leave()

    return clocked


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute of a module, a class or an instance for the block."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)
