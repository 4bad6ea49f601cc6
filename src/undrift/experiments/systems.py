"""The system heterogeneity of papers, as tables of an experiment file.

`system = "fedlga"` in a file sets the tables of `SYSTEMS["fedlga"]` where the file does not. From
Python they are plain values: `SYSTEMS["fedlga"].tables["limit"]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class System:
    """How devices differ in the experiments of a paper, and how the server handles it.

    Parameters
    ----------
    about
        one sentence on the paper's setting
    tables
        the tables of an experiment file: `devices`, `pace`, `limit`, `sampling`, and
        `epochs` or `steps` of `local`
    """

    about: str
    tables: Mapping[str, Mapping[str, Any]]


def _normal(**own: Any) -> dict[str, Any]:
    """FedNova's τ ~ N(30, 20²), within [1, 96]."""
    return {**own, "mean": 30, "std": 20, "low": 1, "high": 96}


SYSTEMS: Mapping[str, System] = {
    "fedavg-first": System(
        "All clients work, and the server uses the first K = 30 replies (Li et al., On the "
        "Convergence of FedAvg on Non-IID Data, ICLR 2020). The paper gives no speeds; here they "
        "are lognormal.",
        {
            "devices": {
                "kind": "drawn",
                "speed": {"law": "lognormal", "median": 100, "sigma": 0.5},
            },
            "sampling": {"kind": "all"},
            "pace": {"kind": "first", "replies": 30},
        },
    ),
    "fednova-fixed": System(
        "Every device has its own speed and does as many steps as it can in one second: N(30, 20²) "
        "within [1, 96], the same in every round (Wang et al., FedNova, NeurIPS 2020).",
        {
            "devices": {"kind": "drawn", "speed": _normal(law="normal"), "unit": "steps"},
            "pace": {"kind": "deadline", "seconds": 1.0, "late": "partial"},
            "local": {"steps": 96},
        },
    ),
    "fednova-random": System(
        "Each client does N(30, 20²) steps within [1, 96], drawn anew in every round "
        "(Wang et al., FedNova, NeurIPS 2020).",
        {"local": {"steps": _normal(amount="normal")}},
    ),
    "fednova-epochs": System(
        "Each client does 2 to 5 epochs, drawn anew in every round (Wang et al., FedNova, NeurIPS "
        "2020).",
        {"local": {"epochs": {"amount": "uniform", "low": 2, "high": 5}}},
    ),
    "fednova-synthetic": System(
        "Each client does 1 to 5 epochs, drawn anew in every round: on the synthetic data (Wang "
        "et al., FedNova, NeurIPS 2020).",
        {"local": {"epochs": {"amount": "uniform", "low": 1, "high": 5}}},
    ),
    "feddyn": System(
        "Each device is active with probability 0.1 in a round, independently of the others "
        "(Acar et al., FedDyn, ICLR 2021).",
        {"sampling": {"kind": "bernoulli", "cohort": 0.1}},
    ),
    "feddr-async": System(
        "All clients work, and the slowest device is half as fast as the fastest (Tran-Dinh et "
        "al., FedDR, NeurIPS 2021, with 20 users). Asynchronous methods fold each reply when it "
        "arrives, the others wait for all replies.",
        {
            "devices": {
                "kind": "drawn",
                "speed": {"law": "ladder", "slowest": 50, "fastest": 100},
            },
            "sampling": {"kind": "all"},
        },
    ),
    "fedlga": System(
        "Half of every cohort is slow and does E − τ + 1 of its E = 5 epochs, with τ uniform on "
        "{1 … E − 1} (Li et al., FedLGA, 2021).",
        {"limit": {"share": 0.5}, "local": {"epochs": 5}},
    ),
}
"""The systems by the name that the key `system` takes."""
