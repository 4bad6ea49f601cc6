"""FedExP."""

from torch import Tensor

from undrift.core.problem import Client, Download, Keep, LocalResult, ServerState, Upload
from undrift.core.replies import Replies, q_draws
from undrift.methods.common.averaging import UniformAveraging
from undrift.utils.errors import require_choice, require_range


class FedExP(UniformAveraging):
    """FedAvg with an extrapolating server step (Jhunjhunwala et al., ICLR 2023).

    η_g = max(1, Σ w_k|Δ_k|² / (2(|Σ w_kΔ_k|² + ε))) with w_k = q_k/Σ_S q_k: the more the clients'
    moves disagree, the larger the server's step. Near FedAvg's point the moves cancel and η_g
    grows, so that the model does not settle there; nothing is claimed about its limit.

    Parameters
    ----------
    eps
        ε, above 0: bounds η_g where the moves cancel
    reports
        "last two", the mean of the last two models, as in the paper, or "last"; clients always
        start from the last one
    """

    averages_moves = False
    why_not_robust = "it also uses numbers that clients report"
    converges_to = None
    paper = "Jhunjhunwala et al., FedExP: Speeding Up FedAvg via Extrapolation, ICLR 2023"

    def __init__(self, eps: float = 1e-3, reports: str = "last two"):
        require_range("FedExP's eps", eps, above=0)
        require_choice("FedExP's reports", reports, ("last two", "last"))
        self.eps = eps
        self.reports = reports

    def init(self, x: Tensor) -> ServerState:
        return ServerState(x=x, last=x)

    def download(self, server: ServerState) -> Download:
        return Download(x=server.last)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        moved = result.x - down.x
        return Upload(moved=moved, square=(moved**2).sum(-1, keepdim=moved.ndim > 1)), mine

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        mean = replies.mean("moved", by=q_draws)
        rate = replies.mean("square", by=q_draws) / (2 * (float(mean @ mean) + self.eps))
        last = server.last + max(1.0, rate) * self.average(replies)
        shown = (last + server.last) / 2 if self.reports == "last two" else last
        return ServerState(x=shown, last=last)
