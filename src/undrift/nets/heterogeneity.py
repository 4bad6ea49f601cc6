"""Heterogeneity at a model: gradient dissimilarity, and the gap Γ between minima.

`FederatedData.describe(model)` calls `measure_model`: the only import from the data layer upwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import deepcopy

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from undrift.core.losses import objective_weights
from undrift.data.description import Gradients, MinimaGap
from undrift.data.federated import FederatedData
from undrift.nets.module_losses import ModuleLosses
from undrift.theory.heterogeneity import dissimilarity
from undrift.theory.minima import find_gamma
from undrift.utils.display import redraws
from undrift.utils.errors import UndriftError

LBFGS_ITERATIONS = 1000
"""The largest number of L-BFGS iterations for each minimum that Γ needs."""


def measure_model(
    data: FederatedData,
    model: nn.Module,
    gamma: bool,
    objective: str,
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    weight_decay: float,
    tolerance: float,
    device: str | torch.device,
) -> tuple[Gradients, MinimaGap | None]:
    """The gradient dissimilarity at a model's weights and, if `gamma` is set, the gap Γ.

    The parameters are those of `undrift.data.description.describe`.
    """
    q = objective_weights(data.train.sizes, objective)
    losses = _losses(data, model, gamma, loss, device)
    start = losses.initial()
    found = dissimilarity(losses, q, start)
    gradients = Gradients(
        objective, found.ratio, found.variance, found.square_mean, found.mean_square
    )
    if not gamma:
        return gradients, None
    gap = find_gamma(losses, q, start, weight_decay, tolerance, LBFGS_ITERATIONS, _with_progress)
    return gradients, MinimaGap(
        objective, gap.value, weight_decay, tolerance, gap.gradient_norm, gap.converged
    )


def _losses(
    data: FederatedData,
    model: nn.Module,
    double: bool,
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    device: str | torch.device,
) -> ModuleLosses:
    """The clients' losses of a model, in double precision if asked for and possible."""
    with warnings.catch_warnings():
        # The warning is about training, which changes buffers; here nothing is trained.
        warnings.filterwarnings("ignore", message="The model has buffers")
        if double and isinstance(model, nn.Module):
            with suppress(UndriftError):  # not every model works in double precision
                return ModuleLosses(deepcopy(model).double(), data, loss, device=device)
        return ModuleLosses(model, data, loss, device=device)


def _with_progress(minimisations: list[int]) -> Iterable[int]:
    """The minimisations one by one, with a progress bar on a terminal."""
    console = Console(stderr=True)
    hidden = not redraws(console)
    return track(minimisations, "minimising", console=console, transient=True, disable=hidden)
