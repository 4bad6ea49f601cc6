"""pFedMe."""

from collections.abc import Sequence

from torch import Tensor

from undrift.core.method import INITIAL
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
from undrift.methods.common.averaging import UniformAveraging
from undrift.utils.errors import require_range, require_whole


class PFedMe(UniformAveraging):
    """Personal models by Moreau envelopes (Dinh et al., NeurIPS 2020).

    The server's model w minimises Σ q_k F_k(w), F_k(w) = min_θ f_k(θ) + (λ/2)|θ − w|². A client
    repeats R times: its local work on that inner problem gives θ_k, its personal model, and
    w_k ← w_k − ηλ(w_k − θ_k). All inner problems of a round see the same minibatches.

    Parameters
    ----------
    lam
        λ, the weight of the pull of the personal model towards w_k
    eta
        η, the step size of w_k; ηλ must be at most 1
    R
        how often a client solves its inner problem in a round
    beta
        β, the server's step: w ← w + β·(average of w_k − w)
    """

    keeps = {"theta": INITIAL}
    own_model = "theta"
    converges_to = "averaging"
    paper = "Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020"

    def __init__(self, lam: float = 15.0, eta: float = 0.005, R: int = 5, beta: float = 1.0):
        require_range("PFedMe's lam", lam, above=0)
        require_range("PFedMe's eta", eta, above=0, at_most=1 / lam)
        require_range("PFedMe's beta", beta, above=0)
        self.lam, self.eta, self.beta = lam, eta, beta
        self.R = self.problems = require_whole("PFedMe's R", R, at_least=1)

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x, center=down.x, weight=self.lam)

    def next_problem(
        self, down: Download, mine: Keep, solved: Sequence[Tensor], client: Client
    ) -> LocalProblem:
        w = self._w(down, solved)
        return LocalProblem(start=w, center=w, weight=self.lam)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        theta = [result.x, *result.later]
        return Upload(moved=self._w(down, theta) - down.x), Keep(theta=theta[-1])

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return keep  # the server accumulates nothing of θ_k

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        return ServerState(x=server.x + self.beta * self.average(replies))

    def _w(self, down: Download, theta: Sequence[Tensor]) -> Tensor:
        """w_k after the steps towards the personal models of this round."""
        w = down.x
        for each in theta:
            w = w - self.eta * self.lam * (w - each)
        return w
