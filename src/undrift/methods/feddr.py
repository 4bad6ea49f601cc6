"""FedDR."""

from torch import Tensor

from undrift.errors import require, require_choice, require_range
from undrift.methods.base import INITIAL, Method
from undrift.problem import Client, Download, Keep, LocalProblem, LocalResult, Server, Upload
from undrift.regularizers import Regularizer
from undrift.replies import Replies, q


class FedDR(Method):
    """Randomised Douglas–Rachford splitting (Tran-Dinh et al., NeurIPS 2021).

    Client k ∈ S:  y_k += α(x̄ − x_k);  x_k ≈ prox_{ηf_k}(y_k);  x̂_k = 2x_k − y_k. The server
    keeps x̃ = Σ q_k x̂_k over all clients and sends x̄ = prox_{ηg}(x̃). Converges to the optimum
    of F = Σ q_k f_k + g, with any g that has a prox.

    Parameters
    ----------
    eta
        η of the prox; below 1/L for a loss with L-Lipschitz gradient
    alpha
        α, the relaxation, between 0 and 2
    g
        the regulariser: None, `ud.L1`, `ud.L2` or `ud.Box`
    start
        "lazy": a client takes its first prox when it is first selected; "everyone": the first
        round is with all clients, the paper's initialisation (with its offset mended)
    """

    keeps = {"y": INITIAL, "x": INITIAL}
    uploads = {"change": q}
    paper = "Tran-Dinh et al., FedDR, NeurIPS 2021"

    def __init__(
        self,
        eta: float = 1.0,
        alpha: float = 1.0,
        g: Regularizer | None = None,
        start: str = "lazy",
    ):
        require_range("FedDR's eta", eta, above=0)
        require_range("FedDR's alpha", alpha, above=0, at_most=2)
        require_choice("FedDR's start", start, ("lazy", "everyone"))
        require(
            g is None or isinstance(g, Regularizer),
            f"FedDR's g is {g!r}, but must be None, L1(...), L2(...) or Box(...).",
        )
        self.eta = eta
        self.alpha = alpha
        self.g = g
        self.start = start
        self.starts_with_all = start == "everyone"

    def _prox(self, x: Tensor) -> Tensor:
        return x if self.g is None else self.g.prox(x, self.eta)

    def init(self, x: Tensor) -> Server:
        # The lazy x̂_k = x⁰ make x̃ = Σ q_k x̂_k = x⁰ exact, without a round with everyone.
        return Server(x=x if self.starts_with_all else self._prox(x), x_tilde=x)

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        y = mine.y + self.alpha * (down.x - mine.x)
        return LocalProblem(start=mine.x, center=y, weight=1 / self.eta)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        y = mine.y + self.alpha * (down.x - mine.x)
        x = result.x
        change = (2 * x - y) - (2 * mine.x - mine.y)  # x̂_k⁺ − x̂_k
        return Upload(change=change), Keep(y=y, x=x)

    def fold(self, server: Server, replies: Replies) -> Server:
        x_tilde = server.x_tilde + replies.sum("change", by=q)
        return Server(x=self._prox(x_tilde), x_tilde=x_tilde)
