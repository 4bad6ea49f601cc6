"""FedDyn's tables of models sent: traffic until a test accuracy, in rounds of FedAvg."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undrift.report.recorded_runs import Runs
from undrift.report.tables import OverSeeds
from undrift.reproduce.curves import cost, final, line
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab

METHODS = ("FedDyn", "SCAFFOLD", "FedAvg", "FedProx")
REPORTED = "all/test_accuracy"
"""Accuracy of the mean of all clients' last models, which the paper's curves and tables show."""
CENTRALISED = "centralised"
NOT_REACHED = "1000+"
"""In print: the target was not reached within 1000 rounds."""
IID, MILD, STRONG = "iid", "dirichlet:0.6", "dirichlet:0.3"
"""The paper's partitions of images."""
CLAIMED_LEAD = 1.2
"""FedDyn's lead is a claim if the other method sent at least this many times as much in print."""
CLEAR_LEAD = 1.1
"""Measured counts with a smaller ratio are too close to decide."""

DIGITS: Mapping[str, Any] = {
    "data": {"source": "digits", "clients": 20, "partition": STRONG},
    "model": {"name": "mlp", "hidden": [32]},
    "local.batch_size": 10,
    "local.lr": 0.1,
    "sampling": {"kind": "uniform", "cohort": 4},
    "evaluation.models": ["all"],
    "evaluation.every": 1,
}
"""Settings of quick runs: scikit-learn's 8 × 8 digits stand in for data that must be downloaded."""

Sent = Sequence[int | str | None]


@dataclass(frozen=True)
class TableRow:
    """One setting of the tables.

    Parameters
    ----------
    where
        name of the row
    sent
        by target accuracy, the models sent by each of `METHODS` in the paper; text such as "1000+"
        if a method did not reach the target, None if the number is not legible
    settings
        keys of the experiment file that define the setting
    against
        methods that FedDyn should beat; by default those that sent `CLAIMED_LEAD` times as much
    fewer
        methods with fewer rounds than the others, to save time, and their rounds
    """

    where: str
    sent: Mapping[float, Sent]
    settings: Mapping[str, Any] = field(default_factory=dict)
    against: Sequence[str] | None = None
    fewer: Mapping[str, int] = field(default_factory=dict)

    def beaten(self, target: float) -> list[str]:
        """Return the methods that FedDyn should beat at a target."""
        if self.against is not None:
            return list(self.against)
        ours, *theirs = map(_lower_bound, self.sent[target])
        return [
            method
            for method, count in zip(METHODS[1:], theirs, strict=True)
            if ours is not None and count is not None and count >= CLAIMED_LEAD * ours
        ]


@dataclass(frozen=True)
class Centralised:
    """The baseline trained on all data in one place.

    Parameters
    ----------
    accuracy
        published test accuracy
    settings
        learning rate by epoch, and number of epochs as `rounds`
    """

    accuracy: float
    settings: Mapping[str, Any]


def halved_every_50(lr: float) -> dict[str, Any]:
    """Return settings of 150 epochs, with the rate halved after epochs 50 and 100."""
    milestones = {"schedule": "Milestones", "lr": lr, "gamma": 0.5, "milestones": [50, 100]}
    return {"rounds": 150, "local.lr": milestones}


NO_IMAGES = (
    "This quick run uses 8 × 8 digits as a stand-in: it shows the order of the methods, but says "
    "nothing about the published numbers."
)


def everyone(partition: str, alpha: float) -> dict[str, Any]:
    """Return settings with all clients in a round: a constant rate, 20 epochs except FedDyn's."""
    return {
        "data.partition": partition,
        "sampling": {"kind": "all"},
        "local.lr": 0.1,
        "local.epochs": 20,
        "method.FedDyn.alpha": alpha,
    }


def sampled(partition: str, cohort: int, alpha: float) -> dict[str, Any]:
    """Return settings with `cohort` of the 100 clients in a round."""
    return {
        "data.partition": partition,
        "sampling.cohort": cohort,
        "method.FedDyn.alpha": alpha,
    }


def parts_of(rows: Sequence[TableRow]) -> tuple[str, ...]:
    """Return the parts of a table: each row, and the centralised baseline."""
    return (*(row.where for row in rows), CENTRALISED)


def reproduce_rows(
    lab: Lab,
    rows: Sequence[TableRow],
    baseline: Centralised,
    quick: TableRow,
    notes: Sequence[str] = (),
) -> Findings:
    """Run the rows of a table and return what each method sent until each target.

    Parameters
    ----------
    quick
        the row of the quick version, which has its own target
    notes
        notes about a quick run
    """
    numbers: list[Number] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    for row in (quick,) if lab.quick else [row for row in rows if row.where in lab.parts]:
        lab.begin(row.where)
        runs = _runs(lab, row)
        for target, published in row.sent.items():
            where = f"{row.where}, {100 * target:g} %"
            sent = {m: cost(runs[m], m, REPORTED, target, "models") for m in METHODS}
            numbers += [
                Number(where, method, printed, sent[method])
                for method, printed in zip(METHODS, published, strict=True)
            ]
            claims.append(fewest(where, sent, row.beaten(target)))
        panels.append(_panel(row, runs))
    if not lab.quick and CENTRALISED in lab.parts:
        lab.begin(CENTRALISED)
        numbers.append(_centralised(lab, baseline))
    return Findings(numbers, claims, panels, notes if lab.quick else ())


def _runs(lab: Lab, row: TableRow) -> dict[str, Runs]:
    """Return the runs of each method, which end at the higher target.

    Each method has its own folder, so that its number of rounds can be extended later.
    """
    settings = {**row.settings, "target": {REPORTED: max(row.sent)}}
    return {
        method: lab.run(f"{row.where}, {method}", {**settings, **_rounds(row, method)}, [method])
        for method in METHODS
    }


def _rounds(row: TableRow, method: str) -> dict[str, int]:
    return {"rounds": row.fewer[method]} if method in row.fewer else {}


def fewest(where: str, sent: Mapping[str, OverSeeds], beaten: Sequence[str]) -> Claim:
    """Claim that FedDyn reaches a target with fewer models than some other methods.

    A method that did not reach the target has sent more than one that did. The claim is undecided
    if neither FedDyn nor any of the others reached it, or if the counts are close.
    """
    ours = sent["FedDyn"]
    failed = [sent[method].missed == len(sent[method].values) for method in beaten]
    leads = [
        math.inf if lost else sent[method].mean / ours.mean
        for method, lost in zip(beaten, failed, strict=True)
    ]
    least = min(leads, default=1.0)
    holds: bool | None = least >= CLEAR_LEAD and not ours.missed
    if 1 / CLEAR_LEAD < least < CLEAR_LEAD or (ours.missed and all(failed)):
        holds = None
    counts = (
        f"{method} {'> ' if over.missed else ''}{over.mean:.0f}" for method, over in sent.items()
    )
    others = " and ".join(beaten) or "the others"
    return Claim(
        f"{where}: FedDyn sends fewer models than {others}.",
        holds,
        ", ".join(counts),
    )


def _lower_bound(printed: int | str | None) -> int | None:
    """Return a count, or the bound of a text such as "1000+"."""
    return int(printed.rstrip("+")) if isinstance(printed, str) else printed


def _centralised(lab: Lab, baseline: Centralised) -> Number:
    """Train one client with all data, whose rounds are epochs."""
    one_place = {
        "data.clients": 1,
        "data.partition": IID,
        "local.epochs": 1,
        "sampling": {"kind": "all"},
        "method": [{"name": "FedAvg", "label": CENTRALISED}],
        "evaluation.models": ["server"],
        "target": {},
    }
    runs = lab.run(CENTRALISED, {**one_place, **baseline.settings})
    found = final(runs, CENTRALISED, "test_accuracy")
    return Number("all data in one place", "test accuracy", baseline.accuracy, found)


def _panel(row: TableRow, runs: Mapping[str, Runs]) -> Panel:
    """Return the panel of accuracy against rounds, as in the paper's figures."""
    return Panel(
        row.where,
        "rounds",
        "test accuracy",
        [line(runs[method], method, REPORTED) for method in METHODS],
        marks=[(f"{100 * target:g} %", target) for target in row.sent],
        y_limits=(max(0.0, 2.5 * min(row.sent) - 1.5), 1.0) if min(row.sent) > 0.9 else None,
    )
