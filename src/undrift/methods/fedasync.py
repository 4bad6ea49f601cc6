"""FedAsync."""

import torch
from torch import Tensor

from undrift.errors import require_range
from undrift.methods.base import Averaging
from undrift.methods.staleness import discount
from undrift.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    Number,
    Server,
    Upload,
)
from undrift.replies import Replies


class FedAsync(Averaging):
    """Asynchronous federated optimisation (Xie, Koyejo and Gupta, 2019).

    A client that finishes is mixed into the server's model at once, x ← (1 − w)x + w·x_k with
    w = min(1, α·N·q_k·s(u)), where u is the number of updates since it read the model. The paper's
    clients count alike (N·q_k = 1). Biased like FedAvg, and towards clients that reply more often.

    Parameters
    ----------
    alpha
        α, the weight of a fresh reply, above 0 and at most 1
    mu
        the pull towards the model that was read, (μ/2)|x − x_read|² (the paper's ρ)
    staleness
        s: "constant", "polynomial", (1 + u)^(−a), or "hinge", 1/(1 + a(u − b)) beyond u = b
    a, b
        its parameters
    """

    paper = "Xie et al., Asynchronous Federated Optimization, 2019"
    converges_to = "averaging"
    asynchronous = True
    meant_asynchronous = True

    def __init__(
        self,
        alpha: float = 0.6,
        mu: float = 0.0,
        staleness: str = "polynomial",
        a: float = 0.5,
        b: float = 4.0,
    ):
        require_range("FedAsync's alpha", alpha, above=0, at_most=1)
        require_range("FedAsync's mu", mu, at_least=0)
        discounted = discount("FedAsync", staleness, a, b)
        self.alpha = alpha
        self.mu = mu
        self.staleness = staleness
        self.a = a
        self.b = b

        def mixing(client: Client) -> Number:
            """The weight w of a reply."""
            w = alpha * discounted(client.staleness) / client.scale  # N·q_k = 1/scale
            return w.clamp(max=1) if isinstance(w, Tensor) else min(1.0, w)

        self._mixing = mixing
        self.uploads = {"model": mixing}

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x, center=down.x, weight=self.mu, pull_outside_momentum=True)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        return Upload(model=result.x), mine

    def fold(self, server: Server, replies: Replies) -> Server:
        w = self._mixing
        update = replies.sum("model", by=w) - replies.weight(w) * server.x
        return Server(x=server.x + update / replies.count)

    def fold_buffers(
        self, buffers: dict[str, Tensor], means: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            name: torch.lerp(buffers[name], mean, self.alpha) if mean.is_floating_point() else mean
            for name, mean in means.items()
        }
