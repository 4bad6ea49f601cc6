"""FedDyn's convergence rates (Acar et al., ICLR 2021, Theorems 2–4), with their exact constants.

m clients with equal weights, P of them drawn uniformly in a round, and exact local minima. γᵗ is
the mean model of round t's cohort and γ⁰ = θ⁰ + h⁰/α. The theorems sum up a per-round inequality,

    r·E[Dᵗ + κCᵗ] ≤ E[Dᵗ⁻¹ + κCᵗ⁻¹] − κ₀E[Gᵗ⁻¹],

where D, C and G are given with each function. The paper rounds κ and 1/κ₀ up.
"""

from typing import NamedTuple

from undrift.utils.errors import require


class Rate(NamedTuple):
    """The constants of the per-round inequality."""

    kappa: float  # κ
    kappa0: float  # κ₀
    growth: float = 1.0  # r

    def bound(self, rounds: int, distance: float, spread: float) -> float:
        """(D⁰ + κC⁰)/(κ₀R), R = Σ_{t<T} rᵗ: bounds the mean of G⁰ … G^{T−1} with the weights rᵗ."""
        total = sum(self.growth**t for t in range(rounds))
        return (distance + self.kappa * spread) / (self.kappa0 * total)


def convex(L: float, alpha: float, clients: int, cohort: int) -> Rate:
    """Theorem 2 and Lemma 1, for convex L-smooth f_k and α ≥ 25L.

    D = |γ − x*|², C = (1/m)Σ|∇f_k(θ_k) − ∇f_k(x*)|², G = F(γ) − F*. With h_k = 0 at the start, C⁰
    is (1/m)Σ|∇f_k(x*)|². The bound holds for F(mean of γ⁰ … γ^{T−1}) − F*, too.
    """
    _check("convex", L, alpha, clients, cohort, 25 * L)
    excess = alpha**2 - 20 * L**2
    kappa = 8 * clients / cohort * (L + alpha) / (alpha * excess)
    return Rate(kappa, 2 / alpha * (alpha**2 - 20 * alpha * L - 40 * L**2) / excess)


def strongly_convex(L: float, mu: float, alpha: float, clients: int, cohort: int) -> Rate:
    """Theorem 3 and Lemma 8, for μ-strongly convex f_k and α ≥ max(5μm/P, 30L): r = 1 + μ/α.

    D, C and G are those of `convex`; the bound holds for the mean of the γᵗ with the weights rᵗ.
    """
    m, P = clients, cohort
    require(0 < mu <= L, f"strongly_convex: mu = {mu:g}, but it must be in (0, {L:g}].")
    _check("strongly_convex", L, alpha, m, P, max(5 * mu * m / P, 30 * L))
    z = alpha**3 * P + alpha**2 * mu * (P - m) - 20 * alpha * L**2 * P
    z += 4 * L**2 * m * mu - 20 * L**2 * P * mu
    top = 2 * alpha**3 * P + 2 * alpha**2 * mu * (P - m) - 40 * alpha**2 * L * P
    top += -80 * alpha * L**2 * P - 40 * alpha * L * P * mu + 8 * alpha * L * m * mu
    top += 16 * L**2 * m * mu - 80 * L**2 * P * mu
    return Rate(8 * m * (L + alpha) / z, top / (alpha * z), 1 + mu / alpha)


def nonconvex(L: float, alpha: float, clients: int, cohort: int) -> Rate:
    """Theorem 4 and Lemma 10, for L-smooth f_k and α ≥ 20Lm/P.

    D = F(γ) − F*, C = (1/m)Σ|θ_k − γ|², G = |∇F(γ)|². C⁰ needs ∇f_k(θ_k⁰) = h_k⁰: with h_k⁰ = 0,
    θ_k⁰ is a stationary point of f_k. The paper prints −16L²Pm in κ₀; its proof gives +16L²Pm.
    """
    m, P = clients, cohort
    _check("nonconvex", L, alpha, m, P, 20 * L * m / P)
    z = alpha**2 * P**2 - 32 * L**2 * m**2 + 16 * L**2 * P * m - 20 * L**2 * P**2
    kappa = 4 * L**3 * P * (alpha + L) * (2 * m - P) / (alpha * z)
    return Rate(kappa, (z - 4 * alpha * L * P**2 - 4 * L**2 * P**2) / (2 * alpha * z))


def _check(where: str, L: float, alpha: float, clients: int, cohort: int, least: float) -> None:
    require(
        L > 0 and alpha >= least * (1 - 1e-12) and 1 <= cohort <= clients,
        f"{where}: L = {L:g}, alpha = {alpha:g} and a cohort of {cohort} of {clients}, but L must "
        f"be above 0, alpha at least {least:.4g} and the cohort in 1 … {clients}.",
    )
