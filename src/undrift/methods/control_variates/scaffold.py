"""SCAFFOLD."""

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.core.method import ZERO
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, q
from undrift.methods.common.averaging import Averaging
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer, require_optimizer
from undrift.utils.errors import require_choice


class SCAFFOLD(Averaging):
    """Stochastic controlled averaging (Karimireddy et al., ICML 2020).

    Each client corrects its gradients by c − c_k, the difference between the mean gradient of all
    clients and its own, so that every client descends on F. Converges to the optimum.

    Parameters
    ----------
    option
        how a client computes its new control variate c_k: "II", from its own move (the paper's
        choice), or "I", as its full gradient at the server's model (one more pass over its data)
    server
        the server optimiser, which gets the average move; `ud.server.Plain(lr)` sets η_g
    """

    averages_moves = False
    why_not_robust = "its control variate is the exact sum of what clients keep"
    sends = ("x", "c")
    keeps = {"c": ZERO}
    elementwise = True
    uploads = {"moved": q, "c_change": q}
    paper = "Karimireddy et al., SCAFFOLD, ICML 2020"
    why_synchronous = "its control variates are differences from the model a round began with"

    def __init__(self, option: str = "II", server: ServerOptimizer = Plain()):
        require_choice("SCAFFOLD's option", option, ("I", "II"))
        self.option = option
        self.server = require_optimizer(server)
        self.needs_steps = option == "II"

    def weights_used(self, wanted: Tensor, a_norm: Tensor) -> Tensor | None:
        return None

    def dual_residual(self, server: ServerState) -> float | None:
        return float(server.c.norm())

    def init(self, x: Tensor) -> ServerState:
        return super().init(x).replace(c=torch.zeros_like(x))

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        ask = ("first_gradient",) if self.option == "I" else ()
        return LocalProblem(start=down.x, linear=down.c - mine.c, ask=ask)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        moved = result.x - down.x
        if self.option == "I":
            c = result.first_gradient
            change = c - mine.c
        else:
            change = -down.c - moved / (result.rate * result.a_norm)  # η‖a_k‖₁ = ητ_k
            c = mine.c + change
        return Upload(moved=moved, c_change=change), Keep(c=c)

    def upload_scales(self, rate: float, steps: int) -> Mapping[str, float]:
        return {"c_change": 1 / (rate * steps)}

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return Keep(c=keep.c + error.c_change)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        N, K = replies.clients, replies.count
        update = N / K * replies.sum("moved", by=q)
        c = server.c + replies.sum("c_change", by=q)
        return ServerState(**self.move(server, update, replies), c=c)
