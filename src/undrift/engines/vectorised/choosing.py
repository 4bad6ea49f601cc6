"""Which way of computing many clients at once fits a model, and how many at once."""

from __future__ import annotations

import os
import warnings

from undrift.engines.base import Engine, Job
from undrift.engines.serial import SerialEngine
from undrift.engines.vectorised.engine import VectorisedEngine
from undrift.engines.vectorised.networks import stacked_network, vmapped_network
from undrift.losses import Losses
from undrift.modules import ModuleLosses

CACHE = 1_500_000
"""Bytes of parameters that are worked on at once: so many stay near a core."""
MOST = 32


def vectorised(losses: Losses, job: Job) -> Engine:
    """The vectorised engine for a model: with its layers written out, or else through vmap.

    An analytic problem, and a model that can do neither, is worked on client by client.
    """
    if not isinstance(losses, ModuleLosses):
        return SerialEngine(losses, job)
    stacked = stacked_network(losses)
    network = stacked if not isinstance(stacked, str) else vmapped_network(losses)
    if isinstance(network, str):
        warnings.warn(
            f"The model is trained one client after another, since {stacked} and {network}.",
            stacklevel=2,
        )
        return SerialEngine(losses, job)
    x = losses.flat.x
    chunk = max(2, min(MOST, CACHE // (x.numel() * x.element_size())))
    return VectorisedEngine(losses, job, network, chunk, os.cpu_count() or 1)
