"""Loops: carry out a run, in rounds or as replies arrive, with or without a virtual clock.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""

from undrift.core.clients import ClientStates
from undrift.engines.serial import SerialEngine
from undrift.loops.asynchronous import Asynchronous
from undrift.loops.base import Loop
from undrift.loops.paces import AsTheyArrive
from undrift.loops.spec import Callback, EngineFactory, RunSpec, StatesFactory, pace_of
from undrift.loops.synchronous import Synchronous

__all__ = [
    "Asynchronous",
    "Callback",
    "EngineFactory",
    "Loop",
    "RunSpec",
    "StatesFactory",
    "Synchronous",
    "loop",
    "pace_of",
]


def loop(
    spec: RunSpec, engine: EngineFactory = SerialEngine, states: StatesFactory = ClientStates
) -> Loop:
    """The loop that executes a run: asynchronous if its pace is, synchronous otherwise."""
    kind = Asynchronous if isinstance(spec.effective_pace, AsTheyArrive) else Synchronous
    return kind(spec, engine, states)
