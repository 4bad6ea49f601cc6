"""FedAsync."""

from torch import Tensor

from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    Number,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies
from undrift.methods.common.averaging import Averaging
from undrift.methods.common.staleness import Polynomial, Staleness, require_staleness
from undrift.utils.errors import require_range


class FedAsync(Averaging):
    """Asynchronous federated optimisation (Xie, Koyejo and Gupta, 2019).

    The server mixes each reply into its model when it arrives, x ← (1 − w)x + w·x_k with
    w = min(1, α·N·q_k·s(u)), where u is the number of updates since the client read the model. In
    the paper all clients have the same weight (N·q_k = 1). Several replies at once, from a buffer
    or a round, are averaged. Biased like FedAvg, and towards clients that reply more often.

    Parameters
    ----------
    alpha
        α, the weight of a fresh reply, above 0 and at most 1
    mu
        μ, the weight of the pull (μ/2)|x − x_read|² to the model the client read (the paper's ρ)
    staleness
        s(u), e.g. `ud.staleness.Polynomial(0.5)`, `Hinge(10, 4)` or `Constant()`
    """

    averages_moves = False
    why_not_robust = "it mixes models one by one"
    paper = "Xie et al., Asynchronous Federated Optimization, 2019"
    converges_to = "averaging"
    asynchronous = True
    uploads_models = True
    meant_asynchronous = True

    def __init__(
        self,
        alpha: float = 0.6,
        mu: float = 0.0,
        staleness: Staleness = Polynomial(),
    ):
        require_range("FedAsync's alpha", alpha, above=0, at_most=1)
        require_range("FedAsync's mu", mu, at_least=0)
        self.alpha = alpha
        self.mu = mu
        self.staleness = require_staleness("FedAsync", staleness)

        def mixing(client: Client) -> Number:
            """w, the weight of a reply."""
            w = alpha * staleness(client.staleness) / client.scale  # N·q_k = 1/scale
            return w.clamp(max=1) if isinstance(w, Tensor) else min(1.0, w)

        self._mixing = mixing
        self.uploads = {"model": mixing}

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x, center=down.x, weight=self.mu, pull_outside_momentum=True)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        return Upload(model=result.x), mine

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        w = self._mixing
        update = replies.sum("model", by=w) - replies.weight(w) * server.x
        return ServerState(x=server.x + update / replies.count)
