"""FedProx."""

from undrift.core.problem import Client, Download, Keep, LocalProblem
from undrift.methods.averaging.fedavg import FedAvg
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer
from undrift.utils.errors import require_range, require_type


class FedProx(FedAvg):
    """FedAvg with a pull towards the server's model (Li et al., MLSys 2020).

    A client minimises f_k(x) + (μ/2)|x − x_server|², and uploads its current model if it runs out
    of time. Converges more slowly than FedAvg, to a biased point that is nearer to the optimum.

    Parameters
    ----------
    mu
        μ, the weight of the pull
    scheme, server
        as for FedAvg
    pull_inside_momentum
        whether a local solver with momentum accumulates the pull too, as in much other code, so
        that it minimises the local problem; by default the pull is added to each step after
        momentum ρ, as in FedNova's analysis, and then acts as (1 − ρ)μ
    """

    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    def __init__(
        self,
        mu: float = 0.01,
        scheme: str = "II-delta",
        server: ServerOptimizer = Plain(),
        pull_inside_momentum: bool = False,
    ):
        require_range("FedProx's mu", mu, at_least=0)
        require_type("FedProx's pull_inside_momentum", pull_inside_momentum, bool, "True or False")
        super().__init__(scheme, server)
        self.mu = mu
        self.pull_inside_momentum = pull_inside_momentum

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        scale = super().problem(down, mine, client).scale
        return LocalProblem(
            start=down.x,
            center=down.x,
            weight=self.mu,
            scale=scale,
            pull_outside_momentum=not self.pull_inside_momentum,
        )
