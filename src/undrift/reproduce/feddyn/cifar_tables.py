"""What FedDyn's tables of CIFAR-10 and CIFAR-100 share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FULL: Mapping[str, Any] = {"sampling": {"kind": "all"}}
ONE: Mapping[str, Any] = {"sampling.cohort": 1, "evaluation.every": 10}
"""One client in a round, which takes a tenth of the time: evaluated half as often."""
UNBALANCED: Mapping[str, Any] = {"sizes": {"kind": "lognormal", "sigma": 0.3}}
"""Clients of unequal sizes: keys of a partition."""
LEFT_OPEN = (
    "Inputs: the paper does not say how images are scaled; here to mean 0 and deviation 1 by "
    "channel, without augmentation.",
    "Learning rate: the paper chose the decay among .992, .998 and 1 and does not say which; here "
    ".998.",
    "FedProx: the paper chose μ among .01, .001 and .0001 and does not say which; here .0001.",
    "Network: the text prints 394 neurons, the authors' code has 384, as here.",
    "Unbalanced data: every client has the same weight, as in the paper's objective.",
)
CENTRALISED_SETTINGS: Mapping[str, Any] = {
    "rounds": 500,
    "local.lr": {"schedule": "Exponential", "lr": 0.1, "gamma": 0.992},
}


def split(partition: str, *others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a row with that partition."""
    found: dict[str, Any] = {"data.partition": partition}
    for each in others:
        found |= each
    return found
