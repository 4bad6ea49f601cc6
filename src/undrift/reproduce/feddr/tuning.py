"""Tunes FedProx, FedPD and FedDR on synthetic data, for the training loss of the global model.

The paper tunes μ, η and α "from a wide range of values" and prints neither the ranges nor the
criterion. Here every method is tuned by short runs with one seed, in every setting on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from undrift.reproduce.curves import final
from undrift.reproduce.feddr.four_methods import LOSS
from undrift.reproduce.lab import Lab

ETAS = (0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 100.0)
ALPHAS = (1.0, 1.5, 1.95)
MUS = (0.001, 0.01, 0.1, 1.0)
GRIDS: Mapping[str, Sequence[Mapping[str, float]]] = {
    "FedProx": [{"mu": mu} for mu in MUS],
    "FedPD": [{"eta": eta} for eta in ETAS],
    "FedDR": [{"eta": eta, "alpha": alpha} for alpha in ALPHAS for eta in ETAS],
}
"""The parameters that are tried, by method."""
QUICK_GRIDS: Mapping[str, Sequence[Mapping[str, float]]] = {
    "FedProx": GRIDS["FedProx"][:1],
    "FedPD": [{"eta": 1.0}],
    "FedDR": [{"eta": 1.0, "alpha": 1.0}, {"eta": 100.0, "alpha": 1.95}],
}
ROUNDS_ALL, ROUNDS_SAMPLED = 30, 60
"""Rounds of a run that tunes; with 10 of 30 users a round is cheaper and does less."""
LAST = 3
"""Evaluations over which the loss at the end is averaged: it is noisy."""

Chosen = Mapping[str, Mapping[str, float]]
"""The parameters of each method."""


def tuned(
    lab: Lab, where: str, methods: Sequence[str], settings: Mapping[str, Any], sampled: bool
) -> Chosen:
    """Return the parameters with which each method ends with the lowest training loss.

    Parameters
    ----------
    where
        name of the setting
    methods
        the methods to tune
    settings
        keys of the experiment file that define the setting
    sampled
        whether some users are sampled in every round
    """
    grids = {method: lab.either(GRIDS, QUICK_GRIDS)[method] for method in methods}
    tables = [
        {"name": method, "label": label(method, tried), **tried}
        for method, grid in grids.items()
        for tried in grid
    ]
    short = {
        "rounds": lab.either(ROUNDS_SAMPLED if sampled else ROUNDS_ALL, 4),
        "method": tables,
        "evaluation.parts": ["train"],
        "evaluation.models": ["server"],
    }
    runs = lab.run(f"{where}, tuning", {**settings, **short}, most_seeds=1)
    return {
        method: min(
            grid,
            key=lambda tried: final(runs, label(method, tried), LOSS, LAST).mean,
        )
        for method, grid in grids.items()
    }


def label(method: str, parameters: Mapping[str, float]) -> str:
    """Return the label of a run that tunes: "FedDR eta 1 alpha 1.95"."""
    return " ".join([method, *(f"{key} {value:g}" for key, value in parameters.items())])


def as_settings(chosen: Chosen) -> dict[str, float]:
    """Return the parameters as keys of the experiment file."""
    return {
        f"method.{method}.{key}": value
        for method, parameters in chosen.items()
        for key, value in parameters.items()
    }
