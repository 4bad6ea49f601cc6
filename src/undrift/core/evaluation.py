"""By what a run is judged: which models are looked at, how often, with which measures."""

from __future__ import annotations

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
