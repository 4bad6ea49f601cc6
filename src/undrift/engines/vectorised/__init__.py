"""Many clients at once: stacked layers or vmap, in chunks, on threads."""

from undrift.engines.vectorised.choosing import vectorised
from undrift.engines.vectorised.engine import VectorisedEngine
from undrift.engines.vectorised.networks import stacked_network, vmapped_network

__all__ = ["VectorisedEngine", "stacked_network", "vectorised", "vmapped_network"]
