"""Figure 4 of FedDR: four methods on FEMNIST against bytes sent."""

from __future__ import annotations

from undrift.reproduce.feddr.four_methods import (
    ACCURACY,
    LEFT_OPEN,
    LOSS,
    PUBLISHED,
    TEST,
    VIEWS,
    compare,
)
from undrift.reproduce.findings import Findings
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction

OTHERS = ("FedAvg", "FedProx", "FedPD")


def _reproduce(lab: Lab) -> Findings:
    cohort = lab.either(50, 5)
    name = lab.either("FEMNIST", "digits")
    words = f"{cohort} of {4 * cohort} users"
    found = compare(lab, name, {}, {"kind": "uniform", "cohort": cohort}, words)
    return Findings(
        found.numbers(),
        [
            *(found.ahead(view, ("FedDR",), OTHERS, LOSS) for view in VIEWS),
            *(found.ahead(view, ("FedDR",), OTHERS, ACCURACY) for view in VIEWS),
            found.comparable(PUBLISHED, TEST, "FedPD", "FedDR"),
        ],
        found.panels(),
        ["This quick run uses scikit-learn's digits instead of FEMNIST."] if lab.quick else [],
    )


REPRODUCTION = Reproduction(
    name="feddr-femnist",
    paper="FedDR",
    shows="Figure 4",
    about="200 writers train a 784-128-62 network, 50 of them in a round; FedPD always has all. "
    "Global models and the writers' own models are compared separately, at equal numbers of bytes.",
    cost="about 3 hours, estimated",
    reproduce=_reproduce,
    needs=("femnist",),
    left_open=(
        *LEFT_OPEN,
        "μ of FedProx, η of FedPD and η of FedDR are tuned but not printed: here those of the "
        "authors' released scripts.",
        "The paper does not say which 200 writers: here they are drawn at random.",
    ),
    quick={
        "rounds": 16,
        "data": {"source": "digits", "partition": "dirichlet:0.3", "clients": 20, "joined": True},
        "model.hidden": [32],
        "local.lr": 0.01,
        "evaluation.every": 2,
    },
    quick_is="scikit-learn's digits instead of FEMNIST, 20 users of which 5 are sampled, a network "
    "with 32 hidden units, a learning rate of 0.01, 16 rounds.",
)
