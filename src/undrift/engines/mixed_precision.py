"""Training in mixed precision: which losses allow it, and the engine that does it.

`Criterion.loss_of` calls the model under autocast. The gradients that come back are float32, like
the weights, the steps, the method and the folds.
"""

from __future__ import annotations

import torch
from torch import nn

from undrift.core.losses import Losses
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.gradient_check import GradientCheck
from undrift.engines.serial import SerialEngine
from undrift.engines.strategies import Strategy
from undrift.local.base import Local
from undrift.nets.criteria import FP32
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError, require

DEVICES = ("cpu", "cuda")
"""Devices on which torch.autocast has bfloat16; on cuda it was never tried."""


def mixed_losses(losses: Losses, local: Local, precision: str) -> ModuleLosses:
    """The losses in a reduced precision; raises where that is not defined."""
    asked = f"precision = {precision!r}"
    if not isinstance(losses, ModuleLosses):
        raise UndriftError(f"{asked} is for models, but this problem has none: leave it out.")
    dtype, device = losses.flat.x.dtype, losses.device.type
    require(
        dtype == torch.float32,
        f"{asked} is for models with float32 parameters, but those of this model are {dtype}.",
    )
    require(
        device in DEVICES,
        f"{asked} is for the devices {' and '.join(DEVICES)}, but the model is on {device!r}.",
    )
    require(
        device != "cuda" or torch.cuda.is_bf16_supported(),
        f"{asked} needs a GPU that computes in bfloat16, and this one does not: leave it out.",
    )
    solver = local.of(losses.ids[0])
    require(
        getattr(solver, "tolerance", None) is None,
        f"{asked} cannot be used with a tolerance: gradients in bfloat16 have two to three digits, "
        f"so that they do not become that small.",
    )
    return losses.in_precision(precision)


def mixed_engine(losses: Losses, job: Job, threads: int) -> SimulationEngine:
    """The engine that trains a client per thread; with 0 threads, one client after another.

    A thread trains one client at a time, since the layers for many clients compute in float32.
    """
    assert isinstance(losses, ModuleLosses)
    engine: SimulationEngine = SerialEngine(losses, job)
    if threads and not losses.uses_random_numbers_beyond_dropout:
        strategy = Strategy("module", 1, threads, channels_last=_convolves(losses))
        if _reproduces(losses, strategy):
            engine = strategy.engine(losses, job)
    engine.strategy = f"{engine.strategy}, {losses.precision}"
    return engine


def _convolves(losses: ModuleLosses) -> bool:
    """Whether the model has convolutions on a CPU, which are faster with channels last."""
    modules = losses.flat.module.modules()
    return losses.device.type == "cpu" and any(isinstance(m, nn.Conv2d) for m in modules)


def _reproduces(losses: ModuleLosses, strategy: Strategy) -> bool:
    """Whether the strategy computes the serial engine's gradients; judged in float32."""
    if losses.personal is not None or losses.train_part.lazy is not None:
        return True  # these train by the serial engine's own code, one client per thread
    exact = losses.in_precision(FP32)
    network = strategy.network_for(exact)
    return not isinstance(network, str) and GradientCheck(exact).failure(network, False) is None
