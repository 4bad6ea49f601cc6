"""Admissible step sizes of FedDR and asyncFedDR (Tran-Dinh et al., NeurIPS 2021).

Both methods decrease one function of the server's and the clients' models,
    V = g(x̄) + Σ q_k [f_k(x_k) + ⟨∇f_k(x_k), x̄ − x_k⟩ + |x̄ − x_k|²/(2η)],
as long as (α, η) is inside a bound that depends on the smoothness L and, for asyncFedDR, on the
number of clients n and the longest delay τ. The f_k may be non-convex; proximal steps are exact.
"""

import math
from typing import NamedTuple

from undrift.utils.errors import require

SAFETY = 0.99  # computed step sizes are this fraction of their bounds, which are strict


def feddr_limit(L: float, alpha: float) -> float:
    """(2 − α)/(2L), for 0 < α < 2: the bound on η below which FedDR decreases V.

    The root of β = 0 (`feddr_descent`), since 2 − α − αz − 2z² = (2 − α − 2z)(1 + z).
    """
    require(
        L > 0 and 0 < alpha < 2,
        f"feddr: L = {L:g} and alpha = {alpha:g}, but L must be positive and alpha in (0, 2).",
    )
    return (2.0 - alpha) / (2.0 * L)


def feddr(L: float, alpha: float = 1.0) -> float:
    """An η of FedDR for the relaxation α: `SAFETY` times its bound."""
    return SAFETY * feddr_limit(L, alpha)


def feddr_descent(L: float, alpha: float, eta: float) -> float:
    """β = (2 − α − αLη − 2L²η²)/(2αη): V falls by at least β Σ_{k∈S} q_k|x_k⁺ − x_k|²
    in a round.

    Theorem 3.1's β for exact proximal steps; no larger one holds for all L-smooth f_k.
    """
    z = L * eta
    return (2 - alpha - alpha * z - 2 * z * z) / (2 * alpha * eta)


def feddr_constant(L: float, alpha: float, eta: float, probability: float) -> float:
    """C₁ = 2(1+ηL)²(1+η²L²)/(η²α²βp̂): the mean of E|G_η(x̄)|² over K rounds is ≤ C₁(V⁰ − F*)/K.

    Theorem 3.1 for exact proximal steps; p̂ is the smallest probability of a client to be active.
    At α = 1, η = 1/(3L), p̂ = 1/n it is Corollary 3.1's 160Ln/3.
    """
    problem = check_feddr(L, alpha, eta)
    require(problem is None, f"feddr_constant: {problem}")
    z = L * eta
    weight = eta**2 * alpha**2 * feddr_descent(L, alpha, eta) * probability
    return 2 * (1 + z) ** 2 * (1 + z * z) / weight


def feddr_rate(L: float, alpha: float, eta: float, probability: float) -> float:
    """(1+ηL)⁴/(η²α²βp̂): the mean of E|G_η(x̄)|² over x̄⁰ … x̄ᴷ is ≤ this·(F(x⁰) − F*)/(K + 1).

    For exact proximal steps and the start x_k = x⁰, y_k = x⁰ + η∇f_k(x⁰), for which V⁰ = F(x⁰). It
    is at most C₁ of `feddr_constant`, since (1 + z)² ≤ 2(1 + z²).
    """
    z = L * eta
    return feddr_constant(L, alpha, eta, probability) * (1 + z) ** 2 / (2 * (1 + z * z))


def prox_error(L: float, eta: float, gradient_norm: float) -> float:
    """|∇|/(1/η − L): bounds the distance of a client's model to the exact proximal point.

    |∇| is the norm of ∇f_k(x) + (x − y)/η at the model, which solvers stop by. The local problem is
    (1/η − L)-strongly convex for η < 1/L, and no smaller bound holds for all L-smooth f_k.
    """
    require(
        L >= 0 and eta > 0 and L * eta < 1,
        f"prox_error: L = {L:g} and eta = {eta:g}, but L must be at least 0, eta in (0, 1/L).",
    )
    return gradient_norm / (1 / eta - L)


def check_feddr(L: float, alpha: float, eta: float) -> str | None:
    """A sentence that says which of α and η is outside FedDR's bound, or None."""
    if not 0 < alpha < 2:
        return _outside("FedDR", "alpha", alpha, 2.0, "any L")
    limit = feddr_limit(L, alpha)
    return _outside("FedDR", "eta", eta, limit, f"alpha = {alpha:g} and L = {L:g}")


class StepSizes(NamedTuple):
    """Step sizes of asyncFedDR, the limits they lie below, and the descent they give."""

    alpha: float
    eta: float
    alpha_limit: float  # ᾱ
    eta_limit: float  # η̄ for this α
    rho: float  # ρ > 0


def async_feddr(L: float, n: int, delay: int, alpha: float | None = None) -> StepSizes:
    """Step sizes for n clients and delays up to τ (Theorem 4.1).

    α is half its limit unless given: as α approaches its limit, the bound on η goes to zero.
    """
    top = async_alpha_limit(n, delay)
    alpha = top / 2 if alpha is None else alpha
    limit = async_limit(L, n, delay, alpha)
    eta = SAFETY * limit
    return StepSizes(alpha, eta, top, limit, async_descent(L, n, delay, alpha, eta))


def async_alpha_limit(n: int, delay: int) -> float:
    """ᾱ = 2/(2 + c), which is 1 when 2τ² ≤ n (eq. 8)."""
    return 2.0 / (2.0 + _excess(n, delay))


def async_limit(L: float, n: int, delay: int, alpha: float) -> float:
    """η̄ = [√(16 − 8α − (7+12c+4c²)α²) − α] / (2L(2 + (1+c)α)), c = max(0, (2τ²−n)/n) (eq. 8).

    The root of ρ = 0. The paper prints 7+4c+4c², for which ρ < 0 just below the bound.
    """
    c, top = _excess(n, delay), async_alpha_limit(n, delay)
    require(
        L > 0 and 0 < alpha < top,
        f"async_feddr: L = {L:g} and alpha = {alpha:g}, but L must be positive and alpha in"
        f" (0, {top:.4g}) for {n} clients and delays up to {delay}.",
    )
    root = math.sqrt(16 - 8 * alpha - (7 + 12 * c + 4 * c * c) * alpha**2)
    return (root - alpha) / (2 * L * (2 + (1 + c) * alpha))


def async_descent(L: float, n: int, delay: int, alpha: float, eta: float) -> float:
    """ρ = [2(1−α) − (2+α)L²η² − Lαη − cα(1+L²η²)]/(αηn) (eq. 9).

    After any number of updates V has fallen by at least (ρ/2) Σ |x_k⁺ − x_k|², for q_k = 1/n.
    """
    z, c = L * eta, _excess(n, delay)
    undelayed = 2 * (1 - alpha) - (2 + alpha) * z * z - alpha * z
    return (undelayed - c * alpha * (1 + z * z)) / (alpha * eta * n)


def check_async_feddr(L: float, n: int, delay: int, alpha: float, eta: float) -> str | None:
    """A sentence that says which of α and η is outside asyncFedDR's bound, or None."""
    top, setting = async_alpha_limit(n, delay), f"{n} clients and delays up to {delay}"
    if not 0 < alpha < top:
        return _outside("asyncFedDR", "alpha", alpha, top, setting)
    limit = async_limit(L, n, delay, alpha)
    return _outside("asyncFedDR", "eta", eta, limit, f"alpha = {alpha:g}, L = {L:g}, {setting}")


def _excess(n: int, delay: int) -> float:
    """c = max(0, (2τ² − n)/n): zero if n clients are many enough for the delay (2τ² ≤ n)."""
    require(
        n >= 1 and delay >= 0,
        f"async_feddr: n = {n} and delay = {delay}, but n must be at least 1 and delay at least 0.",
    )
    return max(0.0, (2 * delay**2 - n) / n)


def _outside(method: str, name: str, value: float, limit: float, setting: str) -> str | None:
    if 0 < value < limit:
        return None
    return (
        f"{method}'s {name} = {value:g} has no convergence guarantee,"
        f" which needs 0 < {name} < {limit:.4g} for {setting}."
    )
