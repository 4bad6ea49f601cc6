"""FedACG."""

import torch
from torch import Tensor

from undrift.core.problem import Client, Download, Keep, LocalProblem, ServerState
from undrift.core.replies import Replies
from undrift.methods.common.averaging import UniformAveraging
from undrift.utils.errors import require_range


class FedACG(UniformAveraging):
    """Accelerated client gradient (Kim et al., CVPR 2024).

    The server sends the model that its momentum would reach, x + λm, and clients start there, with
    a pull towards it. With every client and β = 0 it converges to FedAvg's point.

    Parameters
    ----------
    lam
        λ, the momentum of the server, at least 0 and below 1
    beta
        β, the weight of the pull to x + λm
    """

    converges_to = "averaging"
    paper = (
        "Kim et al., Communication-Efficient Federated Learning with Accelerated Client "
        "Gradient, CVPR 2024"
    )

    def __init__(self, lam: float = 0.85, beta: float = 0.01):
        require_range("FedACG's lam", lam, at_least=0, below=1)
        require_range("FedACG's beta", beta, at_least=0)
        self.lam = lam
        self.beta = beta

    def init(self, x: Tensor) -> ServerState:
        return ServerState(x=x, m=torch.zeros_like(x))

    def download(self, server: ServerState) -> Download:
        return Download(x=server.x + self.lam * server.m)

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x, center=down.x, weight=self.beta)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        m = self.lam * server.m + self.average(replies)
        return ServerState(x=server.x + m, m=m)
