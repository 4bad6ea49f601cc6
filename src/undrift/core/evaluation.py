"""`Evaluation`: what a run measures, of which models, on which data, and how often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undrift.core.targets import PARTS
from undrift.utils.errors import require, require_choice, require_range, require_whole
from undrift.utils.keys import uniforms
from undrift.utils.reprs import short_repr

if TYPE_CHECKING:
    from undrift.core.clients import Roster

MODELS = ("server", "cohort", "all", "own")
"""The models that can be reported: "server"; "cohort", the mean of the cohort's models, each
counted as often as it was drawn; "all", the mean of every client's last model (x⁰ for a client that
never took part); "own", each client's last model on its own data. Means are weighted by q_k."""
TRAINING_METRICS = ("objective", "gradient_mapping", "gradient_norm")
"""Metrics of the training data whose names do not start with "train_"."""


@dataclass(frozen=True)
class Evaluation:
    """What a run measures, and how often.

    Parameters
    ----------
    every
        the number of rounds between evaluations; the last round is always evaluated
    models
        the models to report, of "server", "cohort", "all" and "own"
    gradient_mapping
        η of the gradient mapping |x − prox_{ηg}(x − η∇f(x))|/η, or None not to measure it
    parts
        the parts of the data to measure on, of "train", "validation" and "test"; parts that the
        data do not have are skipped. Without "train" there is no train_loss and no objective.
    train_clients
        the number of clients from which metrics of the training data are estimated, the same
        clients in every round and for every method; None for all clients
    """

    __repr__ = short_repr

    every: int = 1
    models: tuple[str, ...] = ("server",)
    gradient_mapping: float | None = None
    parts: tuple[str, ...] = PARTS
    train_clients: int | None = None

    def __post_init__(self) -> None:
        require_whole("evaluation every", self.every, at_least=1)
        models = (self.models,) if isinstance(self.models, str) else tuple(self.models)
        object.__setattr__(self, "models", models)
        require(
            len(models) > 0, f"evaluation models is empty: name at least one of {_words(MODELS)}."
        )
        for name in self.models:
            require_choice("A model to report", name, MODELS)
        parts = (self.parts,) if isinstance(self.parts, str) else tuple(self.parts)
        object.__setattr__(self, "parts", parts)
        require(len(parts) > 0, f"evaluation parts is empty: name some of {_words(PARTS)}.")
        for name in parts:
            require_choice("A part to evaluate on", name, PARTS)
        if self.gradient_mapping is not None:
            require_range("gradient_mapping", self.gradient_mapping, above=0)
        if self.train_clients is not None:
            require_whole("train_clients", self.train_clients, at_least=1)
        for name in ("gradient_mapping", "train_clients"):
            require(
                getattr(self, name) is None or "train" in parts,
                f"{name} is measured on the training data, so parts must include 'train', but has "
                f"only {_words(parts)}.",
            )

    def require_measured(self, what: str, metric: str) -> None:
        """Raise if a metric belongs to a part that is not evaluated; `what` names its use."""
        part = part_of(metric)
        require(
            part is None or part in self.parts,
            f"{what} {metric!r} is never measured: it belongs to the {part} part, but the parts to "
            f"evaluate on are {_words(self.parts)}.",
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
        place = torch.tensor(roster.place)[chosen]
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
