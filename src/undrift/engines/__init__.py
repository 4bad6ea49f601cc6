"""Engines compute the clients' local work. All of them give the same result up to rounding.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""

from undrift.engines.auto import AutoEngine
from undrift.engines.base import Engine, Job
from undrift.engines.options import ENGINES, EngineOptions, engine_options
from undrift.engines.serial import SerialEngine
from undrift.engines.tuned import TunedEngine
from undrift.engines.vectorised import VectorisedEngine

__all__ = [
    "ENGINES",
    "AutoEngine",
    "Engine",
    "EngineOptions",
    "Job",
    "SerialEngine",
    "TunedEngine",
    "VectorisedEngine",
    "engine_options",
]
