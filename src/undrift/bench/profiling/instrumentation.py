"""Puts the clocks of a profile around the functions where each part of a round begins.

It names the functions of every engine, so it changes when they move.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

from undrift.bench.stopwatch import Stopwatch, replaced
from undrift.core.round_result import RoundResult
from undrift.core.sampling import Uniform
from undrift.core.uploads import UploadChain, chain
from undrift.data.part import Part
from undrift.engines import serial
from undrift.engines.threaded import ThreadedEngine
from undrift.engines.vectorised import engine as vectorised
from undrift.engines.vectorised import training
from undrift.engines.vectorised.batches import BatchStream
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.steps import FullStep, FusedStep
from undrift.local import minibatches
from undrift.local.solvers import SGD
from undrift.loops import Loop
from undrift.loops.planning import WorkPlanner
from undrift.nets.client_losses import ModuleLoss
from undrift.nets.module_losses import ModuleLosses

PLAN, SET_UP, DRAW, GATHER = "cohort and work", "client set-up", "draw batches", "gather samples"
COMPUTE, UPDATE, METHOD = "forward and backward", "update", "method"
CHECK, FOLD, STATE, REST = "check replies", "fold", "client states", "the rest"
WAIT = "wait for threads"

PARTS = {
    PLAN: "draw the cohort, plan each client's steps",
    STATE: "read and store the states of clients",
    METHOD: "local problems and uploads of clients",
    SET_UP: "set up buffers, generators and steps",
    DRAW: "draw the indices of batches",
    GATHER: "collect the samples of a batch",
    COMPUTE: "compute the gradient of a batch",
    UPDATE: "the solver's step with the method's terms",
    CHECK: "check that replies are finite",
    FOLD: "sum up replies, update the server",
    REST: "everything else",
}
"""The parts of a round, in their order, with what each does."""


@contextmanager
def instrumented(loop: Loop) -> Iterator[Stopwatch]:
    """Put clocks around the parts of a run for the block, and yield the stopwatch.

    The caller counts the whole round as `REST`; the parts take their time out of it. A thread that
    waits for others counts as `WAIT`, which is not work.

    While a thread waits for others it is in `WAIT`, which is no work.
    """
    watch = Stopwatch()
    with ExitStack() as stack:
        for owner, name, part in _clocked_functions(loop):
            stack.enter_context(watch.at(owner, name, part))
        stack.enter_context(replaced(minibatches, "batches", _batches(watch)))
        stack.enter_context(replaced(ModuleLosses, "training", _training(watch)))
        yield watch


def _clocked_functions(loop: Loop) -> Iterator[tuple[Any, str, str]]:
    """Yield (owner, name of the function, part) for every function that begins a part."""
    yield from [
        (Uniform, "draw", PLAN),
        (WorkPlanner, "work", PLAN),
        (loop.states, "get", STATE),
        (loop.states, "gather", STATE),
        (loop.states, "put", STATE),
        (loop.method, "problem", METHOD),
        (UploadChain, "finish", METHOD),
        (loop.method, "finish", METHOD),
        (loop.method, "fold", FOLD),
        *((RoundResult, name, FOLD) for name in ("take", "take_several", "merge")),
        (RoundResult, "finite", CHECK),
        (chain, "check_declared", CHECK),
    ]
    yield from [  # one client after the other
        (Part, "client", GATHER),
        (ModuleLoss, "gradient", GATHER),
        (ModuleLoss, "_gradient", COMPUTE),
        (ModuleLoss, "buffers", SET_UP),
        (SGD, "run", UPDATE),
        (serial, "fault", CHECK),
        (serial, "buffer_fault", CHECK),
    ]
    yield from [  # several clients at once
        (training, "batch_indices", DRAW),
        (training, "_step", SET_UP),
        (training, "_train_by_kernel", COMPUTE),
        (vectorised, "assembled_problem", METHOD),
        (vectorised, "finished_in_pieces", METHOD),
        (RandomMasks, "__init__", SET_UP),
        (BatchStream, "__init__", GATHER),
        (BatchStream, "at", GATHER),
        *((kind, "backward", COMPUTE) for kind in Network.__subclasses__()),
        (FusedStep, "product", UPDATE),
        (FusedStep, "plain", UPDATE),
        (FullStep, "finish", UPDATE),
        (vectorised, "fault", CHECK),
        (vectorised, "buffer_fault", CHECK),
    ]
    yield from [  # on threads
        (vectorised.VectorisedEngine, "_chunk_result", REST),
        (ThreadedEngine, "_reply", REST),
        (Future, "result", WAIT),
    ]


def _batches(watch: Stopwatch) -> Any:
    """Wrap the serial engine's generator of batches, which draws them one by one."""
    draw = minibatches.batches

    def batches(*arguments: Any) -> Iterator[Any]:
        stream = draw(*arguments)
        while True:
            with watch.part(DRAW):
                batch = next(stream)
            yield batch

    return batches


def _training(watch: Stopwatch) -> Any:
    """Wrap the set-up before and after the work of a client of the serial engine."""
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
