"""Ditto."""

from collections.abc import Sequence

from torch import Tensor

from undrift.core.method import INITIAL
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    Upload,
)
from undrift.methods.averaging.fedavg import FedAvg
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer
from undrift.utils.errors import require_range


class Ditto(FedAvg):
    """FedAvg, and beside it a personal model of every client (Li et al., ICML 2021).

    After its work on the server's model, a client works as much on its own model v_k: it minimises
    f_k(v) + (λ/2)|v − x_server|² from where it was. With λ = 0 clients train alone, with a large λ
    v_k is the server's model.

    Parameters
    ----------
    lam
        λ, the weight of the pull of the personal model towards the server's
    scheme, server
        as for FedAvg
    """

    keeps = {"v": INITIAL}
    own_model = "v"
    problems = 2
    paper = (
        "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021"
    )

    def __init__(
        self, lam: float = 0.1, scheme: str = "II-delta", server: ServerOptimizer = Plain()
    ):
        require_range("Ditto's lam", lam, at_least=0)
        super().__init__(scheme, server)
        self.lam = lam

    def next_problem(
        self, down: Download, mine: Keep, solved: Sequence[Tensor], client: Client
    ) -> LocalProblem:
        return LocalProblem(start=mine.v, center=down.x, weight=self.lam)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        (v,) = result.later
        return Upload(moved=result.x - down.x), Keep(v=v)

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return keep  # the server accumulates nothing of v_k
