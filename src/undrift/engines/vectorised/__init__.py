"""Trains many clients at once, in chunks, with stacked layers or vmap, on several threads."""

from undrift.engines.vectorised.engine import VectorisedEngine
from undrift.engines.vectorised.networks import (
    ModuleNetwork,
    stacked_network,
    vmapped_network,
)

__all__ = [
    "ModuleNetwork",
    "VectorisedEngine",
    "stacked_network",
    "vmapped_network",
]
