"""Measures the models of a run: losses, accuracy, the gradient mapping, clients' own models."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from undrift.core.client_metrics import ClientMetrics
from undrift.core.losses import Losses
from undrift.core.problem import LocalProblem, Work
from undrift.core.regularizers import Regularizer
from undrift.engines.base import SimulationEngine, require_simulation
from undrift.local.solvers import Local
from undrift.privacy.gaussian import EXACT, NoisyMetrics
from undrift.utils.errors import require
from undrift.utils.keys import key
from undrift.utils.norms import squared_norm

if TYPE_CHECKING:
    from undrift.loops.base import Loop


OWN_MODELS = ("own", "tuned")
"""The reported models of which every client has its own."""


def measure(run: Loop, train_samples: int | None = None) -> dict[str, float]:
    """The metrics of a run's models in its current round.

    Metrics of the training data are estimated from `train_samples` of them; None for all. With
    results per client, `run.client_metrics` has those of the newest measurement.
    """
    if not run.evaluation.parts:
        return {}
    if noisy_metrics(run) is not None:
        return _measure_privately(run)
    found: dict[str, float] = {}
    wanted = run.evaluation.clients
    by_model = {name: ClientMetrics() for name in run.evaluation.models} if wanted else {}
    for name in run.evaluation.models:
        prefix = "" if name == "server" else f"{name}/"
        clients = by_model.get(name)
        metrics = _metrics_of(run, name, clients, train_samples)
        metrics |= {} if clients is None else clients.summaries()
        found |= {prefix + metric: value for metric, value in metrics.items()}
    run.client_metrics = by_model
    return found


def noisy_metrics(run: Loop) -> NoisyMetrics | None:
    """The noisy metrics of a private run; None if it has none."""
    return None if run.spec.privacy is None else run.spec.privacy.noisy_metrics


def _measure_privately(run: Loop) -> dict[str, float]:
    """Metrics of the server's model: exact on common data, noisy means on the clients' own."""
    common = [part for part in run.evaluation.parts if part in run.losses.common_parts]
    own = [part for part in run.evaluation.parts if part not in common]
    evaluated = run.server.x, run.weights, run.buffers
    found = run.engine.evaluate(*evaluated, common) if common else {}
    if own:
        assert run.mechanism is not None
        clients = ClientMetrics()
        run.engine.evaluate(*evaluated, own, clients)
        found |= run.mechanism.release_metrics(clients.values, own, run.round)
    return found


def client_rows(run: Loop) -> list[dict[str, Any]]:
    """A row per client and reported model with the client's metrics, as last measured.

    They are measured now if the run did not ask for them.
    """
    privacy = run.spec.privacy
    require(
        privacy is None or privacy.metrics == EXACT,
        "A private run has no metrics of single clients, which its guarantee does not cover: set "
        'privacy metrics to "exact" to measure them nevertheless.',
    )
    by_model = run.client_metrics
    if not by_model:
        by_model = {name: ClientMetrics() for name in run.evaluation.models}
        for name, clients in by_model.items():
            _metrics_of(run, name, clients)
    sizes = dict(zip(run.roster.ids, run.roster.sizes.tolist(), strict=True))
    return [row for name, found in by_model.items() for row in found.rows(name, sizes)]


def _metrics_of(
    run: Loop, name: str, clients: ClientMetrics | None, train_samples: int | None = None
) -> dict[str, float]:
    if name in OWN_MODELS and not isinstance(run.engine, SimulationEngine):
        # Only the sites of a deployment have these models: they measure them themselves.
        return run.engine.evaluate(
            run.server.x, run.weights, run.buffers, run.evaluation.parts, clients
        )
    if name == "own":
        return _own(run, clients)
    if name == "tuned":
        return _of_each(run, partial(_tuned, run), clients)
    return _metrics(run, _model(run, name), clients, train_samples)


def _model(run: Loop, name: str) -> Tensor:
    """The model "server", "cohort" or "all" of a run."""
    if name == "cohort":
        return run.cohort_mean
    return run.last_mean if name == "all" else run.server.x


def _metrics(
    run: Loop, x: Tensor, clients: ClientMetrics | None, train_samples: int | None
) -> dict[str, float]:
    """The metrics of one model; with the training part also the objective, with g and decay."""
    parts = run.evaluation.parts
    if run.has_personal:
        found = _of_each(run, lambda client: run.with_personal(x, client), clients)
    else:
        found = run.engine.evaluate(x, run.weights, run.buffers, parts, clients, train_samples)
    if "train" not in parts:
        return found
    penalty = run.local.penalty
    decay = penalty / 2 * squared_norm(x) if penalty else 0.0
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
            run.local.penalty,
        )
    return found


def _own(run: Loop, results: ClientMetrics | None = None) -> dict[str, float]:
    """Means of the metrics of clients' own models on their own data, weighted by q_k."""
    return _of_each(run, run.last_of, results)


def _of_each(
    run: Loop, model_of: Callable[[Hashable], Tensor], results: ClientMetrics | None
) -> dict[str, float]:
    """Means of the metrics of a model of each client on the client's data, weighted by q_k.

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
    models = ((k, model_of(id), own) for id, _, k, own in clients)
    engine = require_simulation(run.engine, "Evaluating clients' own models")
    metrics = engine.evaluate_own(models, run.buffers)
    for (id, q, _, _), found in zip(clients, metrics, strict=True):
        if results is not None:
            results.add(id, found)
        for metric, value in found.items():
            if math.isnan(value) and not metric.endswith("_loss"):
                continue  # not defined on the client's samples, as the AUC of a single class
            totals[metric] += q * value  # type: ignore[index]
            shares[metric] += q  # type: ignore[index]
    return {metric: total / shares[metric] for metric, total in totals.items()}


def _tuned(run: Loop, client: Hashable) -> Tensor:
    """The server's model after a client trained it on its own training data."""
    engine = require_simulation(run.engine, "Fine-tuning on the clients")
    place = run.roster.place[run.roster.position[client]]
    tune = run.evaluation.tune
    return tuned(engine.losses, place, tune, run.server.x, run.buffers, run.round, run.seed)


def tuned(
    losses: Losses,
    k: int,
    tune: Local,
    x: Tensor,
    buffers: Mapping[str, Tensor],
    round: int,
    seed: int,
) -> Tensor:
    """A model after client k, by its place in the losses, trained it on its own training data."""
    client = losses.ids[k]
    solver = tune.of(client)
    steps = solver.steps_of(solver.amount(client, round, seed), int(losses.sizes[k]))
    number = key(seed, "tuning", round, client)
    work = Work(
        client=client,
        round=round,
        turn=round,
        steps=steps,
        expected=steps,
        rate=solver.rate(round),
        key=number % 2**64,
    )
    with losses.training(k, buffers, number) as loss:
        return solver.run(loss, LocalProblem(start=x), work).x.clone()


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
