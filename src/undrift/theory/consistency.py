"""The objective that federated averaging really optimises (FedNova, Wang et al., NeurIPS 2020).

Client i's local solver moves by −η Σ_s a_{i,s} g_{i,s}: a_{i,s} is the weight of gradient s, and
‖a_i‖₁ the accumulated gradient weight. Averaging with weights p_i then optimises Σ w_i F_i with
w_i ∝ p_i ‖a_i‖₁ instead of F = Σ p_i F_i.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.theory._checks import Steps, weights
from undrift.theory._checks import steps as _steps
from undrift.utils.errors import require


def coefficients(
    steps: int,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    pull: float = 0.0,
    factors: Sequence[float] | None = None,
) -> Tensor:
    """The vector a_i [steps] of section 4.1, for any local solver; it sums to ‖a_i‖₁.

    Parameters
    ----------
    momentum, nesterov
        ρ (its buffer starts at zero), and whether the momentum is Nesterov's
    pull
        α = ημ of the proximal term
    factors
        the γ_s of a schedule η_s = η·γ_s (default: all one)
    """
    steps = int(_steps(steps, "coefficients"))
    gammas = [1.0] * steps if factors is None else [float(f) for f in factors]
    require(
        len(gammas) == steps and all(0 <= g < math.inf for g in gammas),
        f"coefficients: there are {len(gammas)} factors for {steps} steps,"
        " but must be one finite non-negative number per step.",
    )
    # With ηγ_sμ > 1 a step overshoots the centre, so old gradients would get negative weights.
    require(
        0 <= momentum < 1 and pull >= 0 and pull * max(gammas) <= 1,
        f"coefficients: momentum = {momentum:g} and pull = {pull:g}, but momentum must be in [0, 1)"
        " and pull at least 0 and at most 1 divided by the largest factor.",
    )
    buffer = torch.zeros(steps, dtype=torch.float64)  # c: gradient weights in the momentum buffer
    moved = torch.zeros(steps, dtype=torch.float64)  # A: gradient weights in the model's move
    for s, gamma in enumerate(gammas):
        buffer *= momentum
        buffer[s] += 1.0
        moved *= 1.0 - pull * gamma
        moved += gamma * (momentum * buffer if nesterov else buffer)
        moved[s] += gamma * nesterov
    return moved


def a_norm_sgd(tau: Steps) -> Tensor:
    """‖a‖₁ = τ of plain SGD."""
    return _steps(tau, "a_norm_sgd")


def a_norm_proximal(tau: Steps, pull: float) -> Tensor:
    """‖a‖₁ = [1 − (1−α)^τ]/α of proximal SGD, α = ημ (eq. 7)."""
    require(0 <= pull <= 1, f"a_norm_proximal: pull is {pull:g}, but it must be in [0, 1].")
    return _geometric(1.0 - pull, _steps(tau, "a_norm_proximal"))


def a_norm_decay(tau: Steps, gamma: float) -> Tensor:
    """‖a‖₁ = (1−γ^τ)/(1−γ) of SGD whose rate is multiplied by γ after every step."""
    require(0 <= gamma < math.inf, f"a_norm_decay: gamma is {gamma:g}, but must be at least 0.")
    return _geometric(gamma, _steps(tau, "a_norm_decay"))


def a_norm_momentum(tau: Steps, rho: float) -> Tensor:
    """‖a‖₁ = [τ − ρ(1−ρ^τ)/(1−ρ)]/(1−ρ) of SGD with momentum ρ."""
    require(0 <= rho < 1, f"a_norm_momentum: rho is {rho:g}, but it must be in [0, 1).")
    tau = _steps(tau, "a_norm_momentum")
    return (tau - rho * _geometric(rho, tau)) / (1.0 - rho)


def effective_weights(p: Tensor, a_norm: Tensor) -> Tensor:
    """w_i = p_i‖a_i‖₁ / Σ_j p_j‖a_j‖₁: the weights that plain averaging optimises for (eq. 6)."""
    scaled = _scaled(p, a_norm, "effective_weights")
    return scaled / scaled.sum()


def tau_effective(p: Tensor, a_norm: Tensor) -> float:
    """τ_eff = Σ p_i‖a_i‖₁: the number of steps one averaging round is worth (eq. 6)."""
    return float(_scaled(p, a_norm, "tau_effective").sum())


def chi_square(p: Tensor, w: Tensor) -> float:
    """χ²(p‖w) = Σ (p_i − w_i)²/w_i: zero if and only if the weights agree (Theorem 2)."""
    p = weights(p, "chi_square")
    w = weights(w, "chi_square", len(p))
    return float(torch.where(p == w, 0.0, (p - w) ** 2 / w).sum())


class Theorem1Constants(NamedTuple):
    """The constants of Theorem 1 (eq. 9)."""

    A: float  # the share of gradient noise that survives averaging
    B: float  # noise inside a local run
    C: float  # drift inside a local run


def theorem1(w: Tensor, a: Sequence[Tensor], tau_eff: float) -> Theorem1Constants:
    """A = mτ_eff Σ w_i²‖a_i‖₂²/‖a_i‖₁², B = Σ w_i(‖a_i‖₂² − a_{i,−1}²),
    C = max_i(‖a_i‖₁² − ‖a_i‖₁ a_{i,−1}), with a_{i,−1} the last entry (eq. 9)."""
    w = weights(w, "theorem1", len(a))
    one, two, last = torch.tensor([[v.sum(), v @ v, v[-1]] for v in a], dtype=torch.float64).T
    return Theorem1Constants(
        A=float(len(a) * tau_eff * (w**2 * two / one**2).sum()),
        B=float((w * (two - last**2)).sum()),
        C=float((one**2 - one * last).max()),
    )


def theorem1_bound(
    constants: Theorem1Constants,
    *,
    lr: float,
    tau_eff: float,
    rounds: int,
    clients: int,
    L: float,
    gap: float,
    sigma2: float = 0.0,
    kappa2: float = 0.0,
    beta2: float = 1.0,
) -> float:
    """ε_opt: min_t E|∇F̃(x_t)|² ≤ 4·gap/(ητ_eff T) + 4ηLσ²A/m + 6η²L²σ²B + 12η²L²κ²C.

    Theorem 1 with the constants that eq. 8 hides in O(·); eq. 8 is the case η = √(m/(τ̄T)).
    gap = F̃(x_0) − inf F̃, σ² bounds the gradient noise, (β², κ²) are Assumption 3's. The proof
    assumes that the model after s local steps contains the first s entries of a_i. This is true
    for SGD and decaying rates, and safe for momentum. With a proximal pull it contains the last s
    entries, the larger ones, and the proof would need B and C without a_i's first entry instead.
    """
    A, B, C = constants
    require(
        2 * lr * L * tau_eff <= 1 and 4 * (lr * L) ** 2 * C * (2 * beta2 + 1) <= 1,
        f"theorem1_bound: lr = {lr:g} is too large for L = {L:g}: Theorem 1 needs"
        " ηL ≤ 1/(2τ_eff) and ηL ≤ 1/(2√(C(2β²+1))).",
    )
    noise = 4 * lr * L * sigma2 * A / clients + 6 * (lr * L) ** 2 * sigma2 * B
    return 4 * gap / (lr * tau_eff * rounds) + noise + 12 * (lr * L) ** 2 * kappa2 * C


def theorem3_bound(
    rounds: Sequence[tuple[Theorem1Constants, float]],
    *,
    lr: float,
    clients: int,
    L: float,
    gap: float,
    sigma2: float = 0.0,
    kappa2: float = 0.0,
    beta2: float = 1.0,
) -> float:
    """min_t E|∇F(x_t)|² of FedNova with other local work in every round (Theorem 3).

    [4·gap/η + Σ_t τ_t(4ηLσ²A_t/m + 6η²L²σ²B_t + 12η²L²κ²C_t)]/Σ_t τ_t, for a pair of (A, B, C) and
    τ_eff per round. Each round satisfies E F(x⁺) ≤ F(x) + ητ_t/4·(its bracket − |∇F(x)|²). The
    paper's rate is η = √(m²/K) with K = Σ_iΣ_t τ_i(t) (it prints m Σ_t τ_i(t)).
    """
    require(len(rounds) >= 1, "theorem3_bound: there are no rounds, but it needs at least one.")
    total, weight = 4 * gap / lr, 0.0
    for constants, tau_eff in rounds:
        own = theorem1_bound(
            constants,
            lr=lr,
            tau_eff=tau_eff,
            rounds=1,
            clients=clients,
            L=L,
            gap=0.0,
            sigma2=sigma2,
            kappa2=kappa2,
            beta2=beta2,
        )
        total, weight = total + tau_eff * own, weight + tau_eff
    return total / weight


def theorem2_bound(p: Tensor, w: Tensor, eps_opt: float, *, beta2: float, kappa2: float) -> float:
    """|∇F|² ≤ 2[χ²(β²−1) + 1]ε_opt + 2χ²κ², χ² = χ²(p‖w): the last term never vanishes (eq. 10)."""
    chi = chi_square(p, w)
    return 2 * (chi * (beta2 - 1) + 1) * eps_opt + 2 * chi * kappa2


def weight_bias(alpha: float, tau: Steps, p: Tensor) -> float:
    """χ²(p‖w) of FedProx against α = ημ (Fig. 4, blue): falls to 0 at α = 1."""
    return chi_square(p, effective_weights(p, a_norm_proximal(tau, alpha)))


def slowdown(alpha: float, tau: Steps, p: Tensor) -> float:
    """τ̄/τ_eff of FedProx against α = ημ, τ̄ = Σ τ_i/m (Fig. 4, red): grows to τ̄ at α = 1."""
    return float(_steps(tau, "slowdown").mean()) / tau_effective(p, a_norm_proximal(tau, alpha))


def relative_variance(alpha: float, tau: Steps, p: Tensor) -> float:
    """Theorem 1's A of FedProx against α = ημ (Fig. 4): 1 for FedAvg with equal weights."""
    a_norm = a_norm_proximal(tau, alpha)
    numbers = [int(t) for t in _steps(tau, "relative_variance")]
    by_number = {t: coefficients(t, pull=alpha) for t in {*numbers}}
    a = [by_number[t] for t in numbers]
    return theorem1(effective_weights(p, a_norm), a, tau_effective(p, a_norm)).A


def _scaled(p: Tensor, a_norm: Tensor, where: str) -> Tensor:
    p, a_norm = weights(p, where), torch.as_tensor(a_norm, dtype=torch.float64)
    require(
        a_norm.shape == p.shape and bool((a_norm > 0).all()),
        f"{where}: a_norm is {a_norm.tolist()}, but must be {len(p)} positive numbers.",
    )
    return p * a_norm


def _geometric(ratio: float, tau: Tensor) -> Tensor:
    """Σ_{s<τ} ratio^s for ratio ≥ 0, accurate where ratio is close to one."""
    if ratio in (0.0, 1.0):
        return tau.clone() if ratio else torch.ones_like(tau)
    return torch.expm1(tau * math.log(ratio)) / (ratio - 1.0)
