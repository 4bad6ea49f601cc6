"""FedDyn."""

import torch
from torch import Tensor

from undrift.core.method import ZERO, Method
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, once
from undrift.utils.errors import require_range


class FedDyn(Method):
    """Federated dynamic regularisation (Acar et al., ICLR 2021).

    Each client adds the linear term −⟨h_k, x⟩ to its loss, where h_k is its last gradient estimate,
    so that local minimisers agree with the global one. Converges to the optimum of F.

    Parameters
    ----------
    alpha
        α, the weight of the pull to the server's model; client k's is α_k = α/(N q_k)
    """

    keeps = {"h": ZERO}
    elementwise = True
    uploads = {"moved": once}
    paper = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    why_synchronous = "its server state h needs the cohort's moves from one common model"

    def __init__(self, alpha: float = 0.01):
        require_range("FedDyn's alpha", alpha, above=0)
        self.alpha = alpha

    def dual_residual(self, server: ServerState) -> float | None:
        return float(server.h.norm())

    def init(self, x: Tensor) -> ServerState:
        return ServerState(x=x, h=torch.zeros_like(x))

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        a = self.alpha * client.scale  # α_k = α / (N q_k)
        return LocalProblem(start=down.x, linear=-mine.h, center=down.x, weight=a)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        moved = result.x - down.x
        a = self.alpha * client.scale
        return Upload(moved=moved), Keep(h=mine.h - a * moved)

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return Keep(h=keep.h - self.alpha * client.scale * error.moved)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        moved = replies.mean("moved")
        h = server.h - self.alpha * replies.share * moved  # share = |S| / N
        return ServerState(x=server.x + moved - h / self.alpha, h=h)
