"""MimeLite."""

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, q_draws
from undrift.methods.common.averaging import UniformAveraging
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer, require_optimizer
from undrift.utils.errors import require_range


class MimeLite(UniformAveraging):
    """Mime without control variates, with SGD with momentum (Karimireddy et al., NeurIPS 2021).

    A client descends along (1 − β)∇f_k + βm with the server's momentum m, which stays fixed during
    the round. The server forms m from the clients' full gradients at its model. It converges to a
    biased point between FedAvg's and the optimum.

    Parameters
    ----------
    beta
        β, the weight of the momentum, at least 0 and below 1; 0 is FedAvg
    server
        the server optimiser, which gets the average move; `ud.server.Plain(lr)` sets η_g
    """

    sends = ("x", "m")
    uploads = {"moved": q_draws, "gradient": q_draws}
    converges_to = "averaging"
    paper = "Karimireddy et al., Mime: Breaking the Centralized Barrier, NeurIPS 2021"

    def __init__(self, beta: float = 0.9, server: ServerOptimizer = Plain()):
        require_range("MimeLite's beta", beta, at_least=0, below=1)
        self.beta = beta
        self.server = require_optimizer(server)

    def weights_used(self, wanted: Tensor, a_norm: Tensor) -> Tensor | None:
        return None

    def init(self, x: Tensor) -> ServerState:
        return super().init(x).replace(m=torch.zeros_like(x))

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(
            start=down.x, scale=1 - self.beta, linear=self.beta * down.m, ask=("first_gradient",)
        )

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        return Upload(moved=result.x - down.x, gradient=result.first_gradient), mine

    def upload_scales(self, rate: float, steps: int) -> Mapping[str, float]:
        return {"gradient": 1 / (rate * steps)}

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        m = (1 - self.beta) * self.average(replies, "gradient") + self.beta * server.m
        return ServerState(**self.move(server, self.average(replies), replies), m=m)
