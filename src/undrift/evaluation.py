"""By what a run is judged: which models are looked at, how often, with which measures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from undrift.errors import require, require_choice, require_range, require_whole
from undrift.losses import Losses
from undrift.regularizers import Regularizer

if TYPE_CHECKING:
    from undrift.loops.base import Loop

MODELS = ("server", "cohort", "all", "own")
"""The models that can be reported: the server's; the mean of the cohort's models, each as often
as it was drawn; the mean of every client's last model (x⁰ for those never active); the clients'
own, each on its own data. All means are weighted by q_k, as F is."""


@dataclass(frozen=True)
class Evaluation:
    """What is measured.

    Parameters
    ----------
    every
        the number of rounds between evaluations; the last round is always evaluated
    models
        which models to report, of "server", "cohort", "all" and "own"
    gradient_mapping
        η of the gradient mapping |x − prox_{ηg}(x − η∇f(x))|/η, or None to leave it out
    """

    every: int = 1
    models: tuple[str, ...] = ("server",)
    gradient_mapping: float | None = None

    def __post_init__(self) -> None:
        require_whole("evaluation every", self.every, at_least=1)
        models = (self.models,) if isinstance(self.models, str) else tuple(self.models)
        object.__setattr__(self, "models", models)
        require(len(models) > 0, "There must be a model to report.")
        for name in self.models:
            require_choice("A model to report", name, MODELS)
        if self.gradient_mapping is not None:
            require_range("gradient_mapping", self.gradient_mapping, above=0)


def measure(run: Loop) -> dict[str, float]:
    """The metrics of a run's models at its present round."""
    found: dict[str, float] = {}
    for name in run.evaluation.models:
        prefix = "" if name == "server" else f"{name}/"
        metrics = _own(run) if name == "own" else _metrics(run, _model(run, name))
        found |= {prefix + metric: value for metric, value in metrics.items()}
    return found


def _model(run: Loop, name: str) -> Tensor:
    if name == "cohort":
        return run.cohort_mean
    return run.last_mean if name == "all" else run.server.x


def _metrics(run: Loop, x: Tensor) -> dict[str, float]:
    """Loss, objective and accuracy of one model."""
    weights = run.roster.weights_in_data_order()
    found = run.losses.evaluate(x, weights, run.buffers)
    decay = run.local.weight_decay / 2 * float(x.cpu().double().square().sum())
    g = run.method.g.value(x) if run.method.g is not None else 0.0
    found["objective"] = found["train_loss"] + decay + g
    eta = run.evaluation.gradient_mapping
    if eta is not None:
        found["gradient_mapping"] = gradient_mapping(
            run.losses, x, weights, eta, run.method.g, run.local.weight_decay
        )
    return found


def _own(run: Loop) -> dict[str, float]:
    """The clients' own last models on their own data: means with the objective's weights.

    A client without test samples does not count in the mean over test samples.
    """
    totals: Mapping[str, float] = defaultdict(float)
    shares: Mapping[str, float] = defaultdict(float)
    for id, q in zip(run.roster.ids, run.roster.weights.tolist(), strict=True):
        k = run.roster.place[run.roster.position[id]]
        for metric, value in run.losses.evaluate_own(k, run.last_of(id), run.buffers).items():
            totals[metric] += q * value  # type: ignore[index]
            shares[metric] += q  # type: ignore[index]
    return {metric: total / shares[metric] for metric, total in totals.items()}


def gradient_mapping(
    losses: Losses,
    x: Tensor,
    weights: Tensor,
    eta: float,
    g: Regularizer | None = None,
    weight_decay: float = 0.0,
) -> float:
    """|x − prox_{ηg}(x − η∇f(x))|/η, zero exactly at the stationary points of F = f + g."""
    gradient = losses.total_gradient(x, weights) + weight_decay * x
    ahead = x - eta * gradient
    ahead = ahead if g is None else g.prox(ahead, eta)
    return float((x - ahead).norm()) / eta
