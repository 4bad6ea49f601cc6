"""Diagnostics of a round: drift of the clients and consistency of the averaging weights.

drift
    √(Σ w_k|x_k − x̄|²): distance of the cohort's models from their mean, which averaging cancels;
    not in deployments with compressed uploads, since it needs the sum of whole moves
moved
    √(Σ w_k|x_k − x|²): distance of the cohort's models from the server's model x
tau_eff
    τ_eff = Σ w_k‖a_k‖₁: the number of steps that an averaging round is worth (FedNova, eq. 6)
chi_square
    χ²(w‖w'): difference between the wanted weights w and the weights w' that the method really
    gives to the clients' gradients (FedNova, Theorem 2); for methods that sum the clients' moves
dual_residual
    norm of the server's estimate of ∇F, if the method has one
step
    |x⁺ − x|, the length of the server's step

The weights w_k are q_k times the client's draws, normalised to sum to one over the cohort.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from undrift.core.replies import Replies, q_draws
from undrift.utils.norms import squared_norm

if TYPE_CHECKING:
    from undrift.core.method import Method
    from undrift.core.problem import ServerState

# Names under which engines add diagnostic values to an upload. They do not count as traffic, and
# the "@" keeps them apart from a method's own uploads.
MOVED = "@moved"  # x_k − x
SQUARE = "@square"  # |x_k − x|²
A_NORM = "@progress"  # ‖a_k‖₁


def diagnose(
    method: Method, before: ServerState, after: ServerState, replies: Replies
) -> dict[str, float]:
    """The diagnostics of a round that are defined for the method and its clients' solvers."""
    found = {"step": math.sqrt(squared_norm(after.x, before.x))}
    if not replies.count:
        return found
    square = float(replies.mean(SQUARE, by=q_draws))
    found["moved"] = math.sqrt(square)
    if replies.exact_sum(MOVED, q_draws) is not None:
        together = squared_norm(replies.mean(MOVED, by=q_draws))
        found["drift"] = math.sqrt(max(square - together, 0.0))
    a_norm = replies.each(A_NORM)
    if bool((a_norm > 0).all()):  # NaN for solvers without gradient steps
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
