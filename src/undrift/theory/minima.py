"""Minima of the clients' losses, found numerically, and the Γ that follows from them."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core.losses import Losses
from undrift.theory import _checks
from undrift.theory.heterogeneity import gamma
from undrift.utils.errors import require_range, require_whole

STRETCH = 25  # iterations between two looks at the gradient's norm


class Minimum(NamedTuple):
    """Where a minimisation ended."""

    x: Tensor
    value: float  # F(x), with the l2 term
    gradient_norm: float  # |∇F(x)|
    converged: bool  # whether the norm is within the tolerance


def minimum(
    losses: Losses,
    weights: Tensor,
    start: Tensor | None = None,
    weight_decay: float = 0.0,
    tolerance: float = 1e-8,
    iterations: int = 10_000,
) -> Minimum:
    """A minimum of F = Σ q_k f_k + (weight_decay/2)|x|², by L-BFGS on all data.

    The minimum of a convex F; otherwise one that lies downhill from the start. If F is strongly
    convex with μ (the weight decay, if the f_k are convex), value − F* ≤ tolerance²/(2μ).

    Parameters
    ----------
    weights
        the q_k, `[N]`; clients of weight zero are left out, so that one-hot weights give F_k*
    start
        where to start (default: x⁰); its type is the precision that is worked in
    tolerance
        the |∇F| at which to stop
    iterations
        how many to make at most
    """
    q = _checks.weights(weights, "minimum", len(losses))
    require_range("weight_decay", weight_decay, at_least=0)
    require_range("tolerance", tolerance, above=0)
    require_whole("iterations", iterations, at_least=1)
    taking_part = [(k, share) for k, share in enumerate(q.tolist()) if share > 0]
    x = (losses.initial() if start is None else start).detach().clone()

    def evaluate() -> Tensor:
        value = 0.5 * weight_decay * float(x.square().sum())
        x.grad = weight_decay * x
        for k, share in taking_part:
            value += share * losses.value(k, x)
            x.grad += share * losses.gradient(k, x)
        return torch.tensor(value, dtype=torch.float64)

    def fresh() -> torch.optim.Optimizer:
        return torch.optim.LBFGS(
            [x],
            max_iter=STRETCH,
            tolerance_grad=tolerance / math.sqrt(len(x)),  # for the largest entry
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

    optimiser, restarted = fresh(), True
    value, norm = float(evaluate()), _norm(x)
    for _ in range(math.ceil(iterations / STRETCH)):
        if norm <= tolerance or not math.isfinite(value + norm):
            break
        before, slope = value, norm
        optimiser.step(evaluate)  # type: ignore[arg-type]
        value, norm = float(evaluate()), _norm(x)
        stuck = norm >= slope and before - value <= 1e-12 * max(1.0, abs(value))
        if stuck and restarted:  # at a kink, or at the end of this precision
            break
        restarted = stuck
        if stuck:  # what it has learnt about the curvature may have misled it
            optimiser = fresh()
    return Minimum(x, value, norm, norm <= tolerance)


class Gamma(NamedTuple):
    """Γ, and what it was computed from."""

    value: float  # Γ = F* − Σ q_k F_k*
    global_minimum: float  # F*
    local_minima: Tensor  # F_k*, [N]; NaN for a client of weight zero
    gradient_norm: float  # the largest that remained in any of the minimisations
    converged: bool  # whether all of them reached the tolerance


def find_gamma(
    losses: Losses,
    weights: Tensor,
    start: Tensor | None = None,
    weight_decay: float = 0.0,
    tolerance: float = 1e-8,
    iterations: int = 10_000,
    watched: Callable[[list[int]], Iterable[int]] = iter,
) -> Gamma:
    """Γ = F* − Σ q_k F_k* (FedAvg-nonIID, section 3.1), every loss with (weight_decay/2)|x|².

    F is minimised from the start, every f_k from where that ended: downhill from there, so that
    Γ ≥ 0 also for losses that are not convex. For those it is the Γ of the minima found.
    `iterations` bounds each minimisation. `watched` is given the list of minimisations before they
    are gone through, to show how far it is.
    """
    q = _checks.weights(weights, "find_gamma", len(losses))
    taking_part = q.nonzero()[:, 0].tolist()
    minima = torch.full_like(q, math.nan)
    whole = None
    norms = []
    for number in watched(list(range(1 + len(taking_part)))):
        if whole is None:
            whole = minimum(losses, q, start, weight_decay, tolerance, iterations)
            norms.append(whole.gradient_norm)
            continue
        k = taking_part[number - 1]
        alone = torch.zeros_like(q)
        alone[k] = 1.0
        own = minimum(losses, alone, whole.x, weight_decay, tolerance, iterations)
        minima[k] = own.value
        norms.append(own.gradient_norm)
    assert whole is not None
    value = gamma(losses, q, whole.value, minima.masked_fill(q == 0, 0.0))
    worst = max(norms, key=lambda norm: math.inf if math.isnan(norm) else norm)
    return Gamma(value, whole.value, minima, worst, worst <= tolerance)


def _norm(x: Tensor) -> float:
    assert x.grad is not None
    return float(x.grad.norm())
