"""FedDyn's tables of models sent: how many rounds of FedAvg's traffic until a test accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undrift.report.reading import Runs
from undrift.report.tables import OverSeeds
from undrift.reproduce.curves import cost, final, line
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab

METHODS = ("FedDyn", "SCAFFOLD", "FedAvg", "FedProx")
REPORTED = "all/test_accuracy"
"""Of the mean of all clients' last models, which is what the paper's curves and tables show."""
CENTRALISED = "centralised"
IID, MILD, STRONG = "iid", "dirichlet:0.6", "dirichlet:0.3"
"""How the paper shares out images."""
LEAD = 1.2
"""How many times as much a method must have sent in print for FedDyn's lead to be a claim."""
CLOSE = 1.1
"""Counts that differ by less than this factor are too close to call one of them fewer."""

DIGITS: Mapping[str, Any] = {
    "data": {"source": "digits", "clients": 20, "partition": STRONG},
    "model": {"name": "mlp", "hidden": [32]},
    "local.batch_size": 10,
    "local.lr": 0.1,
    "sampling": {"kind": "uniform", "cohort": 4},
    "evaluation.models": ["all"],
}
"""The stand-in of quick runs for images that are not at hand: digits of 8 × 8 that always are."""

Sent = Sequence[int | str | None]


@dataclass(frozen=True)
class TableRow:
    """A setting of the tables.

    Parameters
    ----------
    where
        its name
    sent
        by target accuracy, the models sent by each of `METHODS` in the paper: text such as
        "1000+" where a method did not get there, None where the paper has no legible number
    settings
        the keys of the experiment file that make it
    against
        the methods that FedDyn should beat; if left out, those that sent `LEAD` times as much;
        none where nothing can be told
    fewer
        methods that are given up after so many rounds, for time
    """

    where: str
    sent: Mapping[float, Sent]
    settings: Mapping[str, Any] = field(default_factory=dict)
    against: Sequence[str] | None = None
    fewer: Mapping[str, int] = field(default_factory=dict)

    def beaten(self, target: float) -> list[str]:
        """The methods that FedDyn should beat at a target."""
        if self.against is not None:
            return list(self.against)
        ours, *theirs = map(_least, self.sent[target])
        return [
            method
            for method, count in zip(METHODS[1:], theirs, strict=True)
            if ours is not None and count is not None and count >= LEAD * ours
        ]


@dataclass(frozen=True)
class Centralised:
    """The baseline with all data in one place.

    Parameters
    ----------
    accuracy
        on the test part, as published
    settings
        its learning rate by epoch, and its number of epochs as `rounds`
    """

    accuracy: float
    settings: Mapping[str, Any]


def halved_every_50(lr: float) -> dict[str, Any]:
    """150 epochs, with half the learning rate from epoch 50 on and a quarter from 100 on."""
    milestones = {"schedule": "Milestones", "lr": lr, "gamma": 0.5, "milestones": [50, 100]}
    return {"rounds": 150, "local.lr": milestones}


NO_IMAGES = (
    "This quick run is on a stand-in, digits of 8 × 8: it shows the order of the methods, and "
    "nothing about the published numbers."
)


def parts_of(rows: Sequence[TableRow]) -> tuple[str, ...]:
    """What can be run by itself: each row, and the centralised baseline."""
    return (*(row.where for row in rows), CENTRALISED)


def reproduce_rows(
    lab: Lab,
    rows: Sequence[TableRow],
    baseline: Centralised,
    quick: TableRow,
    notes: Sequence[str] = (),
) -> Findings:
    """Run the settings of a table, and see who sends how much until each target.

    Parameters
    ----------
    quick
        the one row of the quick version, with a target of its own
    notes
        what a reader of a quick run must know
    """
    numbers: list[Number] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    for row in (quick,) if lab.quick else [row for row in rows if row.where in lab.parts]:
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
        numbers.append(_centralised(lab, baseline))
    return Findings(numbers, claims, panels, notes if lab.quick else ())


def _runs(lab: Lab, row: TableRow) -> dict[str, Runs]:
    """The runs that each method is in, each until the higher target."""
    settings = {**row.settings, "target": {REPORTED: max(row.sent)}}
    usual = [method for method in METHODS if method not in row.fewer]
    found = dict.fromkeys(usual, lab.run(row.where, settings, usual))
    for method, rounds in row.fewer.items():
        own = {**settings, "rounds": rounds}
        found[method] = lab.run(f"{row.where}, {method}", own, [method])
    return found


def fewest(where: str, sent: Mapping[str, OverSeeds], beaten: Sequence[str]) -> Claim:
    """That FedDyn reaches a target with fewer models than some other methods.

    A method that did not get there has sent more than one that did; if FedDyn did not get there
    either, its lead cannot be told from those that also failed, nor from those that are close.
    """
    ours = sent["FedDyn"]
    failed = [sent[method].missed == len(sent[method].values) for method in beaten]
    leads = [
        math.inf if lost else sent[method].mean / ours.mean
        for method, lost in zip(beaten, failed, strict=True)
    ]
    least = min(leads, default=1.0)
    holds: bool | None = least >= CLOSE and not ours.missed
    if 1 / CLOSE < least < CLOSE or (ours.missed and all(failed)):
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


def _least(printed: int | str | None) -> int | None:
    """A count, or the bound that a text such as "1000+" gives."""
    return int(printed.rstrip("+")) if isinstance(printed, str) else printed


def _centralised(lab: Lab, baseline: Centralised) -> Number:
    """One client with all data, whose rounds are epochs."""
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
    """Accuracy against rounds, as in the paper's figures of convergence."""
    return Panel(
        row.where,
        "rounds",
        "test accuracy",
        [line(runs[method], method, REPORTED) for method in METHODS],
        marks=[(f"{100 * target:g} %", target) for target in row.sent],
        y_limits=(max(0.0, 2.5 * min(row.sent) - 1.5), 1.0) if min(row.sent) > 0.9 else None,
    )
