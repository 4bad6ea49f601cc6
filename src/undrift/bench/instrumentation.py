"""Where one part of a round ends and another begins, for every engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

from undrift.bench.stopwatch import Stopwatch, replaced
from undrift.core.round_result import RoundResult
from undrift.core.sampling import Uniform
from undrift.data.part import Part
from undrift.engines import serial
from undrift.engines.threaded import ThreadedEngine
from undrift.engines.vectorised import engine as vectorised
from undrift.engines.vectorised import training
from undrift.engines.vectorised.batches import Stream
from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.steps import Fused, Stepper
from undrift.local import solvers
from undrift.local.solvers import SGD
from undrift.loops import Loop
from undrift.loops.planning import WorkPlanner
from undrift.nets.modules import ModuleLoss, ModuleLosses

PLAN, SET_UP, DRAW, GATHER = "cohort and work", "client set-up", "draw batches", "gather samples"
COMPUTE, UPDATE, METHOD = "forward and backward", "update", "method"
CHECK, FOLD, STATE, REST = "check replies", "fold", "client states", "the rest"
WAIT = "wait for threads"

PARTS = {
    PLAN: "who takes part, and how much each does",
    STATE: "what clients remember, read and stored",
    METHOD: "its local problem and its uploads",
    SET_UP: "buffers, generators and steps of clients",
    DRAW: "their batches, as numbers of samples",
    GATHER: "the samples of a batch, together",
    COMPUTE: "the gradient of a batch",
    UPDATE: "the solver's step, with the method's terms",
    CHECK: "whether replies are finite",
    FOLD: "replies added up, and the server's update",
    REST: "everything else",
}
"""The parts of a round, in their order, with what each is."""


@contextmanager
def instrumented(loop: Loop) -> Iterator[Stopwatch]:
    """Clocks at every seam of a run, for the block; a round is to be counted as `REST`.

    While a thread waits for others it is in `WAIT`, which is no work.
    """
    watch = Stopwatch()
    with ExitStack() as stack:
        for owner, name, part in _seams(loop):
            stack.enter_context(watch.at(owner, name, part))
        stack.enter_context(replaced(solvers, "batches", _batches(watch)))
        stack.enter_context(replaced(ModuleLosses, "training", _training(watch)))
        yield watch


def _seams(loop: Loop) -> Iterator[tuple[Any, str, str]]:
    """What is called where a part begins: of what, its name, and the part."""
    yield from [
        (Uniform, "draw", PLAN),
        (WorkPlanner, "work", PLAN),
        (loop.states, "get", STATE),
        (loop.states, "gather", STATE),
        (loop.states, "put", STATE),
        (loop.method, "problem", METHOD),
        (loop.method, "finish", METHOD),
        (loop.method, "fold", FOLD),
        *((RoundResult, name, FOLD) for name in ("take", "take_several", "merge")),
        (RoundResult, "finite", CHECK),
    ]
    yield from [  # one client after another
        (Part, "client", GATHER),
        (ModuleLoss, "gradient", GATHER),
        (ModuleLoss, "_gradient", COMPUTE),
        (ModuleLoss, "buffers", SET_UP),
        (SGD, "run", UPDATE),
        (serial, "check_declared", CHECK),
        (serial, "fault", CHECK),
        (serial, "fault_of_buffers", CHECK),
    ]
    yield from [  # many at once
        (training, "indices", DRAW),
        (training, "_step", SET_UP),
        (Draws, "__init__", SET_UP),
        (Stream, "__init__", GATHER),
        (Stream, "at", GATHER),
        *((kind, "backward", COMPUTE) for kind in Network.__subclasses__()),
        (Fused, "product", UPDATE),
        (Fused, "plain", UPDATE),
        (Stepper, "take", UPDATE),
        (vectorised, "check_declared", CHECK),
        (vectorised, "fault", CHECK),
        (vectorised, "fault_of_buffers", CHECK),
    ]
    yield from [  # on threads
        (vectorised.VectorisedEngine, "_added", REST),
        (ThreadedEngine, "_reply", REST),
        (Future, "result", WAIT),
    ]


def _batches(watch: Stopwatch) -> Any:
    """The serial engine's batches, which are drawn one by one."""
    draw = solvers.batches

    def batches(*arguments: Any) -> Iterator[Any]:
        stream = draw(*arguments)
        while True:
            with watch.part(DRAW):
                batch = next(stream)
            yield batch

    return batches


def _training(watch: Stopwatch) -> Any:
    """What comes before and after the work of a client of the serial engine."""
    train = ModuleLosses.training

    @contextmanager
    def training(*arguments: Any) -> Iterator[Any]:
        watch.enter(SET_UP)
        with train(*arguments) as loss:
            watch.leave()
            yield loss
            watch.enter(SET_UP)
        watch.leave()

    return training
