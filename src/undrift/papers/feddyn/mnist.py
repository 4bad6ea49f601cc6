"""MNIST in Tables 2 and 5 of FedDyn: models sent until two test accuracies."""

from __future__ import annotations

from undrift.papers.feddyn.models_sent import Row, reproduce_rows
from undrift.papers.findings import Findings
from undrift.papers.lab import Lab
from undrift.papers.reproduction import Reproduction

IID, MILD, STRONG = "iid", "dirichlet:0.6", "dirichlet:0.3"
FULL = {
    "sampling": {"kind": "all"},
    "local.lr": 0.1,  # the rate decays only where clients are sampled
    "local.epochs": 20,
    "method.FedDyn.alpha": 0.01,
    "rounds": 500,
}


def partial(partition: str, cohort: int, alpha: float = 0.01) -> dict[str, object]:
    """The settings of a row in which so many of 100 clients take part."""
    return {
        "data.partition": partition,
        "sampling.cohort": cohort,
        "method.FedDyn.alpha": alpha,
    }


ROWS = (
    Row(
        "10 %, IID", {0.982: (100, 142, 588, 362), 0.972: (31, 52, 49, 43)}, partial(IID, 10, 0.03)
    ),
    Row(
        "10 %, Dirichlet .3",
        {0.982: (90, 208, 428, 858), 0.972: (37, 68, 76, 61)},
        partial(STRONG, 10),
    ),
)
QUICK = Row("quick", {0.94: (0, 1, 1, 1)}, {})


def _reproduce(lab: Lab) -> Findings:
    return reproduce_rows(lab, ROWS, QUICK)


REPRODUCTION = Reproduction(
    name="feddyn-mnist",
    paper="FedDyn",
    shows="Tables 2 and 5, MNIST",
    about="100 clients with 600 images each train a 784-200-100-10 network.",
    cost="40 min",
    reproduce=_reproduce,
    needs=("mnist",),
    parts=tuple(row.where for row in ROWS),
    quick={
        "rounds": 20,
        "local.epochs": 2,
        "method.FedDyn.local.epochs": 10,
        "method.SCAFFOLD.local.steps": 120,
    },
    quick_is="a fifth of the local work, 20 rounds at most, and a target of 94 %.",
)
