"""Figures 2 and 3 of FedDR: synthetic data, without and with sampling of users."""

from __future__ import annotations

from undrift.reproduce.feddr.four_methods import (
    ACCURACY,
    GLOBAL,
    LEFT_OPEN,
    LOCAL,
    LOSS,
    PUBLISHED,
    VIEWS,
    FourMethodRuns,
    compare,
)
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction

DATA: dict[str, dict[str, object]] = {
    "iid": {"data.iid": True},
    "(0,0)": {"data.alpha": 0.0, "data.beta": 0.0},
    "(.5,.5)": {
        "data.alpha": 0.5,
        "data.beta": 0.5,
        "method.FedProx.mu": 1.0,
        "method.FedPD.eta": 1.0,
        "method.FedDR.eta": 500.0,
    },
    "(1,1)": {
        "data.alpha": 1.0,
        "data.beta": 1.0,
        "method.FedProx.mu": 1.0,
        "method.FedDR.eta": 1000.0,
    },
}
ALL, SOME = "all users", "10 of 30 users"
TEN = {"kind": "uniform", "cohort": 10}


def _reproduce(lab: Lab) -> Findings:
    numbers: list[Number] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    for part in (f"(0,0), {ALL}", f"(0,0), {SOME}") if lab.quick else lab.parts:
        name, _, users = part.rpartition(", ")
        found = compare(lab, name, DATA[name], TEN if users == SOME else None, users)
        numbers += found.numbers()
        claims += _sampled(found) if users == SOME else _without_sampling(found)
        panels += found.panels()
    return Findings(numbers, claims, panels)


def _without_sampling(found: FourMethodRuns) -> list[Claim]:
    """Return the paper's claims about Figure 2."""
    return [
        *(found.ahead(view, ("FedPD", "FedDR"), ("FedAvg", "FedProx"), LOSS) for view in VIEWS),
        found.comparable(GLOBAL, ACCURACY, "FedPD", "FedDR"),
        found.comparable(LOCAL, ACCURACY, "FedPD", "FedDR"),
        found.ahead(GLOBAL, ("FedProx",), ("FedAvg",), LOSS),
    ]


def _sampled(found: FourMethodRuns) -> list[Claim]:
    """Return the paper's claims about Figure 3, where methods are compared at equal bytes."""
    return [
        *(found.ahead(view, ("FedDR",), ("FedAvg", "FedProx", "FedPD"), LOSS) for view in VIEWS),
        found.ahead(PUBLISHED, ("FedProx", "FedPD", "FedDR"), ("FedAvg",), LOSS),
        found.ahead(PUBLISHED, ("FedPD",), ("FedProx",), LOSS),
    ]


REPRODUCTION = Reproduction(
    name="feddr-synthetic",
    paper="FedDR",
    shows="Figures 2 and 3",
    about="30 users with synthetic data train a 60-32-10 network, all of them in every round or "
    "10; FedPD always uses all. Global models and the users' own models are compared separately.",
    cost="(0,0): 20 min; about 80 min in all, estimated",
    reproduce=_reproduce,
    left_open=(
        *LEFT_OPEN,
        "μ of FedProx and η of FedPD are tuned but not printed: here those of the authors' "
        "released scripts.",
        "Figures 2 and 3 show one data set each, which the text does not name; here all four are "
        "parts.",
    ),
    quick={"rounds": 10, "local.epochs": 5, "data.most": 80, "evaluation.every": 2},
    quick_is="synthetic(0,0) only, at most 80 samples a user, 5 epochs and 10 rounds.",
    parts=tuple(f"{name}, {users}" for name in DATA for users in (ALL, SOME)),
)
