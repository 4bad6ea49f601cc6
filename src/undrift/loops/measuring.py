"""Measures the models of a run: losses, accuracy, the gradient mapping, clients' own models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from undrift.core.losses import Losses
from undrift.core.regularizers import Regularizer
from undrift.engines.base import SimulationEngine, require_simulation

if TYPE_CHECKING:
    from undrift.loops.base import Loop


def measure(run: Loop) -> dict[str, float]:
    """The metrics of a run's models in its current round."""
    found: dict[str, float] = {}
    for name in run.evaluation.models:
        prefix = "" if name == "server" else f"{name}/"
        metrics = _own(run) if name == "own" else _metrics(run, _model(run, name))
        found |= {prefix + metric: value for metric, value in metrics.items()}
    return found


def _model(run: Loop, name: str) -> Tensor:
    """The model "server", "cohort" or "all" of a run."""
    if name == "cohort":
        return run.cohort_mean
    return run.last_mean if name == "all" else run.server.x


def _metrics(run: Loop, x: Tensor) -> dict[str, float]:
    """The metrics of one model; with the training part also the objective, with g and decay."""
    parts = run.evaluation.parts
    found = run.engine.evaluate(x, run.weights, run.buffers, parts)
    if "train" not in parts:
        return found
    decay = run.local.weight_decay / 2 * float(x.cpu().double().square().sum())
    g = run.method.g.value(x) if run.method.g is not None else 0.0
    found["objective"] = found["train_loss"] + decay + g
    eta = run.evaluation.gradient_mapping
    if eta is not None:
        found["gradient_mapping"] = gradient_mapping(
            require_simulation(run.engine, "The gradient mapping"),
            x,
            run.weights,
            eta,
            run.method.g,
            run.local.weight_decay,
        )
    return found


def _own(run: Loop) -> dict[str, float]:
    """Means of the metrics of clients' last models on their own data, weighted by q_k.

    A mean of a test metric is over the clients with test samples, and a mean of a training metric
    over the clients from which training metrics are estimated.
    """
    parts = run.evaluation.parts
    totals: Mapping[str, float] = defaultdict(float)
    shares: Mapping[str, float] = defaultdict(float)
    places = [run.roster.place[run.roster.position[id]] for id in run.roster.ids]
    judged = [[p for p in parts if p != "train" or run.weights[k] > 0] for k in places]
    several = zip(run.roster.ids, run.roster.weights.tolist(), places, judged, strict=True)
    clients = [each for each in several if each[-1]]
    models = ((k, run.last_of(id), own) for id, _, k, own in clients)
    engine = require_simulation(run.engine, "Evaluating the models 'own'")
    metrics = engine.evaluate_own(models, run.buffers)
    for (_, q, _, _), found in zip(clients, metrics, strict=True):
        for metric, value in found.items():
            totals[metric] += q * value  # type: ignore[index]
            shares[metric] += q  # type: ignore[index]
    return {metric: total / shares[metric] for metric, total in totals.items()}


def gradient_mapping(
    losses: Losses | SimulationEngine,
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
