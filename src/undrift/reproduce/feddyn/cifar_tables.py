"""What FedDyn's tables of CIFAR-10 and CIFAR-100 have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

M = "1000+"
"""Not reached within 1000 rounds."""
FULL: Mapping[str, Any] = {"sampling": {"kind": "all"}}
ONE: Mapping[str, Any] = {"sampling.cohort": 1}
UNBALANCED: Mapping[str, Any] = {"sizes": {"kind": "lognormal", "sigma": 0.3}}
"""Clients of unequal sizes, as a part of a partition."""
LEFT_OPEN = (
    "Inputs: the paper does not say how images are scaled; here to mean 0 and deviation 1 by "
    "channel, without augmentation.",
    "Learning rate: its decay was chosen among .992, .998 and 1 without saying which; .998.",
    "FedProx: μ was chosen among .01, .001 and .0001 without saying which; .0001.",
    "Network: the text prints 394 neurons, the authors' code has 384, as here.",
    "Unbalanced data: every client counts alike, as in the paper's objective.",
)
CENTRALISED_SETTINGS: Mapping[str, Any] = {
    "rounds": 500,
    "local.lr": {"schedule": "Exponential", "lr": 0.1, "gamma": 0.992},
}


def split(partition: str, *others: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a row with that partition."""
    found: dict[str, Any] = {"data.partition": partition}
    for each in others:
        found |= each
    return found
