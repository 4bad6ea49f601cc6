"""CIFAR-10 in Tables 1, 2, 4 and 5 of FedDyn: models sent until two test accuracies."""

from __future__ import annotations

from functools import partial

from undrift.reproduce.feddyn.cifar_tables import (
    CENTRALISED_SETTINGS,
    FULL,
    LEFT_OPEN,
    ONE,
    UNBALANCED,
    split,
)
from undrift.reproduce.feddyn.models_sent import (
    DIGITS,
    IID,
    MILD,
    NO_IMAGES,
    NOT_REACHED,
    STRONG,
    Centralised,
    TableRow,
    parts_of,
    reproduce_rows,
)
from undrift.reproduce.reproduction import Reproduction

LARGE = {
    "data.clients": 1000,
    "sampling.cohort": 100,
    "method.SCAFFOLD.local.steps": 5,  # 50 images per client are one batch
    "rounds": 2000,
}


FEWER = {"FedDyn": 300, "SCAFFOLD": 300}
"""Rounds at 10 %: enough for the lower targets; more can be added to the same folder."""

# Models sent by FedDyn, SCAFFOLD, FedAvg and FedProx. SCAFFOLD's count for 100 %, Dirichlet .3,
# 80.2 % is hard to read and contradicts its printed ratio, so it is left out.
ROWS = (
    TableRow(
        "100 %, IID",
        {0.85: (198, 1860, NOT_REACHED, NOT_REACHED), 0.814: (67, 320, 754, 655)},
        split(IID, FULL),
    ),
    TableRow(
        "100 %, Dirichlet .6",
        {0.84: (148, 1890, NOT_REACHED, NOT_REACHED), 0.803: (64, 392, 869, 724)},
        split(MILD, FULL),
    ),
    TableRow(
        "100 %, Dirichlet .3",
        {0.825: (222, 1762, NOT_REACHED, NOT_REACHED), 0.802: (70, None, 705, NOT_REACHED)},
        split(STRONG, FULL),
    ),
    TableRow(
        "10 %, IID",
        {0.845: (637, 1852, NOT_REACHED, NOT_REACHED), 0.823: (240, 512, 994, 825)},
        split(IID),
        fewer=FEWER,
    ),
    TableRow(
        "10 %, Dirichlet .6",
        {0.835: (403, 1618, NOT_REACHED, NOT_REACHED), 0.813: (189, 486, 977, 943)},
        split(MILD),
        fewer=FEWER,
    ),
    TableRow(
        "10 %, Dirichlet .3",
        {0.825: (444, 1880, NOT_REACHED, NOT_REACHED), 0.807: (232, 594, 863, 930)},
        split(STRONG),
        fewer=FEWER,
    ),
    TableRow(
        "1 %, IID",
        {0.826: (660, 1544, 892, NOT_REACHED), 0.816: (543, 1150, 603, 707)},
        split(IID, ONE),
    ),
    TableRow(
        "1 %, Dirichlet .6",
        {0.81: (561, 1510, 977, 841), 0.80: (436, 1100, 673, 623)},
        split(MILD, ONE),
    ),
    TableRow(
        "1 %, Dirichlet .3",
        {0.79: (590, 1580, 955, 738), 0.78: (452, 1272, 653, 497)},
        split(STRONG, ONE),
    ),
    TableRow(
        "1000 devices, IID",
        {0.80: (840, "4000+", "2000+", "2000+"), 0.623: (305, 928, 1277, 1274)},
        split(IID, LARGE),
    ),
    TableRow(
        "1000 devices, Dirichlet .3",
        {0.80: (831, "4000+", "2000+", "2000+"), 0.706: (350, 2138, 1962, 1517)},
        split(STRONG, LARGE),
    ),
    TableRow(
        "unbalanced, IID",
        {0.84: (335, 1152, NOT_REACHED, NOT_REACHED), 0.823: (213, 548, 834, 834)},
        {"data.partition": {"kind": "iid", **UNBALANCED}},
    ),
    TableRow(
        "unbalanced, Dirichlet .3",
        {0.825: (524, 1998, NOT_REACHED, NOT_REACHED), 0.801: (274, 652, 893, NOT_REACHED)},
        {"data.partition": {"kind": "dirichlet", "alpha": 0.3, **UNBALANCED}},
    ),
    # Figure 11 prints no numbers: the target is ours.
    TableRow(
        "ResNet-18, 10 %, IID",
        {0.85: (None,) * 4},
        split(IID, {"model": {"name": "resnet18"}}),
        against=("SCAFFOLD", "FedAvg", "FedProx"),
    ),
)
BASELINE = Centralised(0.852, CENTRALISED_SETTINGS)
QUICK = TableRow("digits, Dirichlet .3", {0.95: (None,) * 4}, against=("FedAvg", "FedProx"))


REPRODUCTION = Reproduction(
    name="feddyn-cifar10",
    paper="FedDyn",
    shows="Tables 1, 2, 4 and 5 and Figures 4, 6, 11 and 12, CIFAR-10",
    about="A convolutional network, with 100 or 1000 clients, 100, 10 or 1 % of them in a round, "
    "balanced and unbalanced data; and ResNet-18 with GroupNorm.",
    cost="10 %, IID: about 50 hours, estimated; ten times that with 100 %, more with ResNet-18",
    reproduce=partial(reproduce_rows, rows=ROWS, baseline=BASELINE, quick=QUICK, notes=[NO_IMAGES]),
    needs=("cifar10",),
    parts=parts_of(ROWS),
    left_open=(
        *LEFT_OPEN,
        "Evaluations: every fifth round, every tenth at 1 %, to save time, so that counts are "
        "rounded up to such a round. The 10 % rows end after 300 rounds of FedDyn and SCAFFOLD, "
        "which suffice for the lower targets.",
        "α: the authors chose it among .001, .01 and .1 and do not say which; here .1 everywhere, "
        "the best of their study of α.",
        "ResNet-18: the text says 100 devices, the caption 1000, and only curves are printed; "
        "here 100 devices and a target of 85 %.",
    ),
    quick={**DIGITS, "sampling.cohort": 10, "rounds": 60},
    quick_is="digits of 8 × 8 with a small network in place of CIFAR-10, 20 clients with 10 in a "
    "round.",
    revision=2,
)
