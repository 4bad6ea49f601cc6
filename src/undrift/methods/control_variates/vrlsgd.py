"""VRL-SGD."""

from torch import Tensor

from undrift.core.method import INITIAL, NUMBER, ZERO, Method
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


class VRLSGD(Method):
    """Variance-reduced local SGD (Liang et al. 2019), for full participation.

    A client corrects its gradients by −Δ_k, which it learns from the distance between its own model
    and the average: Δ_k += (x⁺ − x_k)/(ητ_k). Exact if all clients take equally many steps, biased
    if not, and unstable if their numbers change from round to round.
    """

    keeps = {"delta": ZERO, "x": INITIAL, "inverse": NUMBER}  # inverse = 1/(ητ_k)
    elementwise = True
    uploads = {"moved": q}
    needs_all = True
    needs_steps = True
    paper = "Liang et al., Variance Reduced Local SGD with Lower Communication Complexity, 2019"
    why_synchronous = "it is defined only with every client in every round"

    def _delta(self, down: Download, mine: Keep) -> Tensor:
        return mine.delta + (down.x - mine.x) * mine.inverse

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x, linear=-self._delta(down, mine))

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        inverse = 1 / (result.rate * result.a_norm)
        keep = Keep(delta=self._delta(down, mine), x=result.x, inverse=inverse)
        return Upload(moved=result.x - down.x), keep

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return keep.replace(x=keep.x + error.moved)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        return ServerState(x=server.x + replies.sum("moved", by=q))
