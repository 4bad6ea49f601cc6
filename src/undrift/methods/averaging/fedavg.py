"""FedAvg, distributed SGD and FedAvg-min."""

from collections.abc import Mapping, Sequence

from undrift.core.method import Conditions, Draw
from undrift.core.problem import Client, Download, Keep, LocalProblem, ServerState
from undrift.core.replies import Replies, Weight
from undrift.methods.common.averaging import Averaging
from undrift.methods.common.schemes import check_sampling, scheme_named
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer, require_optimizer


class FedAvg(Averaging):
    """Federated averaging (McMahan et al. 2017) with the schemes of Li et al., ICLR 2020.

    Each client takes SGD steps from the server's model, and the server averages the results. With
    more than one local step it converges to a biased point, not to the optimum.

    Parameters
    ----------
    scheme
        the weights of the average: "full", "original", "I", "II", "transformed II",
        "renormalised" or "II-delta" (the default: unbiased under uniform sampling)
    server
        the server optimiser, which gets the average move, e.g. `ud.server.Momentum(0.9)`
    """

    converges_to = "averaging"
    paper = "Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020"

    def __init__(self, scheme: str = "II-delta", server: ServerOptimizer = Plain()):
        self.scheme = scheme
        self.server = require_optimizer(server)
        self._scheme = scheme_named(scheme)
        self.draws_by_weight = "weighted" in self._scheme.sampling

    @property
    def uploads(self) -> Mapping[str, Weight | tuple[Weight, ...]]:  # type: ignore[override]
        return {"moved": self._scheme.by}

    def check(self, conditions: Conditions) -> None:
        super().check(conditions)
        check_sampling(self.name, self._scheme, conditions.participation, conditions.equal)

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        scale = 1 / client.scale if self._scheme.scales_loss else 1.0  # N·q_k
        return LocalProblem(start=down.x, scale=scale)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        scheme = self._scheme
        moved = scheme.factor(replies) * replies.sum("moved", by=scheme.by)
        update = moved + (scheme.own(replies) - 1) * server.x
        return ServerState(**self.move(server, update, replies))


class DistributedSGD(FedAvg):
    """FedAvg with one gradient step per client and round: the baseline without client drift."""

    converges_to = "optimum"
    needs_steps = True

    def steps(self, planned: Sequence[int], draw: Draw) -> Sequence[int]:
        return [1] * len(planned)


class FedAvgMin(FedAvg):
    """FedAvg in which every client runs min_i τ_i steps (Wang et al., NeurIPS 2020).

    Equal steps make it consistent, but faster clients could have done more work.
    """

    steps_of_others = True
    paper = "Wang et al., Tackling the Objective Inconsistency Problem, NeurIPS 2020"

    def steps(self, planned: Sequence[int], draw: Draw) -> Sequence[int]:
        return [min(planned)] * len(planned)
