"""FedBuff."""

from undrift.core.problem import Client, Number, ServerState
from undrift.core.replies import Replies
from undrift.methods.common.averaging import Averaging
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer, require_optimizer
from undrift.methods.common.staleness import Polynomial, Staleness, require_staleness
from undrift.utils.errors import require_whole


class FedBuff(Averaging):
    """Federated learning with buffered asynchronous aggregation (Nguyen et al., AISTATS 2022).

    Whenever M replies have arrived, x ← x + (N/M) Σ q_k·s(u_k)·Δ_k, where Δ_k is x_k minus the
    model that client k read and u_k the number of updates since. In the paper all clients have
    the same weight (N·q_k = 1). Biased like FedAvg, and towards clients that reply more often;
    with u_k = 0 it is FedAvg with scheme II-delta.

    Parameters
    ----------
    buffer
        M, the number of replies in an update
    server
        the server optimiser, which gets the average move, e.g. `ud.server.Plain(lr=0.5)`
    staleness
        s(u), e.g. `ud.staleness.Polynomial(0.5)`, `Hinge(10, 4)` or `Constant()`
    """

    paper = "Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022"
    converges_to = "averaging"
    asynchronous = True
    meant_asynchronous = True

    def __init__(
        self,
        buffer: int = 10,
        server: ServerOptimizer = Plain(),
        staleness: Staleness = Polynomial(),
    ):
        self.buffer = require_whole("FedBuff's buffer", buffer, at_least=1)
        self.server = require_optimizer(server)
        self.staleness = require_staleness("FedBuff", staleness)

        def fresh(client: Client) -> Number:
            """q_k·s(u_k), the weight of a move."""
            return client.q * staleness(client.staleness)

        self._fresh = fresh
        self.uploads = {"moved": fresh}

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        update = replies.clients / replies.count * replies.sum("moved", by=self._fresh)
        return ServerState(**self.move(server, update, replies))
