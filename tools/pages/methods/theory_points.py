"""The limit points that theory predicts for runs without a closed form in `undrift verify`.

Each is computed from the clients' losses alone, by formulas that share no code with the methods.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tools.pages.methods.two_clients import LR
from undrift.theory import Quadratics, fixed_points


def weighted_by_steps(problem: Quadratics, q: Tensor, steps: Sequence[int]) -> Tensor:
    """Return the minimiser of Σ q_kτ_k f_k, where VRL-SGD stops at any rate.

    Its corrections keep Σ q_kτ_kΔ_k = 0, and at rest each is its client's gradient.
    """
    w = q * torch.tensor(steps, dtype=q.dtype)
    return fixed_points.surrogate_optimum(problem.H, problem.b, w / w.sum())


def weighted_by_arrivals(problem: Quadratics, counts: Tensor, steps: Sequence[int]) -> Tensor:
    """Return where moves that arrive one by one cancel over time, as the server's rate → 0.

    `counts` is Σ q_k·s(u) over a client's replies in a period: clients that reply more often count
    more, and late replies count less.
    """
    return fixed_points.averaging_fixed_point(problem.H, problem.b, counts, LR, steps)


def extrapolated(problem: Quadratics, q: Tensor, done: Sequence[int], expected: int) -> Tensor:
    """Return where averaging stops if moves are stretched by E/E_k."""
    factor = expected / torch.tensor(done, dtype=q.dtype)
    return fixed_points.averaging_fixed_point(problem.H, problem.b, q * factor, LR, done)


def approximated(problem: Quadratics, done: Sequence[int], damping: float) -> Tensor:
    """Return the fixed point of FedLGA's literal form with client 1 unfinished, by Newton's method.

    Δ_1 + λ g(g·(Δ_2 − Δ_1)) + Δ_2 = 0 with g = −Δ_1/(ητ_1), from client k's move over its steps,
    Δ_k = [(I − ηH_k)^τ_k − I](x − e_k).
    """
    eye = torch.eye(2, dtype=torch.float64)
    spread = [
        torch.linalg.matrix_power(eye - LR * H, t) for H, t in zip(problem.H, done, strict=True)
    ]

    def rest(x: Tensor) -> Tensor:
        first, second = (
            (spread[k] - eye) @ (x - problem.local_optimum(k)) for k in range(len(problem))
        )
        g = -first / (LR * done[0])
        return first + damping * g * (g @ (second - first)) + second

    x = problem.optimum(problem.weights("clients"))
    for _ in range(30):
        slope = torch.autograd.functional.jacobian(rest, x)
        x = x - torch.linalg.solve(slope, rest(x))
    return x
