"""FedADMM."""

from undrift.core.method import INITIAL, ZERO, Method
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, q
from undrift.utils.errors import require_range


class FedADMM(Method):
    """The alternating direction method of multipliers (Gong et al., ICDE 2022).

    A client minimises f_k(x) + ⟨λ_k, x⟩ + (ρ/2)|x − x_server|² and updates its multiplier,
    λ_k += ρ(x_k − x_server). The server keeps x = Σ q_k u_k over all clients, with
    u_k = x_k + λ_k/ρ. Converges to the optimum of F, with any participation.

    Parameters
    ----------
    rho
        ρ, the weight of the pull to the server's model
    """

    keeps = {"multiplier": ZERO, "u": INITIAL}
    elementwise = True
    uploads = {"change": q}
    paper = "Gong et al., FedADMM: Adaptivity to System Heterogeneity, ICDE 2022"
    why_synchronous = "its multipliers are for the model that a round began with"

    def __init__(self, rho: float = 0.01):
        require_range("FedADMM's rho", rho, above=0)
        self.rho = rho

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        return LocalProblem(start=down.x, linear=mine.multiplier, center=down.x, weight=self.rho)

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        multiplier = mine.multiplier + self.rho * (result.x - down.x)
        u = result.x + multiplier / self.rho
        return Upload(change=u - mine.u), Keep(multiplier=multiplier, u=u)

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return keep.replace(u=keep.u + error.change)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        return ServerState(x=server.x + replies.sum("change", by=q))
