"""Fixed points of averaging methods on quadratics (FedNova, section 3; FedAvg-nonIID, eq. 28).

f_i(x) = ½xᵀH_i x − b_iᵀx, full participation, gradient descent with a constant rate η and τ_i
local steps. Client i moves x by −M_i(H_i x − b_i), M_i = η Σ_{s<τ_i} (I − η(H_i + μI))^s, so the
average does not move where Σ ω_i M_i (H_i x − b_i) = 0, which is not the optimum of F.
"""

import torch
from torch import Tensor

from undrift.theory._checks import Steps, weights
from undrift.theory._checks import steps as _steps
from undrift.theory.consistency import a_norm_proximal, effective_weights
from undrift.utils.errors import require


def averaging_fixed_point(
    H: Tensor, b: Tensor, omega: Tensor, lr: float, steps: Steps, mu: float = 0.0
) -> Tensor:
    """x∞ = (Σ ω_i M_i H_i)⁻¹ Σ ω_i M_i b_i, for H [N, P, P], b [N, P] and ω [N] of any scale.

    A run converges to it if a round is a contraction, as for H_i ⪰ 0 and η(L + μ) ≤ 1.
    """
    where = "averaging_fixed_point"
    H, b = _quadratics(H, b, where)
    omega = torch.as_tensor(omega, dtype=torch.float64)
    require(
        omega.shape == b.shape[:1] and bool((omega >= 0).all()) and float(omega.sum()) > 0,
        f"{where}: omega is {omega.tolist()}, but must be {len(b)} numbers of at least 0,"
        " not all zero.",
    )
    require(
        lr > 0 and mu >= 0,
        f"{where}: lr = {lr:g} and mu = {mu:g}, but lr must be above 0 and mu at least 0.",
    )
    eye = torch.eye(b.shape[1], dtype=torch.float64)
    runs = zip(H, _steps(steps, where, len(b)).tolist(), strict=True)
    sums = torch.stack([_power_sum(eye - lr * (h + mu * eye), int(tau)) for h, tau in runs])
    M = omega[:, None, None] * sums  # the factor η cancels
    return _solve((M @ H).sum(0), (M @ b[:, :, None]).sum(0)[:, 0], where)


def fedavg(H: Tensor, b: Tensor, q: Tensor, lr: float, steps: Steps) -> Tensor:
    """FedAvg's fixed point: ω_i = q_i, μ = 0."""
    return averaging_fixed_point(H, b, weights(q, "fedavg", len(b)), lr, steps)


def fedprox(H: Tensor, b: Tensor, q: Tensor, lr: float, steps: Steps, mu: float) -> Tensor:
    """FedProx's fixed point: ω_i = q_i, pull μ."""
    return averaging_fixed_point(H, b, weights(q, "fedprox", len(b)), lr, steps, mu)


def fednova(H: Tensor, b: Tensor, q: Tensor, lr: float, steps: Steps, mu: float = 0.0) -> Tensor:
    """FedNova's fixed point, for any τ_eff: ω_i = q_i/‖a_i‖₁, which is q_i/τ_i for μ = 0."""
    q, tau = weights(q, "fednova", len(b)), _steps(steps, "fednova", len(b))
    return averaging_fixed_point(H, b, q / a_norm_proximal(tau, lr * mu), lr, tau, mu)


def surrogate_optimum(H: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """The minimiser of Σ w_i f_i: the optimum of F for w = q, and the limit of FedAvg's fixed
    point as η → 0 for w_i ∝ q_iτ_i."""
    H, b = _quadratics(H, b, "surrogate_optimum")
    w = weights(w, "surrogate_optimum", len(b))
    return _solve(torch.einsum("k,kij->ij", w, H), w @ b, "surrogate_optimum")


def spherical(e: Tensor, omega: Tensor, lr: float, steps: Steps, mu: float = 0.0) -> Tensor:
    """x∞ on f_i = ½|x − e_i|²: Σ ω_i c_i e_i / Σ ω_i c_i with c_i = 1 − (1 − η(1+μ))^{τ_i}."""
    e = torch.as_tensor(e, dtype=torch.float64)
    tau = _steps(steps, "spherical", len(e))
    c = torch.as_tensor(omega, dtype=torch.float64) * (1.0 - (1.0 - lr * (1.0 + mu)) ** tau)
    return (c / c.sum()) @ e


def lemma1(e: Tensor, q: Tensor, steps: Steps) -> Tensor:
    """Σ q_iτ_i e_i / Σ q_iτ_i: FedAvg's fixed point on f_i = ½|x − e_i|² as η → 0 (Lemma 1)."""
    return effective_weights(q, _steps(steps, "lemma1", len(e))) @ e.double()


def _power_sum(R: Tensor, tau: int) -> Tensor:
    """Σ_{s<τ} R^s by repeated doubling; it needs no inverse, so H_i + μI may be singular."""
    total, power = torch.zeros_like(R), torch.eye(len(R), dtype=R.dtype)  # Σ_{s<k} R^s, R^k
    for bit in f"{tau:b}":
        total, power = total + power @ total, power @ power
        if bit == "1":
            total, power = total + power, power @ R
    return total


def _quadratics(H: Tensor, b: Tensor, where: str) -> tuple[Tensor, Tensor]:
    H, b = torch.as_tensor(H, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    require(
        b.ndim == 2 and H.shape == (*b.shape, b.shape[1]),
        f"{where}: H has shape {list(H.shape)} and b {list(b.shape)},"
        " but they must be [N, P, P] and [N, P].",
    )
    return H, b


def _solve(A: Tensor, rhs: Tensor, where: str) -> Tensor:
    require(
        float(torch.linalg.cond(A)) < 1e14,
        f"{where}: the averaged Hessian is singular, but it must be invertible.",
    )
    solution: Tensor = torch.linalg.solve(A, rhs)
    return solution
