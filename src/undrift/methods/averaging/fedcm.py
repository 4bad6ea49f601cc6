"""FedCM."""

import torch
from torch import Tensor

from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies
from undrift.methods.averaging.fedavg import FedAvg
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer
from undrift.utils.errors import require_range


class FedCM(FedAvg):
    """Federated averaging with client-level momentum (Xu et al. 2021).

    A client descends along α∇f_k + (1 − α)D, where D is the mean direction of the previous cohort,
    so that clients go in a common direction without keeping state. With every client it converges
    to the point of FedAvg with the rate αη, also when clients take unequal steps.

    Parameters
    ----------
    alpha
        α, the share of a client's own gradient, above 0 and at most 1; 1 is FedAvg
    scheme, server
        as for FedAvg; the paper's global rate η_g is ours divided by ητ
    """

    averages_moves = False
    why_not_robust = "it also uses numbers that clients report"
    sends = ("x", "d")
    needs_steps = True
    paper = "Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021"

    def __init__(
        self, alpha: float = 0.1, scheme: str = "II-delta", server: ServerOptimizer = Plain()
    ):
        require_range("FedCM's alpha", alpha, above=0, at_most=1)
        super().__init__(scheme, server)
        self.alpha = alpha

    def weights_used(self, wanted: Tensor, a_norm: Tensor) -> Tensor | None:
        return None

    def init(self, x: Tensor) -> ServerState:
        return super().init(x).replace(d=torch.zeros_like(x))

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        scale = super().problem(down, mine, client).scale
        return LocalProblem(
            start=down.x, scale=self.alpha * scale, linear=(1 - self.alpha) * down.d
        )

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        return Upload(moved=result.x - down.x, progress=result.a_norm), mine

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        by = self._scheme.by
        # D = −(mean move)/(η·mean ‖a_k‖₁), which vanishes exactly where FedAvg stands still.
        moved = self._scheme.factor(replies) * replies.sum("moved", by=by)
        d = -moved / (replies.rate * replies.mean("progress", by=by))
        return super().fold(server, replies).replace(d=d)
