"""Fixed points of averaging methods on quadratics (FedNova, section 3; FedAvg-nonIID, eq. 28).

f_i(x) = ½xᵀH_i x − b_iᵀx, full participation, gradient descent with a constant rate η and τ_i
local steps. Client i moves x by −M_i(H_i x − b_i), M_i = η Σ_{s<τ_i} (I − η(H_i + μI))^s, so the
average does not move where Σ ω_i M_i (H_i x − b_i) = 0, which is not the optimum of F. With local
momentum M_i is another polynomial of H_i.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from undrift.theory._checks import Steps, weights
from undrift.theory._checks import steps as _steps
from undrift.theory.consistency import coefficients, effective_weights
from undrift.utils.errors import require


class LocalMomentum(NamedTuple):
    """The momentum of the local solver; its buffer starts at zero in every round."""

    rho: float = 0.0  # ρ
    nesterov: bool = False
    pull_inside: bool = False  # whether the pull μ is inside the buffer


NO_MOMENTUM = LocalMomentum()


def averaging_fixed_point(
    H: Tensor,
    b: Tensor,
    omega: Tensor,
    lr: float,
    steps: Steps,
    mu: float = 0.0,
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor:
    """x∞ = (Σ ω_i M_i H_i)⁻¹ Σ ω_i M_i b_i, for H [N, P, P], b [N, P] and ω [N] of any scale.

    A run converges to it if a round is a contraction, as for H_i ⪰ 0 and η(L + μ) ≤ 1 without
    momentum.
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
    taus = _steps(steps, where, len(b)).tolist()
    M = omega[:, None, None] * _gains(H, lr, taus, mu, momentum)  # the factor η cancels
    return _solve((M @ H).sum(0), (M @ b[:, :, None]).sum(0)[:, 0], where)


def fedavg(
    H: Tensor,
    b: Tensor,
    q: Tensor,
    lr: float,
    steps: Steps,
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor:
    """FedAvg's fixed point: ω_i = q_i, μ = 0."""
    q = weights(q, "fedavg", len(b))
    return averaging_fixed_point(H, b, q, lr, steps, momentum=momentum)


def fedprox(
    H: Tensor,
    b: Tensor,
    q: Tensor,
    lr: float,
    steps: Steps,
    mu: float,
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor:
    """FedProx's fixed point: ω_i = q_i, pull μ."""
    return averaging_fixed_point(H, b, weights(q, "fedprox", len(b)), lr, steps, mu, momentum)


def fednova(
    H: Tensor,
    b: Tensor,
    q: Tensor,
    lr: float,
    steps: Steps,
    mu: float = 0.0,
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor:
    """FedNova's fixed point, for any τ_eff: ω_i = q_i/‖a_i‖₁, which is q_i/τ_i for plain SGD."""
    q, tau = weights(q, "fednova", len(b)), _steps(steps, "fednova", len(b))
    options = {"momentum": momentum.rho, "nesterov": momentum.nesterov, "pull": lr * mu}
    norms = [float(coefficients(int(t), **options).sum()) for t in tau.tolist()]  # type: ignore[arg-type]
    omega = q / torch.tensor(norms, dtype=torch.float64)
    return averaging_fixed_point(H, b, omega, lr, tau, mu, momentum)


def fedcm(
    H: Tensor,
    b: Tensor,
    q: Tensor,
    lr: float,
    steps: Steps,
    alpha: float,
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor:
    """FedCM's fixed point: FedAvg's for the rate αη, since its direction D vanishes there."""
    return fedavg(H, b, q, alpha * lr, steps, momentum)


def mimelite(
    H: Tensor,
    b: Tensor,
    q: Tensor,
    lr: float,
    steps: Steps,
    beta: float,
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor:
    """MimeLite's fixed point, where m = ∇F(x).

    Client i moves x by −ηS_i[(1 − β)(H_i x − b_i) + βm] with S_i = Σ_{s<τ_i} (I − (1 − β)ηH_i)^s.
    """
    where = "mimelite"
    H, b = _quadratics(H, b, where)
    q = weights(q, where, len(b))
    taus = _steps(steps, where, len(b)).tolist()
    S = q[:, None, None] * _gains((1 - beta) * H, lr, taus, 0.0, momentum)
    mean_H, mean_b = torch.einsum("k,kij->ij", q, H), q @ b
    matrix = (S @ ((1 - beta) * H + beta * mean_H)).sum(0)
    right = (S @ ((1 - beta) * b + beta * mean_b)[:, :, None]).sum(0)[:, 0]
    return _solve(matrix, right, where)


def pfedme(
    H: Tensor,
    b: Tensor,
    q: Tensor,
    lr: float,
    steps: Steps,
    lam: float,
    eta: float,
    R: int,
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor:
    """pFedMe's fixed point: Σ q_i (I − (I − ηλM_iH_i)^R) (w − x_i*) = 0, with H_i x_i* = b_i.

    τ_i steps on the inner problem from w end at θ_i = w − M_i(H_i w − b_i), with M_i as above for
    μ = λ, and w_i = w − ηλ(w − θ_i), R times. For R = 1 it is FedProx's point for μ = λ, and with
    many steps the minimiser of the Moreau envelopes, `moreau_optimum`.
    """
    where = "pfedme"
    H, b = _quadratics(H, b, where)
    q = weights(q, where, len(b))
    eye = torch.eye(b.shape[1], dtype=torch.float64)
    total, right = torch.zeros_like(eye), torch.zeros_like(b[0])
    gains = _gains(H, lr, _steps(steps, where, len(b)).tolist(), lam, momentum)
    for h, v, share, gain in zip(H, b, q, gains, strict=True):
        step = eta * lam * lr * gain  # ηλM_i
        # (I − (I − A)^R) (w − x*) = Σ_{r<R} (I − A)^r A (w − x*), A = step·H_i, A x* = step·b_i
        repeated = share * _power_sum(eye - step @ h, R)
        total, right = total + repeated @ step @ h, right + repeated @ step @ v
    return _solve(total, right, where)


def moreau_optimum(H: Tensor, b: Tensor, q: Tensor, lam: float) -> Tensor:
    """The minimiser of Σ q_i F_i, F_i(w) = min_θ f_i(θ) + (λ/2)|θ − w|², the Moreau envelopes.

    ∇F_i(w) = λ(w − prox_i(w)) = λ(H_i + λI)⁻¹(H_i w − b_i).
    """
    where = "moreau_optimum"
    H, b = _quadratics(H, b, where)
    q = weights(q, where, len(b))
    require(lam > 0, f"{where}: lam = {lam:g}, but must be above 0.")
    shifted = H + lam * torch.eye(b.shape[1], dtype=torch.float64)
    A = torch.einsum("k,kij->ij", q, torch.linalg.solve(shifted, H))
    c = torch.einsum("k,ki->i", q, torch.linalg.solve(shifted, b))
    return _solve(A, c, where)


def prox(H: Tensor, b: Tensor, w: Tensor, lam: float) -> Tensor:
    """argmin_θ f_i(θ) + (λ/2)|θ − w|² for every client, `[N, P]`: the limit of Ditto's own models.

    For λ = 0 they are the clients' own minima.
    """
    H, b = _quadratics(H, b, "prox")
    require(lam >= 0, f"prox: lam = {lam:g}, but must be at least 0.")
    shifted = H + lam * torch.eye(b.shape[1], dtype=torch.float64)
    points: Tensor = torch.linalg.solve(shifted, b + lam * w)
    return points


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


def _gains(H: Tensor, lr: float, taus: list[float], mu: float, momentum: LocalMomentum) -> Tensor:
    """M_i/η of every client, `[N, P, P]`: τ_i steps from x move by −η(M_i/η)(H_i x − b_i)."""
    eye = torch.eye(H.shape[1], dtype=torch.float64)
    if momentum.rho == 0:
        runs = zip(H, taus, strict=True)
        return torch.stack([_power_sum(eye - lr * (h + mu * eye), int(tau)) for h, tau in runs])
    gains = []
    inside, outside = (mu, 0.0) if momentum.pull_inside else (0.0, mu)
    for h, tau in zip(H, taus, strict=True):
        # The gradient after a move of −ηA(Hx − b) is (I − ηHA)(Hx − b), and C is the buffer.
        A, C = torch.zeros_like(eye), torch.zeros_like(eye)
        for _ in range(int(tau)):
            new = eye - lr * (h @ A) - lr * inside * A
            C = momentum.rho * C + new
            gain = new + momentum.rho * C if momentum.nesterov else C
            A = (1 - lr * outside) * A + gain
        gains.append(A)
    return torch.stack(gains)


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
