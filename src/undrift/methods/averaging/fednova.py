"""FedNova."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from undrift.core.method import ZERO, Conditions
from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.replies import Replies, Weight, draws, once, q, q_draws
from undrift.methods.common.averaging import Averaging
from undrift.methods.common.schemes import SCHEMES, check_sampling
from undrift.methods.common.server_optimizers import Plain, ServerOptimizer, require_optimizer
from undrift.utils.errors import require_choice, require_range


class FedNova(Averaging):
    """Federated normalised averaging (Wang et al., NeurIPS 2020).

    A client uploads its move divided by ‖a_k‖₁, its accumulated gradient weight, so that clients
    that take more steps do not count more. Works with any local solver: momentum, a proximal
    pull, step schedules. Its bias vanishes with ητ and FedAvg's does not, although at a large rate
    FedAvg may end nearer to the optimum. With variance reduction it converges to the optimum.

    Parameters
    ----------
    mu
        μ, the weight of the pull to the server's model (0: no pull)
    tau_eff
        the server's number of steps τ_eff: "progress", the mean of ‖a_k‖₁; "steps", the mean of
        τ_k; or a number, which is public: clients then upload neither ‖a_k‖₁ nor τ_k, as private
        runs need. The default is "steps" with a pull and "progress" without
    weights
        "II" for uniform cohorts, w_k = q_k N/K; "I" for clients drawn by q_k, with equal weights
    variance_reduction
        whether to correct gradients by the difference between clients, as in the paper's
        "Momen.+VR"
    server
        the server optimiser, which gets the update, e.g. `ud.server.Momentum(0.9)`
    """

    averages_moves = False
    why_not_robust = "its clients normalise their moves by their own numbers of steps"
    needs_steps = True
    elementwise = True
    paper = "Wang et al., Tackling the Objective Inconsistency Problem, NeurIPS 2020"
    why_synchronous = "its effective number of steps is an average over a cohort"

    def __init__(
        self,
        mu: float = 0.0,
        tau_eff: str | float | None = None,
        weights: str = "II",
        variance_reduction: bool = False,
        server: ServerOptimizer = Plain(),
    ):
        require_range("FedNova's mu", mu, at_least=0)
        require_choice("FedNova's weights", weights, ("I", "II"))
        if isinstance(tau_eff, int | float):
            require_range("FedNova's tau_eff", tau_eff, above=0)
        elif tau_eff is not None:
            require_choice("FedNova's tau_eff", tau_eff, ("progress", "steps"))
        self.mu = mu
        self.tau_eff = tau_eff
        self.weights = weights
        self.variance_reduction = variance_reduction
        self.server = require_optimizer(server)
        self.draws_by_weight = weights == "I"
        self._by: Weight = q_draws if weights == "II" else draws
        if variance_reduction:  # a client has one state, so it counts once if drawn several times
            self._by = q if weights == "II" else once

    @property
    def converges_to(self) -> str | None:  # type: ignore[override]
        return "optimum" if self.variance_reduction else "normalised averaging"

    @property
    def sends(self) -> Sequence[str]:  # type: ignore[override]
        return ("x", "d") if self.variance_reduction else ("x",)

    @property
    def keeps(self) -> Mapping[str, str]:  # type: ignore[override]
        return {"d": ZERO} if self.variance_reduction else {}

    @property
    def uploads(self) -> Mapping[str, Weight | tuple[Weight, ...]]:  # type: ignore[override]
        wanted = (self._by, q) if self.variance_reduction else (self._by,)
        return {"direction": tuple(dict.fromkeys(wanted))}

    def weights_used(self, wanted: Tensor, a_norm: Tensor) -> Tensor | None:
        return None if self.variance_reduction else wanted

    def dual_residual(self, server: ServerState) -> float | None:
        return float(server.d.norm()) if self.variance_reduction else None

    def check(self, conditions: Conditions) -> None:
        super().check(conditions)
        scheme = SCHEMES["I" if self.weights == "I" else "II-delta"]
        check_sampling(self.name, scheme, conditions.participation, conditions.equal)

    def init(self, x: Tensor) -> ServerState:
        server = super().init(x)
        return server.replace(d=torch.zeros_like(x)) if self.variance_reduction else server

    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        v = down.d - mine.d if self.variance_reduction else None
        return LocalProblem(
            start=down.x, linear=v, center=down.x, weight=self.mu, pull_outside_momentum=True
        )

    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        direction = (result.x - down.x) / result.a_norm  # −η times the mean local gradient
        if self.variance_reduction:
            # −η times the change of d_k, so that the server's d follows from this sum alone
            direction = direction + result.rate * down.d
            mine = Keep(d=mine.d - direction / result.rate)
        if isinstance(self.tau_eff, int | float):
            return Upload(direction=direction), mine
        return Upload(direction=direction, progress=result.a_norm, steps=result.steps), mine

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        return Keep(d=keep.d - error.direction / result.rate) if self.variance_reduction else keep

    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        w, N = self._by, replies.clients
        K = replies.count if self.variance_reduction else replies.weight(draws)
        factor = N / K if self.weights == "II" else 1 / K  # w_k = q_k N/K, or 1/K for each
        rule = self.tau_eff or ("steps" if self.mu > 0 else "progress")
        tau_eff = replies.mean(rule, by=w) if isinstance(rule, str) else rule
        total = replies.sum("direction", by=w)
        if self.variance_reduction:
            total = total - replies.weight(w) * replies.rate * server.d
        new = ServerState(**self.move(server, tau_eff * factor * total, replies))
        if self.variance_reduction:
            # d̄ + Σ_S q_k (d_k⁺ − d_k)
            new = new.replace(d=server.d - replies.sum("direction", by=q) / replies.rate)
        return new
