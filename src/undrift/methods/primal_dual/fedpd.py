"""FedPD."""

from collections.abc import Sequence

from torch import Tensor

from undrift.core.method import INITIAL, ZERO, Conditions, Draw, Method
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
from undrift.utils.errors import require, require_range


class FedPD(Method):
    """Federated primal-dual optimisation (Zhang et al. 2020), for full participation.

    Each client keeps its own copy x0_k of the model and a multiplier λ_k for the constraint that
    all copies are equal. Converges to the optimum of F if every round communicates; in rounds
    that do not, the copies move towards the clients' own optima.

    Parameters
    ----------
    eta
        η; the weight of the pull to the client's own copy is 1/η
    communication
        p, the probability that a round ends with an average; otherwise no model travels and each
        client continues with its own copy
    """

    keeps = {"x0": INITIAL, "multiplier": ZERO}
    elementwise = True
    uploads = {"x0": q}
    needs_all = True
    uploads_models = True
    paper = "Zhang et al., FedPD: A Federated Learning Framework with Optimal Rates, 2020"
    why_synchronous = "it is defined only with every client in every round"

    def __init__(self, eta: float = 1.0, communication: float = 1.0):
        require_range("FedPD's eta", eta, above=0)
        require_range("FedPD's communication", communication, above=0, at_most=1)
        self.eta = eta
        self.communication = communication

    @property
    def converges_to(self) -> str | None:  # type: ignore[override]
        return "optimum" if self.communication == 1 else None

    @property
    def idle(self) -> Sequence[str]:  # type: ignore[override]
        return ("x0",) if self.communication == 1 else ()  # then the server's x takes its place

    def check(self, conditions: Conditions) -> None:
        super().check(conditions)
        require(
            self.communication == 1 or not conditions.buffers,
            "FedPD with communication below 1 cannot train a model with BatchNorm, because "
            "its statistics travel in every round: use GroupNorm.",
        )

    def init(self, x: Tensor) -> ServerState:
        return ServerState(x=x, talks=1.0, fresh=1.0)  # fresh: clients must receive x

    def begin(self, server: ServerState, draw: Draw) -> ServerState:
        return server.replace(talks=float(draw("communication") < self.communication))

    def download(self, server: ServerState) -> Download:
        down = Download(talks=server.talks)
        return down.replace(x=server.x) if server.fresh else down

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        x0 = down.x if "x" in down else mine.x0
        return LocalProblem(start=x0, linear=mine.multiplier, center=x0, weight=1 / self.eta)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        x0 = down.x if "x" in down else mine.x0
        multiplier = mine.multiplier + (result.x - x0) / self.eta
        x0 = result.x + self.eta * multiplier
        return Upload(x0=x0) if down.talks else Upload(), Keep(x0=x0, multiplier=multiplier)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        if not server.talks:
            return server.replace(fresh=0.0)
        return server.replace(x=replies.mean("x0", by=q), fresh=1.0)
