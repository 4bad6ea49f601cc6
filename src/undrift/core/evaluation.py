"""`Evaluation`: what a run measures, of which models, on which data, and how often."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.targets import PARTS
from undrift.utils.errors import require, require_choice, require_range, require_whole
from undrift.utils.keys import uniforms
from undrift.utils.reprs import short_repr

if TYPE_CHECKING:
    from undrift.core.clients import Roster

MODELS = ("server", "cohort", "all", "own", "tuned")
"""The models that can be reported: "server"; "cohort", the mean of the cohort's models, each
counted as often as it was drawn; "all", the mean of every client's last model (x⁰ for a client that
never took part); "own", each client's own model (its method's personal one, or its last) on its own
data; "tuned", the server's model after each client trained it on its own training data, on its own
data. Means are weighted by q_k."""
TRAINING_METRICS = ("objective", "gradient_mapping", "gradient_norm")
"""Metrics of the training data whose names do not start with "train_"."""


@dataclass(frozen=True)
class Evaluation:
    """What a run measures, and how often.

    Parameters
    ----------
    every
        the number of rounds between evaluations; the last round is always evaluated. None: spaced
        so that evaluation costs at most a tenth of the training, by counted work (see
        `undrift.loops.evaluation_schedule`); metrics of the training data then come from a fixed
        random part of the samples if need be, in the last round from all of them
    models
        the models to report, of "server", "cohort", "all", "own" and "tuned"
    gradient_mapping
        η of the gradient mapping |x − prox_{ηg}(x − η∇f(x))|/η, or None not to measure it
    parts
        the parts of the data to measure on, of "train", "validation" and "test"; parts that the
        data do not have are skipped, but the data must have at least one of them. Without "train"
        there is no train_loss and no objective.
    train_clients
        the number of clients from which metrics of the training data are estimated, the same
        clients in every round and for every method; None for all clients
    train_samples
        the number of samples from which metrics of the training data are estimated, a fixed random
        part in which every client has its share; None for all samples, or, without `every`, as many
        as the rule chooses
    tune
        the solver with which clients train the server's model for the model "tuned", such as
        `ud.SGD(lr=0.01, epochs=1)`; its work is not counted in records
    clients
        whether to measure every metric for each client too, on the parts that belong to clients:
        records then have the mean, deviation, worst tenth and Jain's index over clients, and a
        table of all clients is kept (`Result.clients`, `clients.csv`)
    """

    __repr__ = short_repr

    every: int | None = None
    models: tuple[str, ...] = ("server",)
    gradient_mapping: float | None = None
    parts: tuple[str, ...] = PARTS
    train_clients: int | None = None
    clients: bool = False
    tune: Any = None
    train_samples: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            require_whole("evaluation every", self.every, at_least=1)
        models = (self.models,) if isinstance(self.models, str) else tuple(self.models)
        object.__setattr__(self, "models", models)
        require(
            len(models) > 0, f"evaluation models is empty: name at least one of {_words(MODELS)}."
        )
        for name in self.models:
            require_choice("A model to report", name, MODELS)
        require(
            ("tuned" in models) == (self.tune is not None),
            "The model 'tuned' and the argument tune belong together: tune is the solver, such as "
            "ud.SGD(lr=0.01, epochs=1), and models must have 'tuned'.",
        )
        parts = (self.parts,) if isinstance(self.parts, str) else tuple(self.parts)
        object.__setattr__(self, "parts", parts)
        require(len(parts) > 0, f"evaluation parts is empty: name some of {_words(PARTS)}.")
        for name in parts:
            require_choice("A part to evaluate on", name, PARTS)
        if self.gradient_mapping is not None:
            require_range("gradient_mapping", self.gradient_mapping, above=0)
        if self.train_clients is not None:
            require_whole("train_clients", self.train_clients, at_least=1)
        if self.train_samples is not None:
            require_whole("train_samples", self.train_samples, at_least=1)
            require(
                not self.clients and {"own", "tuned"}.isdisjoint(models),
                "train_samples estimates one model on a part of all samples; results per client "
                "and clients' own models need all of a client's samples: use train_clients.",
            )
        for name in ("gradient_mapping", "train_clients", "train_samples"):
            require(
                getattr(self, name) is None or "train" in parts,
                f"{name} is measured on the training data, so parts must include 'train', but has "
                f"only {_words(parts)}.",
            )

    def restricted(self, parts: Iterable[str], every: int | None = None) -> Evaluation:
        """A copy that measures on fewer parts, possibly on none; `every` None for this one's."""
        found = copy(self)
        object.__setattr__(found, "parts", tuple(parts))
        object.__setattr__(found, "every", self.every if every is None else every)
        return found

    def require_measured(self, what: str, metric: str) -> None:
        """Raise if a metric belongs to a part that is not evaluated; `what` names its use."""
        part = part_of(metric)
        require(
            part is None or part in self.parts,
            f"{what} {metric!r} is never measured: it belongs to the {part} part, but the parts to "
            f"evaluate on are {_words(self.parts) or 'none'}.",
        )

    def weights(self, roster: Roster, seed: int) -> Tensor:
        """The weights of the clients' training losses, in the order of the data.

        They are the q_k; with `train_clients`, those of a sample of clients, scaled to the sum one,
        and zero for all other clients. The sample depends on the seed and the clients' ids only.
        """
        if self.train_clients is None or self.train_clients >= len(roster):
            return roster.weights_in_data_order()
        drawn = uniforms(seed, "evaluation", 0, roster.hashes)
        chosen = np.argsort(drawn, kind="stable")[: self.train_clients].copy()
        place = torch.tensor([roster.place[k] for k in chosen])
        q = roster.weights[chosen]
        weights = torch.zeros_like(roster.weights)
        weights[place] = q / q.sum()
        return weights


def part_of(metric: str) -> str | None:
    """The part of the data that a metric is measured on, by its name; None if unknown."""
    name = metric.rpartition("/")[2]
    if name in TRAINING_METRICS:
        return "train"
    return next((part for part in PARTS if name.startswith(f"{part}_")), None)


def _words(words: Iterable[str]) -> str:
    return ", ".join(map(repr, words))
