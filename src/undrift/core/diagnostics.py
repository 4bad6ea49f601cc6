"""What a round says about drift and consistency, besides the model's metrics.

drift
    √(Σ w_k|x_k − x̄|²): how far the cohort's models ended from their mean; averaging cancels it
moved
    √(Σ w_k|x_k − x|²): how far they went from the server's model x
tau_eff
    τ_eff = Σ w_k‖a_k‖₁, the number of steps an averaging round is worth (FedNova, eq. 6)
chi_square
    χ²(w‖w'): how much the weights w' that the method really gives to the clients' gradients
    differ from the wanted w (FedNova, Theorem 2); for methods that add up the clients' moves
dual_residual, step
    the norm of the server's estimate of the mean gradient, where the method has one; and of the
    server's step |x⁺ − x|

The weights w_k are the q_k of the cohort, each as often as drawn, adding up to one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from undrift.core.replies import Replies, q_draws

if TYPE_CHECKING:
    from undrift.core.method import Method
    from undrift.core.problem import ServerState

MOVED = "@moved"
"""The names under which the engine adds up what diagnostics need; they are no traffic."""
SQUARE = "@square"
A_NORM = "@progress"


def diagnose(
    method: Method, before: ServerState, after: ServerState, replies: Replies
) -> dict[str, float]:
    """The diagnostics of a round, as far as they are defined."""
    found = {"step": float((after.x - before.x).double().norm())}
    if not replies.count:
        return found
    square = float(replies.mean(SQUARE, by=q_draws))
    together = float(replies.mean(MOVED, by=q_draws).double().square().sum())
    found["moved"] = math.sqrt(square)
    found["drift"] = math.sqrt(max(square - together, 0.0))
    a_norm = replies.each(A_NORM)
    if bool((a_norm > 0).all()):
        w = replies.weights(q_draws)
        w = w / w.sum()
        found["tau_eff"] = float(w @ a_norm)
        used = method.weights_used(w, a_norm)
        if used is not None:
            used = used / used.sum()
            found["chi_square"] = float(torch.where(w == used, 0.0, (w - used) ** 2 / used).sum())
    dual = method.dual_residual(after)
    if dual is not None:
        found["dual_residual"] = dual
    return found
