"""FedSpeed."""

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.core.method import ZERO, Method
from undrift.core.problem import (
    Ascent,
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
    ascent_of,
)
from undrift.core.replies import Replies, Weight, once
from undrift.utils.errors import require_choice, require_range


class FedSpeed(Method):
    """FedDyn's prox-correction with partly sharpness-aware gradients (Sun et al., ICLR 2023).

    Local steps use (1 − α)∇f_k(x) + α∇f_k(x + ρ g/|g|), g the minibatch gradient at x, and cost two
    gradients. Converges to the point where the mean of these gradients vanishes, which is the
    optimum of F for ρ = 0 or α = 0: then it is FedDyn with the weight 1/λ.

    Parameters
    ----------
    lam
        λ: 1/λ is the weight of the pull to the server's model; client k's is 1/(λ N q_k)
    rho
        ρ, the distance at which the second gradient is taken
    alpha
        α, the share of the second gradient, from 0 to 1
    average
        the ĝ_k that correct the server's model: those of "all" clients, as in the authors' code, or
        "act", those of the cohort, as in the paper, which does not converge if clients are sampled
    """

    keeps = {"g": ZERO}
    elementwise = True
    paper = (
        "Sun et al., FedSpeed: Larger Local Interval, Less Communication Round, and Higher "
        "Generalization Accuracy, ICLR 2023"
    )
    why_synchronous = "its server state ĝ needs the cohort's moves from one common model"

    def __init__(
        self, lam: float = 0.1, rho: float = 0.1, alpha: float = 1.0, average: str = "all"
    ):
        require_range("FedSpeed's lam", lam, above=0)
        require_range("FedSpeed's rho", rho, at_least=0)
        require_range("FedSpeed's alpha", alpha, at_least=0, at_most=1)
        require_choice("FedSpeed's average", average, ("all", "act"))
        self.lam, self.rho, self.alpha, self.average = lam, rho, alpha, average
        self.converges_when_sampled = average == "all"
        self.uploads_models = average == "act"

    @property
    def uploads(self) -> Mapping[str, Weight | tuple[Weight, ...]]:  # type: ignore[override]
        return {"moved": once} if self.average == "all" else {"corrected": once}

    @property
    def ascent(self) -> Ascent | None:  # type: ignore[override]
        return ascent_of(self.rho, self.alpha)

    @property
    def converges_to(self) -> str | None:  # type: ignore[override]
        return "optimum" if self.ascent is None else "sharpness-aware gradients"

    def dual_residual(self, server: ServerState) -> float | None:
        return float(server.g.norm()) if self.average == "all" else None

    def init(self, x: Tensor) -> ServerState:
        return ServerState(x=x, **({"g": torch.zeros_like(x)} if self.average == "all" else {}))

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        r = client.scale / self.lam  # 1 / (λ N q_k)
        return LocalProblem(
            start=down.x, linear=-mine.g, center=down.x, weight=r, ascent=self.ascent
        )

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        moved = result.x - down.x
        g = mine.g - client.scale / self.lam * moved
        if self.average == "act":
            return Upload(corrected=result.x - self.lam / client.scale * g), Keep(g=g)
        return Upload(moved=moved), Keep(g=g)

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return Keep(g=keep.g - client.scale / self.lam * error.moved)

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        if self.average == "act":
            return ServerState(x=replies.mean("corrected"))
        moved = replies.mean("moved")
        g = server.g - replies.share / self.lam * moved  # share = |S| / N
        return ServerState(x=server.x + moved - self.lam * g, g=g)
