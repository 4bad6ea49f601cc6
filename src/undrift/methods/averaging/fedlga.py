"""FedLGA."""

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.core.method import Conditions
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, Weight, draws
from undrift.methods.common.averaging import Averaging
from undrift.methods.common.schemes import SCHEMES, check_sampling
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer, require_optimizer
from undrift.utils.errors import require_choice, require_range


class FedLGA(Averaging):
    """Local gradient approximation for unfinished clients (Li et al. 2021).

    The server corrects the moves of clients that did not finish their work by a first-order step
    towards ŵ, the mean model of those that did:

        Δ̂_i = Δ_i + λ·G_i(ŵ − w_i),   G_i ≈ g_i g_iᵀ

    Parameters
    ----------
    form
        "literal", G v = g(g·v); "diagonal", G v = g ⊙ g ⊙ v; "extrapolate", Δ̂_i = Δ_i·E/E_i;
        "none", no correction
    damping
        λ, 1 in the paper; a negative λ reverses the correction, as an expansion of moves instead
        of gradients would
    cap
        whether to limit |λ||g|² to 1, so that the literal term is at most the projection of
        ŵ − w_i on g_i
    gradient
        g_i: "mean", −Δ_i/(η·steps), which needs no extra upload, or "last", the last minibatch
        gradient, which is uploaded
    server
        the server optimiser, which gets the mean move; `ud.server.Plain(lr)` sets η_g
    """

    averages_moves = False
    why_not_robust = "it also uses numbers that clients report"
    converges_to = "averaging"
    draws_by_weight = True
    needs_steps = True
    paper = "Li et al., FedLGA, 2021"
    why_synchronous = "it compares slow clients with those of the same round that finished"

    def __init__(
        self,
        form: str = "literal",
        damping: float = 1.0,
        cap: bool = False,
        gradient: str = "mean",
        server: ServerOptimizer = Plain(),
    ):
        require_choice("FedLGA's form", form, ("literal", "diagonal", "extrapolate", "none"))
        require_choice("FedLGA's gradient", gradient, ("mean", "last"))
        require_range("FedLGA's damping", damping)
        self.form = form
        self.damping = damping
        self.cap = cap
        self.gradient = gradient
        self.server = require_optimizer(server)

    @property
    def uploads(self) -> Mapping[str, Weight | tuple[Weight, ...]]:  # type: ignore[override]
        return {"moved": ()} | ({"gradient": ()} if self.gradient == "last" else {})

    def weights_used(self, wanted: Tensor, a_norm: Tensor) -> Tensor | None:
        return {"none": wanted * a_norm, "extrapolate": wanted}.get(self.form)

    def check(self, conditions: Conditions) -> None:
        super().check(conditions)
        check_sampling(self.name, SCHEMES["I"], conditions.participation, conditions.equal)

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x, ask=("last_gradient",) if self.gradient == "last" else ())

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        upload = Upload(moved=result.x - down.x, steps=result.steps, expected=result.expected)
        if self.gradient == "last":
            upload = upload.replace(gradient=result.last_gradient)
        return upload, mine

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        moved = replies.stack("moved")  # Δ_i, [|S|, P]
        count = replies.weights(draws).to(moved)[:, None]  # a client drawn twice counts twice
        steps = replies.each("steps").to(moved)[:, None]
        expected = replies.each("expected").to(moved)[:, None]
        slow = (steps < expected)[:, 0]
        if self.form == "extrapolate":
            moved = moved * expected / steps
        elif self.form != "none" and slow.any() and not slow.all():  # without a complete one, no ŵ
            finished = count * ~slow[:, None]
            target = (finished * moved).sum(0) / finished.sum()  # ŵ − x
            if self.gradient == "last":
                g = replies.stack("gradient")
            else:
                g = -moved / (replies.rate * steps)
            moved = moved + slow[:, None] * self._correction(g, target - moved)
        update = (count * moved).sum(0) / count.sum()
        return ServerState(**self.move(server, update, replies))

    def _correction(self, g: Tensor, gap: Tensor) -> Tensor:
        """λ·G_i(ŵ − w_i) for every row i, with gap = ŵ − w_i."""
        damping = torch.full_like(g[:, :1], self.damping)
        if self.cap:
            square = g.square().sum(-1, keepdim=True)
            most = 1 / square.clamp(min=1e-30)
            damping = torch.clamp(damping, -most, most)
        if self.form == "diagonal":
            return damping * g * g * gap
        return damping * g * (g * gap).sum(-1, keepdim=True)
