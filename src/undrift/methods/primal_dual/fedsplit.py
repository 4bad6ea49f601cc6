"""FedSplit."""

from collections.abc import Mapping

from undrift.core.method import INITIAL, Method
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, Weight, q
from undrift.utils.errors import require_choice, require_range


class FedSplit(Method):
    """Peaceman–Rachford splitting (Pathak and Wainwright, NeurIPS 2020).

    x = Σ q_k z_k;  u_k = prox_{ηf_k}(2x − z_k);  z_k += 2(u_k − x). Converges to the optimum
    of F when every client takes part.

    Parameters
    ----------
    eta
        η of the prox
    average
        "full" (every client takes part), or an adaptation to partial participation from the
        appendix of FedDyn: "all" averages the z_k of all clients, "act" only the cohort's
    """

    keeps = {"z": INITIAL, "u": INITIAL}
    elementwise = True
    paper = "Pathak and Wainwright, FedSplit, NeurIPS 2020"
    why_synchronous = "it reflects all clients at one common model (AsyncFedDR is its relaxed form)"

    def __init__(self, eta: float = 1.0, average: str = "full"):
        require_range("FedSplit's eta", eta, above=0)
        require_choice("FedSplit's average", average, ("full", "all", "act"))
        self.eta = eta
        self.average = average
        self.needs_all = average == "full"
        self.uploads_models = average == "act"

    @property
    def converges_to(self) -> str | None:  # type: ignore[override]
        return "optimum" if self.average == "full" else None

    @property
    def uploads(self) -> Mapping[str, Weight | tuple[Weight, ...]]:  # type: ignore[override]
        return {"z": q} if self.average == "act" else {"z_change": q}

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=mine.u, center=2 * down.x - mine.z, weight=1 / self.eta)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        u = result.x
        z = mine.z + 2 * (u - down.x)
        upload = Upload(z=z) if self.average == "act" else Upload(z_change=z - mine.z)
        return upload, Keep(z=z, u=u)

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return keep.replace(z=keep.z + error.z_change)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        if self.average == "act":
            return ServerState(x=replies.mean("z", by=q))
        return ServerState(x=server.x + replies.sum("z_change", by=q))
