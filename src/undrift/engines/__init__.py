"""Engines: how the clients' local problems are solved. All give the same answer."""

from collections.abc import Callable

from undrift.engines.base import Engine, Errand, Job, Reply, RoundResult, Watch
from undrift.engines.serial import SerialEngine
from undrift.engines.vectorised import VectorisedEngine, vectorised
from undrift.losses import Losses

ENGINES: dict[str, Callable[[Losses, Job], Engine]] = {
    "serial": SerialEngine,
    "vectorised": vectorised,
}
"""Every engine, by name."""

__all__ = [
    "ENGINES",
    "Engine",
    "Errand",
    "Job",
    "Reply",
    "RoundResult",
    "SerialEngine",
    "VectorisedEngine",
    "Watch",
]
