"""The four federated data sets of FedAvg-nonIID (its Table 2), as settings of experiment files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undrift.reproduce.lab import Lab

POWER_LAW = {"kind": "power-law", "exponent": 0.78}
"""62 995 samples, 630 ± 801 per client; 62 864 and 628 ± 800 in Table 2."""
DATA: Mapping[str, Mapping[str, Any]] = {
    "MNIST balanced": {
        "source": "mnist",
        "partition": {"kind": "classes", "k": 2},
        "normalise": "none",
        "clients": 100,
    },
    "MNIST unbalanced": {
        "source": "mnist",
        "partition": {"kind": "classes", "k": 2, "sizes": POWER_LAW},
        "joined": True,
        "normalise": "none",
        "clients": 100,
    },
    "synthetic(0,0)": {
        "source": "synthetic",
        "alpha": 0.0,
        "beta": 0.0,
        "clients": 100,
        "seed": 3,
    },
    "synthetic(1,1)": {
        "source": "synthetic",
        "alpha": 1.0,
        "beta": 1.0,
        "clients": 100,
        "seed": 2,
    },
}
"""The table [data] of each."""
SYNTHETIC = ("synthetic(0,0)", "synthetic(1,1)")
"""What a quick version runs on: as they are, for it is their sizes that the claims are about."""

LEFT_OPEN = (
    "The unbalanced MNIST has more samples than MNIST's training part: both parts are shared out "
    "by a power law with exponent 0.78, and nine tenths of each client's images are for training.",
    "The synthetic data were drawn without a seed: of a dozen draws those whose sizes are most "
    "like Table 2 were taken, 412 ± 1285 samples for (0,0) and 282 ± 447 for (1,1).",
    "F is evaluated with its term λ|w|², as the paper writes it, on all training data; the "
    "authors' code leaves the term out.",
    "The authors' code clips gradients at a norm of 60, unmentioned in the paper: not done here.",
    "In the authors' code the figures' E counts ten steps, each on a batch drawn anew: as here.",
)


def settings(where: str) -> dict[str, Any]:
    """The settings that choose a data set, and the batch size that goes with it."""
    return {"data": dict(DATA[where]), "local.batch_size": 24 if where in SYNTHETIC else 64}


def places(lab: Lab) -> list[str]:
    """The data sets that a lab is to do."""
    return [where for where in lab.parts if where in SYNTHETIC or not lab.quick]
