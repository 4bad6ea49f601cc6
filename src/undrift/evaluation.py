"""By what a run is judged: which models are looked at, how often, with which measures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undrift.errors import require, require_choice, require_range, require_whole
from undrift.keys import uniforms
from undrift.losses import Losses
from undrift.regularizers import Regularizer
from undrift.reprs import short
from undrift.targets import PARTS

if TYPE_CHECKING:
    from undrift.clients import Roster
    from undrift.engines.base import Engine
    from undrift.loops.base import Loop

MODELS = ("server", "cohort", "all", "own")
"""The models that can be reported: the server's; the mean of the cohort's models, each as often
as it was drawn; the mean of every client's last model (x⁰ for those never active); the clients'
own, each on its own data. All means are weighted by q_k, as F is."""
OF_TRAINING = ("objective", "gradient_mapping", "gradient_norm")
"""Metrics of the training data that do not say so in their names."""


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
    parts
        on which parts of the data, of "train", "validation" and "test"; those that the data do
        not have are passed over. Without "train" there is no train_loss and no objective.
    train_clients
        from how many clients all that is about the training data is estimated, the same ones in
        every round and for every method; None for all of them
    """

    __repr__ = short

    every: int = 1
    models: tuple[str, ...] = ("server",)
    gradient_mapping: float | None = None
    parts: tuple[str, ...] = PARTS
    train_clients: int | None = None

    def __post_init__(self) -> None:
        require_whole("evaluation every", self.every, at_least=1)
        models = (self.models,) if isinstance(self.models, str) else tuple(self.models)
        object.__setattr__(self, "models", models)
        require(len(models) > 0, "There must be a model to report.")
        for name in self.models:
            require_choice("A model to report", name, MODELS)
        parts = (self.parts,) if isinstance(self.parts, str) else tuple(self.parts)
        object.__setattr__(self, "parts", parts)
        words = ", ".join(map(repr, PARTS))
        require(len(parts) > 0, f"There must be a part to evaluate on, of {words}.")
        for name in parts:
            require_choice("A part to evaluate on", name, PARTS)
        if self.gradient_mapping is not None:
            require_range("gradient_mapping", self.gradient_mapping, above=0)
        if self.train_clients is not None:
            require_whole("train_clients", self.train_clients, at_least=1)
        for name in ("gradient_mapping", "train_clients"):
            require(
                getattr(self, name) is None or "train" in parts,
                f"{name} is about the training data, so parts must have 'train', but has only "
                f"{', '.join(map(repr, parts))}.",
            )

    def require_measured(self, what: str, metric: str) -> None:
        """Refuse a metric of a part that is left out."""
        part = part_of(metric)
        require(
            part is None or part in self.parts,
            f"{what} {metric!r} is never measured: it is of the {part} part, and the parts to "
            f"evaluate on are {', '.join(map(repr, self.parts))}.",
        )

    def weights(self, roster: Roster, seed: int) -> Tensor:
        """The q_k in the order of the data; with a sample of clients, zero for all others.

        Who is in the sample depends on the seed and the clients' ids, never on their order, and
        the q_k of those add up to one.
        """
        if self.train_clients is None or self.train_clients >= len(roster):
            return roster.weights_in_data_order()
        drawn = uniforms(seed, "evaluation", 0, roster.hashes)
        chosen = np.argsort(drawn, kind="stable")[: self.train_clients].copy()
        place = torch.tensor(roster.place)[chosen]
        q = roster.weights[chosen]
        weights = torch.zeros_like(roster.weights)
        weights[place] = q / q.sum()
        return weights


def part_of(metric: str) -> str | None:
    """The part of the data that a metric is measured on, as its name says."""
    name = metric.rpartition("/")[2]
    if name in OF_TRAINING:
        return "train"
    return next((part for part in PARTS if name.startswith(f"{part}_")), None)


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
            run.engine, x, run.weights, eta, run.method.g, run.local.weight_decay
        )
    return found


def _own(run: Loop) -> dict[str, float]:
    """The clients' own last models on their own data: means with the objective's weights.

    A client without test samples does not count in the mean over test samples, and one that is
    not in the sample of clients does not count in the means over training samples.
    """
    parts = run.evaluation.parts
    totals: Mapping[str, float] = defaultdict(float)
    shares: Mapping[str, float] = defaultdict(float)
    places = [run.roster.place[run.roster.position[id]] for id in run.roster.ids]
    judged = [[p for p in parts if p != "train" or run.weights[k] > 0] for k in places]
    several = zip(run.roster.ids, run.roster.weights.tolist(), places, judged, strict=True)
    clients = [each for each in several if each[-1]]
    models = ((k, run.last_of(id), own) for id, _, k, own in clients)
    metrics = run.engine.evaluate_own(models, run.buffers)
    for (_, q, _, _), found in zip(clients, metrics, strict=True):
        for metric, value in found.items():
            totals[metric] += q * value  # type: ignore[index]
            shares[metric] += q  # type: ignore[index]
    return {metric: total / shares[metric] for metric, total in totals.items()}


def gradient_mapping(
    losses: Losses | Engine,
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
