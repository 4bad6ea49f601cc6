"""Measures of heterogeneity: of the clients' minima, of their gradients, and of their drift."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core.losses import Losses
from undrift.theory import _checks


def gamma(problem: Losses, q: Tensor, F_star: float, local_minima: Tensor) -> float:
    """Γ = F* − Σ q_k F_k* ≥ 0 (FedAvg-nonIID, section 3.1): 0 if one model minimises every f_k.

    F* is the minimum of F = Σ q_k f_k, local_minima [N] are the F_k* = min f_k.
    """
    q = _checks.weights(q, "gamma", len(problem))
    minima = torch.as_tensor(local_minima, dtype=torch.float64)
    _checks.require(
        minima.shape == q.shape,
        f"gamma: the local minima have shape {list(minima.shape)}, but must be one per client,"
        f" {len(q)}.",
    )
    return float(F_star) - float(q @ minima)


class Dissimilarity(NamedTuple):
    """Differences of the clients' gradients at one x; mean_square = square_mean + variance."""

    mean_square: float  # Σ q_k|∇f_k|²
    square_mean: float  # |∇F|²
    ratio: float  # B²(x) = mean_square / square_mean
    variance: float  # Σ q_k|∇f_k − ∇F|²


def dissimilarity(problem: Losses, q: Tensor, x: Tensor) -> Dissimilarity:
    """The dissimilarity of the clients' gradients at x, in the measures that papers bound.

    The ratio B²(x) is FedProx's: 1 for equal gradients (also if all are zero), infinite at an
    optimum of F that does not minimise every f_k. The variance is FedLGA's σ_g² (Assumption 3)
    and, for β² = 1, FedNova's κ² (Assumption 3: Σ w_i|∇F_i|² ≤ β²|Σ w_i∇F_i|² + κ²).
    FedAvg-nonIID bounds every |∇f_k|² by G² and measures heterogeneity by Γ instead.
    """
    q = _checks.weights(q, "dissimilarity", len(problem))
    mean = torch.zeros_like(x, dtype=torch.float64)
    mean_square = variance = weight = 0.0
    for k, share in enumerate(q.tolist()):
        if share == 0:
            continue
        # One gradient is in memory at a time. Welford's update keeps the variance accurate for
        # similar gradients, where mean_square − square_mean would cancel.
        gradient = problem.gradient(k, x).double()
        weight += share
        apart = gradient - mean
        mean += share / weight * apart
        mean_square += share * float(gradient.square().sum())
        variance += share * (1 - share / weight) * float(apart.square().sum())
    square_mean = float(mean.square().sum())
    if square_mean > 0:
        ratio = mean_square / square_mean
    else:
        ratio = math.inf if mean_square > 0 else 1.0
    return Dissimilarity(mean_square, square_mean, ratio, variance)


class Drift(NamedTuple):
    """Distances of the clients' models x_k from x and from each other; moved = apart + together."""

    apart: float  # Σ w_k|x_k − x̄|², x̄ = Σ w_k x_k: the part that averaging cancels
    moved: float  # Σ w_k|x_k − x|²: all movement
    together: float  # |x̄ − x|²: the part that averaging keeps


def drift(ends: Tensor, start: Tensor, weights: Tensor) -> Drift:
    """Client drift in one round, from x = start [P] to the clients' x_k = ends [C, P].

    The weights [C] sum to one. FedAvg-nonIID's Lemma 3 bounds `apart` by 4η²(E−1)²G².
    """
    w = _checks.weights(weights, "drift", len(ends))
    _checks.require(
        ends.ndim == 2 and start.shape == ends.shape[1:],
        f"drift: ends has shape {list(ends.shape)} and start {list(start.shape)},"
        " but they must be [C, P] and [P].",
    )
    steps = ends.double() - start.double()
    mean = w @ steps
    return Drift(
        apart=float(w @ (steps - mean).square().sum(1)),
        moved=float(w @ steps.square().sum(1)),
        together=float(mean.square().sum()),
    )
