"""FedLGA's Theorem 1 for ρ = 0: every device finishes its work (Li et al., 2021).

The paper's term with ρ > 0 rests on its Lemma 1, which bounds the error of a Taylor step with the
true Hessian. FedLGA's literal form replaces the Hessian by g gᵀ, which Lemma 1 does not cover:
there is no bound for the method as it runs on unfinished devices.
"""

from math import sqrt

from undrift.utils.errors import require


def descent(L: float, lr: float, server_lr: float, steps: int) -> float:
    """c₁ = ½ − 15E²η²L² > 0, which needs η ≤ 1/(√30·LE) and η_gη ≤ 1/(LE)."""
    require(
        30 * (lr * L * steps) ** 2 < 1 and server_lr * lr * L * steps <= 1 + 1e-12,
        f"fedlga: lr = {lr:g} and server_lr = {server_lr:g}, but Theorem 1 needs lr < 1/(√30·LE) "
        f"and lr·server_lr ≤ 1/(LE).",
    )
    return 0.5 - 15 * (lr * L * steps) ** 2


def noise(
    L: float, lr: float, server_lr: float, steps: int, clients: int, sigma2: float, spread2: float
) -> float:
    """Φ = Lη_gησ²/(2N) + (5/2)η²EL²(σ² + 6Eσ_g²).

    σ² bounds the variance of stochastic gradients and σ_g² that of the clients' gradients. A round
    satisfies E f(x⁺) ≤ f(x) − c₁η_gηE|∇f(x)|² + η_gηE·Φ.
    """
    sampled = L * server_lr * lr * sigma2 / (2 * clients)
    return sampled + 2.5 * (lr * L) ** 2 * steps * (sigma2 + 6 * steps * spread2)


def bound(
    rounds: int,
    gap: float,
    *,
    L: float,
    lr: float,
    server_lr: float,
    steps: int,
    clients: int,
    sigma2: float = 0.0,
    spread2: float = 0.0,
) -> float:
    """Theorem 1: the mean of |∇f|² over T rounds is ≤ gap/(c₁η_gηET) + Φ/c₁, gap = f⁰ − f*."""
    c1 = descent(L, lr, server_lr, steps)
    rest = noise(L, lr, server_lr, steps, clients, sigma2, spread2)
    return gap / (c1 * server_lr * lr * steps * rounds) + rest / c1


def corollary1(L: float, steps: int, clients: int, rounds: int) -> tuple[float, float]:
    """(η, η_g) = (1/(√T·EL), √(EN)), with which the bound is O(1/√(ENT) + 1/T)."""
    return 1 / (sqrt(rounds) * steps * L), sqrt(steps * clients)


def corollary2(L: float, steps: int, cohort: int, rounds: int) -> tuple[float, float]:
    """(η, η_g) = (1/(√T·EL), √(EK)) for K of N devices: the bound is O(√E/√(KT) + 1/T)."""
    return corollary1(L, steps, cohort, rounds)
