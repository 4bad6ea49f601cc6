"""FedVARP and MIFA."""

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.core.method import ZERO
from undrift.core.problem import Client, Download, Keep, LocalResult, ServerState, Upload
from undrift.core.replies import Replies, q
from undrift.methods.common.averaging import Averaging
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer, require_optimizer


class FedVARP(Averaging):
    """FedAvg without the variance of partial participation (Jhunjhunwala et al., UAI 2022).

    The server uses the last move of every client that is absent. With partial participation it
    converges to the point that FedAvg reaches with every client. Moves are kept divided by the
    learning rate of their round, so that a decaying rate applies to old moves too.

    Parameters
    ----------
    server
        the server optimiser, which gets the average move; `ud.server.Plain(lr)` sets η_g
    """

    averages_moves = False
    why_not_robust = "its mean is the exact sum of what clients keep"
    keeps = {"y": ZERO}
    elementwise = True
    uploads = {"change": q}
    converges_to = "averaging"
    converges_when_sampled = True
    paper = "Jhunjhunwala et al., FedVARP: Variance Due to Partial Client Participation, UAI 2022"

    def __init__(self, server: ServerOptimizer = Plain()):
        self.server = require_optimizer(server)

    def init(self, x: Tensor) -> ServerState:
        return super().init(x).replace(y=torch.zeros_like(x))

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        y = (result.x - down.x) / result.rate
        return Upload(change=y - mine.y), Keep(y=y)

    def upload_scales(self, rate: float, steps: int) -> Mapping[str, float]:
        return {"change": 1 / rate}

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return Keep(y=keep.y + error.change)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        change = replies.sum("change", by=q)
        y = server.y + change  # ȳ = Σ q_k y_k over all clients
        update = replies.rate * self._direction(server.y, y, change, replies)
        return ServerState(**self.move(server, update, replies), y=y)

    def _direction(self, before: Tensor, after: Tensor, change: Tensor, replies: Replies) -> Tensor:
        """The estimate of Σ q_k Δ_k/η over all clients."""
        return before + replies.clients / replies.count * change


class MIFA(FedVARP):
    """Memory-augmented impatient federated averaging (Gu et al., NeurIPS 2021).

    The server averages the last move of every client, present or absent. With partial
    participation it converges to the point that FedAvg reaches with every client, even if clients
    are absent in patterns.

    Parameters
    ----------
    server
        the server optimiser, which gets the average move; `ud.server.Plain(lr)` sets η_g
    """

    paper = "Gu et al., MIFA: Arbitrary Device Unavailability, NeurIPS 2021"

    def _direction(self, before: Tensor, after: Tensor, change: Tensor, replies: Replies) -> Tensor:
        return after
