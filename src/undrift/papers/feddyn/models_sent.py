"""FedDyn's tables of models sent: how many rounds of FedAvg's traffic until a test accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undrift.papers.curves import cost, line
from undrift.papers.figure import Panel
from undrift.papers.findings import Claim, Findings, Number
from undrift.papers.lab import Lab
from undrift.report.reading import Runs
from undrift.report.tables import Over

METHODS = ("FedDyn", "SCAFFOLD", "FedAvg", "FedProx")
REPORTED = "all/test_accuracy"
"""Of the mean of all clients' last models, which is what the paper's curves and tables show."""


@dataclass(frozen=True)
class Row:
    """A setting of the tables.

    Parameters
    ----------
    where
        its name
    sent
        by target accuracy, the models sent by each of `METHODS`; text such as "1000+" where a
        method did not get there
    settings
        the keys of the experiment file that make it
    """

    where: str
    sent: Mapping[float, Sequence[int | str]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> float:
        """The higher of its targets, at which runs stop."""
        return max(self.sent)


def reproduce_rows(lab: Lab, rows: Sequence[Row], quick: Row) -> Findings:
    """Run the settings of a table, and see who sends how much until each target.

    Parameters
    ----------
    quick
        the one row of the quick version, with targets of its own
    """
    numbers: list[Number] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    for row in (quick,) if lab.quick else [row for row in rows if row.where in lab.parts]:
        runs = lab.run(row.where, {**row.settings, "target": {REPORTED: row.target}})
        for target, published in row.sent.items():
            where = f"{row.where}, {100 * target:g} %"
            sent = {method: cost(runs, method, REPORTED, target, "models") for method in METHODS}
            numbers += [
                Number(where, method, None if lab.quick else printed, sent[method])
                for method, printed in zip(METHODS, published, strict=True)
            ]
            claims.append(_fewest(where, sent, published))
        panels.append(_panel(row, runs))
    return Findings(numbers, claims, panels)


def _fewest(where: str, sent: Mapping[str, Over], published: Sequence[int | str]) -> Claim:
    """That FedDyn needs the fewest models, against the methods for which the paper says so."""
    ours = sent["FedDyn"]
    beaten = [
        method
        for method, printed in zip(METHODS[1:], published[1:], strict=True)
        if not isinstance(printed, int) or printed > int(published[0])
    ]
    shown = ", ".join(
        f"{method} {'> ' if over.missed else ''}{over.mean:.0f}" for method, over in sent.items()
    )
    holds = not ours.missed and all(ours.mean < sent[method].mean for method in beaten)
    return Claim(
        f"{where}: FedDyn sends fewer models than {' and '.join(beaten)}.",
        None if ours.missed and all(sent[method].missed for method in beaten) else holds,
        shown,
    )


def _panel(row: Row, runs: Runs) -> Panel:
    """Accuracy against rounds, as in the paper's figures of convergence."""
    return Panel(
        row.where,
        "rounds",
        "test accuracy",
        [line(runs, method, REPORTED) for method in METHODS],
        marks=[(f"{100 * target:g} %", target) for target in row.sent],
        y_limits=(max(0.0, 2.5 * min(row.sent) - 1.5), 1.0) if min(row.sent) > 0.9 else None,
    )
