"""FedSAM."""

from dataclasses import replace

from undrift.core.problem import Ascent, Client, Download, Keep, LocalProblem, ascent_of
from undrift.methods.averaging.fedavg import FedAvg
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer
from undrift.utils.errors import require_range


class FedSAM(FedAvg):
    """FedAvg with sharpness-aware local steps (Qu et al., ICML 2022).

    Each step uses the gradient at x + ρ g/|g| in place of that at x, g being the minibatch gradient
    at x, so that clients prefer minima around which the loss is flat. A step costs two gradients.
    Converges to a biased point, which ρ moves further: ρ = 0 is FedAvg.

    Parameters
    ----------
    rho
        ρ, the distance at which gradients are taken
    scheme, server
        as for FedAvg
    """

    paper = "Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022"

    def __init__(
        self, rho: float = 0.05, scheme: str = "II-delta", server: ServerOptimizer = Plain()
    ):
        require_range("FedSAM's rho", rho, at_least=0)
        super().__init__(scheme, server)
        self.rho = rho

    @property
    def ascent(self) -> Ascent | None:  # type: ignore[override]
        return ascent_of(self.rho)

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return replace(super().problem(down, mine, client), ascent=self.ascent)
