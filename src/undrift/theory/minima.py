"""Minima of F and of the clients' losses, found numerically, and Γ computed from them."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core.losses import Losses
from undrift.theory import _checks
from undrift.theory.heterogeneity import gamma
from undrift.utils.errors import require_range, require_whole

CHECK_ITERATIONS = 25  # L-BFGS iterations between two checks of the gradient's norm


class Minimum(NamedTuple):
    """The result of a minimisation."""

    x: Tensor
    value: float  # F(x), with the l2 term
    gradient_norm: float  # |∇F(x)|
    converged: bool  # whether the norm is at most the tolerance


def minimum(
    losses: Losses,
    weights: Tensor,
    start: Tensor | None = None,
    weight_decay: float = 0.0,
    tolerance: float = 1e-8,
    iterations: int = 10_000,
) -> Minimum:
    """A minimum of F = Σ q_k f_k + (weight_decay/2)|x|², by L-BFGS on all data.

    For a convex F it is the global minimum, otherwise a local one that is not above the start. If
    F is μ-strongly convex, value − F* ≤ tolerance²/(2μ); μ is the weight decay for convex f_k.

    Parameters
    ----------
    weights
        the q_k, `[N]`; clients of weight zero are left out, so that one-hot weights give F_k*
    start
        the first x (default: x⁰); its dtype is the precision of the computation
    tolerance
        stop when |∇F| is at most this
    iterations
        the largest number of iterations
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

    def new_optimiser() -> torch.optim.Optimizer:
        return torch.optim.LBFGS(
            [x],
            max_iter=CHECK_ITERATIONS,
            tolerance_grad=tolerance / math.sqrt(len(x)),  # it tests the largest entry, not |∇F|
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

    optimiser, restarted = new_optimiser(), True
    value, norm = float(evaluate()), _norm(x)
    for _ in range(math.ceil(iterations / CHECK_ITERATIONS)):
        if norm <= tolerance or not math.isfinite(value + norm):
            break
        before, slope = value, norm
        optimiser.step(evaluate)  # type: ignore[arg-type]
        value, norm = float(evaluate()), _norm(x)
        stuck = norm >= slope and before - value <= 1e-12 * max(1.0, abs(value))
        if stuck and restarted:  # a kink of F, or the limit of the floating-point precision
            break
        restarted = stuck
        if stuck:  # its estimate of the curvature may be wrong: start with a new one
            optimiser = new_optimiser()
    return Minimum(x, value, norm, norm <= tolerance)


class Gamma(NamedTuple):
    """Γ and the minima it was computed from."""

    value: float  # Γ = F* − Σ q_k F_k*
    global_minimum: float  # F*
    local_minima: Tensor  # F_k*, [N]; NaN for a client of weight zero
    gradient_norm: float  # the largest final norm of all minimisations
    converged: bool  # whether all of them reached the tolerance


def find_gamma(
    losses: Losses,
    weights: Tensor,
    start: Tensor | None = None,
    weight_decay: float = 0.0,
    tolerance: float = 1e-8,
    iterations: int = 10_000,
    tracked: Callable[[list[int]], Iterable[int]] = iter,
) -> Gamma:
    """Γ = F* − Σ q_k F_k* (FedAvg-nonIID, section 3.1), every loss with (weight_decay/2)|x|².

    F is minimised from `start`, and every f_k from F's minimum: it can only go down from there, so
    Γ ≥ 0 also for losses that are not convex, where it is the Γ of the minima found. `iterations`
    bounds each minimisation. `tracked` wraps the list of minimisations, to show a progress bar.
    """
    q = _checks.weights(weights, "find_gamma", len(losses))
    taking_part = q.nonzero()[:, 0].tolist()
    minima = torch.full_like(q, math.nan)
    whole: Minimum | None = None
    norms = []
    for number in tracked(list(range(1 + len(taking_part)))):
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
