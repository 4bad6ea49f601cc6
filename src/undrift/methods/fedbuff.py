"""FedBuff."""

from undrift.core.problem import Client, Number, ServerState
from undrift.core.replies import Replies
from undrift.methods.averaging import Averaging
from undrift.methods.server_optimizers import Plain, ServerOptimizer, require_optimizer
from undrift.methods.staleness import Polynomial, Staleness, require_staleness
from undrift.utils.errors import require_whole


class FedBuff(Averaging):
    """Federated learning with buffered asynchronous aggregation (Nguyen et al., AISTATS 2022).

    Clients work at their own pace; whenever M replies have arrived, x ← x + (N/M) Σ q_k·s(u_k)·Δ_k
    with Δ_k = x_k − (the model it read) and u_k the number of updates since. The paper's clients
    count alike (N·q_k = 1). Biased like FedAvg, and towards clients that reply more often; with
    u_k = 0 it is FedAvg with scheme II-delta.

    Parameters
    ----------
    buffer
        M, how many replies make an update
    server
        what the server does with the average move, e.g. `ud.server.Plain(lr=0.5)`
    staleness
        s, e.g. `ud.staleness.Polynomial(0.5)`, `Hinge(10, 4)` or `Constant()`
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
