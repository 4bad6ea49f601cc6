"""Bounds on FedAvg's distance to the optimum after T steps (Li et al., ICLR 2020).

Theorems 1–3 are for L-smooth, μ-strongly convex f_k and the decaying rate η_t = 2/(μ(γ+t)),
Theorem 4 for a fixed rate. T and t count the SGD steps of one client over the whole run.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from undrift.theory._checks import weights
from undrift.theory.fixed_points import surrogate_optimum
from undrift.utils.errors import require


class Constants(NamedTuple):
    """The constants of Assumptions 1–4, for N clients and E local steps per round."""

    L: float  # every f_k is L-smooth
    mu: float  # and μ-strongly convex
    E: int
    q: Tensor  # the weights [N], p_k in the paper
    sigma: Tensor  # σ_k [N]: standard deviation of client k's stochastic gradient
    G: float  # bounds the root mean square of every stochastic gradient along the run
    Gamma: float  # Γ = F* − Σ p_k F_k*
    distance: float  # |w_0 − w*|


class Bounds(NamedTuple):
    """E[F(w_T)] − F* ≤ (2κ/(γ+T)) [(B+C)/μ + (μγ/4)|w_0 − w*|²].

    The paper's 2L|w_0 − w*|² is the last term for γ = 8κ; for E > 8κ only this form holds.
    """

    kappa: float  # κ = L/μ
    gamma: float  # γ = max(8κ, E)
    mu: float
    B: float  # Σ p_k²σ_k² + 6LΓ + 8(E−1)²G²
    C: float  # the effect of sampling clients
    distance: float

    def learning_rate(self, t: int) -> float:
        """η_t = 2/(μ(γ+t)) of SGD step t = 0, 1, …"""
        return 2.0 / (self.mu * (self.gamma + t))

    def bound(self, T: int) -> float:
        """The bound on E[F(w_T)] − F*, for T a multiple of E."""
        start = self.mu * self.gamma / 4 * self.distance**2
        return 2 * self.kappa / (self.gamma + T) * ((self.B + self.C) / self.mu + start)


def learning_rate(t: int, L: float, mu: float, E: int) -> float:
    """η_t = 2/(μ(γ+t)), γ = max(8L/μ, E) (Theorem 1)."""
    return 2.0 / (mu * (max(8.0 * L / mu, E) + t))


def full(c: Constants) -> Bounds:
    """Theorem 1: every client takes part, so C = 0."""
    q = weights(c.q, "bounds")
    require(
        0 < c.mu <= c.L and c.E >= 1 and min(c.G, c.Gamma, c.distance) >= 0,
        f"bounds: mu = {c.mu:g}, L = {c.L:g}, E = {c.E}, G = {c.G:g}, Gamma = {c.Gamma:g} and"
        f" distance = {c.distance:g}, but must satisfy 0 < mu ≤ L, E ≥ 1 and the others ≥ 0.",
    )
    noise = float((q**2 * torch.as_tensor(c.sigma, dtype=torch.float64) ** 2).sum())
    B = noise + 6 * c.L * c.Gamma + 8 * ((c.E - 1) * c.G) ** 2
    kappa = c.L / c.mu
    return Bounds(kappa, max(8 * kappa, c.E), c.mu, B, 0.0, c.distance)


def scheme_one(c: Constants, cohort: int) -> Bounds:
    """Theorem 2: K clients drawn with replacement by p_k and averaged, C = 4E²G²/K."""
    require(cohort >= 1, f"scheme_one: the cohort is {cohort}, but it must be at least 1.")
    return full(c)._replace(C=4 * (c.E * c.G) ** 2 / cohort)


def scheme_two(c: Constants, cohort: int) -> Bounds:
    """Theorem 3: K of N clients without replacement and p_k = 1/N, C = (N−K)/(N−1)·4E²G²/K."""
    N = len(c.q)
    require(1 <= cohort <= N, f"scheme_two: the cohort is {cohort}, but it must be in 1 … {N}.")
    require(
        float((c.q - 1 / N).abs().max()) < 1e-9,
        "scheme_two: the weights are unequal, but Theorem 3 is for p_k = 1/N only;"
        " transformed_scheme_two takes any.",
    )
    left_out = (N - cohort) / max(N - 1, 1)
    return full(c)._replace(C=left_out * 4 * (c.E * c.G) ** 2 / cohort)


def transformed_scheme_two(c: Constants, cohort: int) -> Bounds:
    """Theorem 3 on N·p_k·f_k, whose plain mean is F: νL, ςμ, νG and N·p_kσ_k replace L, μ, G, σ_k.

    ν = N·max p_k, ς = N·min p_k. (The paper prints √ν for σ and G, which are not squared there.)
    """
    scale = len(c.q) * weights(c.q, "transformed_scheme_two")
    nu, least = float(scale.max()), float(scale.min())
    equal = torch.full_like(scale, 1 / len(scale))
    c = c._replace(L=nu * c.L, mu=least * c.mu, G=nu * c.G, sigma=scale * c.sigma, q=equal)
    return scheme_two(c, cohort)


def best_steps(c: Constants, cohort: int) -> float:
    """E*, the local steps with which scheme I needs fewest rounds for an accuracy (eq. 8).

    √((Σp_k²σ_k² + 6LΓ + 8G² + 2Lμ|w_0 − w*|²)/((8 + 4/K)G²)): the minimum of Theorem 2's bracket
    over E, for γ = 8κ. The paper drops the constants. c.E is not used.
    """
    require(cohort >= 1, f"best_steps: the cohort is {cohort}, but it must be at least 1.")
    require(c.G > 0, f"best_steps: G = {c.G:g}, but it must be above 0.")
    once = full(c._replace(E=1)).B + 8 * c.G**2 + 2 * c.L * c.mu * c.distance**2
    return float((once / ((8 + 4 / cohort) * c.G**2)) ** 0.5)


def best_steps_as_printed(c: Constants, cohort: int) -> float:
    """√((Σp_k²σ_k² + LΓ + κG²)/((1 + 1/K)G²)): eq. 8 as the paper prints it, constants dropped."""
    require(cohort >= 1, f"best_steps_as_printed: the cohort is {cohort}, but must be at least 1.")
    require(c.G > 0, f"best_steps_as_printed: G = {c.G:g}, but it must be above 0.")
    noise = float((c.q**2 * torch.as_tensor(c.sigma, dtype=torch.float64) ** 2).sum())
    top = noise + c.L * c.Gamma + c.L / c.mu * c.G**2
    return float((top / ((1 + 1 / cohort) * c.G**2)) ** 0.5)


def fixed_rate_bias(H: Tensor, b: Tensor, q: Tensor, lr: float, steps: int) -> Tensor:
    """The O(η) distance of FedAvg at a fixed rate from w*, on f_k = ½wᵀH_k w − b_kᵀw (Theorem 4).

    w∞ − w* = η(E−1)/2 · H̄⁻¹ Σ q_k H_k ∇f_k(w*) + O(η²), H̄ = Σ q_k H_k, with E = `steps` for all
    clients. It is zero for E = 1, in general for no other E. `fixed_points.fedavg` is exact in η.
    """
    gradients = torch.einsum("kij,j->ki", H, surrogate_optimum(H, b, q)) - b
    turned = torch.einsum("k,kij,kj->i", q, H, gradients)
    bias: Tensor = torch.linalg.solve(torch.einsum("k,kij->ij", q, H), turned)
    return lr * (steps - 1) / 2 * bias
