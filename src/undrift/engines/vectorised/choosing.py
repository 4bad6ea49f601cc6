"""Which way of computing many clients at once fits a model, and how many at once."""

from __future__ import annotations

import os
import warnings

from torch import nn

from undrift.engines.base import Engine, Job
from undrift.engines.serial import SerialEngine
from undrift.engines.threaded import ThreadedEngine
from undrift.engines.vectorised.engine import VectorisedEngine
from undrift.engines.vectorised.networks import Network, stacked_network, vmapped_network
from undrift.losses import Losses
from undrift.modules import ModuleLosses

CACHE = 1_500_000
"""Bytes of parameters that are worked on at once: so many stay near a core."""
MOST = 32


def vectorised(losses: Losses, job: Job, threads: int | None = None) -> Engine:
    """The engine that fits a model: layers written out, vmap, or a client per thread.

    An analytic problem, and a model that draws what cannot be keyed, is worked on client by client.
    """
    if not isinstance(losses, ModuleLosses):
        return SerialEngine(losses, job)
    threads = threads or os.cpu_count() or 1
    network: Network | str = stacked_network(losses)
    if isinstance(network, str) and not _is_heavy(losses.flat.module):
        network = vmapped_network(losses)
    if not isinstance(network, str):
        x = losses.flat.x
        chunk = max(2, min(MOST, CACHE // (x.numel() * x.element_size())))
        return VectorisedEngine(losses, job, network, chunk, threads)
    if losses.draws_otherwise:
        warnings.warn(
            "The model is trained one client after another, since it draws random numbers in "
            "another way than by nn.Dropout.",
            stacklevel=2,
        )
        return SerialEngine(losses, job)
    return ThreadedEngine(losses, job, threads)


def _is_heavy(module: nn.Module) -> bool:
    """Whether a module has layers that gain nothing from many clients at once on a processor."""
    kinds = (nn.modules.conv._ConvNd, nn.RNNBase)
    return any(isinstance(each, kinds) for each in module.modules())
