"""Fixed points of methods with sharpness-aware gradients on quadratics (FedSAM, FedSpeed).

On f_i(x) = ½xᵀH_i x − b_iᵀx with g = H_i x − b_i, a client follows

    s_i(x) = (1 − a)∇f_i(x) + a∇f_i(x + ρ g/|g|) = g + aρ H_i g/|g|,

which is not linear, so the points are found by Newton's method. They exist and are unique near the
optimum for small ρ, as long as no client's own gradient vanishes there.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from undrift.theory._checks import Steps, weights
from undrift.theory._checks import steps as _steps
from undrift.theory.fixed_points import (
    NO_MOMENTUM,
    LocalMomentum,
    averaging_fixed_point,
    surrogate_optimum,
)
from undrift.utils.errors import UndriftError, require

MOST_ITERATIONS = 100
CONVERGED = 1e-10
"""How short the clients' mean is before the last step, relative to their own vectors. The error
that this step leaves is of the order of its square."""


def fedspeed_point(H: Tensor, b: Tensor, q: Tensor, rho: float, share: float = 1.0) -> Tensor:
    """FedSpeed's fixed point, for any local work: where Σ q_i s_i(x) = 0.

    It is the optimum of F for ρ = 0 or a = 0, and moves away from it in proportion to aρ.
    """
    where = "fedspeed_point"
    q = weights(q, where, len(b))
    _check(rho, share, where)
    start = surrogate_optimum(H, b, q)
    if rho * share == 0:  # no client's gradient is turned, and all may vanish at the optimum
        return start
    H, b = H.double(), b.double()
    return _newton(lambda x: _gradient(H, b, x.expand_as(b), rho * share), start, q, where)


def fedsam_point(
    H: Tensor,
    b: Tensor,
    q: Tensor,
    lr: float,
    steps: Steps,
    rho: float,
    share: float = 1.0,
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor:
    """FedSAM's fixed point with every client: where the mean of the clients' moves vanishes.

    Client i takes τ_i steps x ← x − η s_i(x). For ρ = 0 it is FedAvg's.
    """
    where = "fedsam_point"
    q, tau = weights(q, where, len(b)), _steps(steps, where, len(b))
    _check(rho, share, where)
    start = averaging_fixed_point(H, b, q, lr, steps, momentum=momentum)
    if rho * share == 0:
        return start
    H, b = H.double(), b.double()
    return _newton(lambda x: _moves(H, b, x, lr, tau, rho * share, momentum), start, q, where)


def _newton(
    clients: Callable[[Tensor], tuple[Tensor, Tensor]], x: Tensor, q: Tensor, where: str
) -> Tensor:
    """Where the mean of the clients' vectors vanishes; `clients` gives them and their Jacobians."""
    for _ in range(MOST_ITERATIONS):
        vectors, slope = clients(x)
        mean = q @ vectors
        x = x - torch.linalg.solve(torch.einsum("k,kij->ij", q, slope), mean)
        if float(mean.norm()) <= CONVERGED * float(q @ vectors.norm(dim=1)):
            return x
    raise UndriftError(f"{where}: Newton's method does not converge: use a smaller rho.")


def _gradient(H: Tensor, b: Tensor, x: Tensor, a_rho: float) -> tuple[Tensor, Tensor]:
    """s_i and its Jacobian at each client's x, `[N, P]` and `[N, P, P]`."""
    g = torch.einsum("kij,kj->ki", H, x) - b
    size = g.norm(dim=1, keepdim=True).clamp(min=1e-30)
    n = g / size
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    across = (eye - n[:, :, None] * n[:, None, :]) / size[:, :, None]  # the Jacobian of n by g
    s = g + a_rho * torch.einsum("kij,kj->ki", H, n)
    return s, H + a_rho * (H @ across @ H)


def _moves(
    H: Tensor,
    b: Tensor,
    x: Tensor,
    lr: float,
    tau: Tensor,
    a_rho: float,
    momentum: LocalMomentum,
) -> tuple[Tensor, Tensor]:
    """The clients' moves from x and their Jacobians."""
    clients, size = b.shape
    own = x.expand(clients, -1).clone()
    slope = torch.eye(size, dtype=torch.float64).expand(clients, -1, -1).clone()
    kept, kept_slope = torch.zeros_like(own), torch.zeros_like(slope)  # the momentum buffer
    for step in range(int(tau.max())):
        s, jacobian = _gradient(H, b, own, a_rho)
        turned = jacobian @ slope
        kept, kept_slope = momentum.rho * kept + s, momentum.rho * kept_slope + turned
        if momentum.nesterov:
            s, turned = s + momentum.rho * kept, turned + momentum.rho * kept_slope
        else:
            s, turned = kept, kept_slope
        active = (tau > step).double()
        slope = slope - lr * active[:, None, None] * turned
        own = own - lr * active[:, None] * s
    return own - x, slope - torch.eye(size, dtype=torch.float64)


def _check(rho: float, share: float, where: str) -> None:
    require(
        rho >= 0 and 0 <= share <= 1,
        f"{where}: rho = {rho:g} and share = {share:g}, but rho must be at least 0 and share from "
        "0 to 1.",
    )
