"""The verification table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from undrift.utils.threads import one_thread
from undrift.verify.facts import FACTS, RUNS, Fact, check_fact
from undrift.verify.runs import Finding
from undrift.verify.subjects import Subject

PER_TABLE = 6
"""How many facts fit beside a method's name in 80 columns."""


@dataclass(frozen=True)
class Outcome:
    """A fact about a method, and whether it holds."""

    method: str
    fact: Fact
    finding: Finding | None
    """None where the fact says nothing about the method"""

    @property
    def holds(self) -> bool:
        """Whether the error is within what is allowed."""
        return self.finding is None or self.finding.error <= self.fact.allowed


def verify(subjects: Iterable[Subject], facts: Sequence[Fact] = FACTS) -> Iterator[Outcome]:
    """Measure every fact about every subject, one after another."""
    for subject in subjects:
        with one_thread():
            broken = breakdown(subject)
        for fact in facts:
            with one_thread():
                finding = check_fact(fact, subject) if broken is None else None
            yield Outcome(subject.label, fact, finding)
        if broken is not None:
            yield Outcome(subject.label, RUNS, broken)


def tables(outcomes: Sequence[Outcome], facts: Sequence[Fact] = FACTS) -> list[Table]:
    """Methods × facts: the measured error in each cell, the allowed one under each name."""
    found = {(o.method, o.fact.name): o for o in outcomes}
    methods = list(dict.fromkeys(o.method for o in outcomes))
    made = []
    for first in range(0, len(facts), PER_TABLE):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("method", no_wrap=True, width=14)
        part = facts[first : first + PER_TABLE]
        for fact in part:
            allowed = f"≤{fact.allowed:.0e}" if fact.allowed else "= 0"
            table.add_column(f"{fact.name}\n{allowed}", justify="right", no_wrap=True, width=9)
        for method in methods:
            table.add_row(method, *(_cell(found[method, fact.name]) for fact in part))
        made.append(table)
    return made


def breakdown(subject: Subject) -> Finding | None:
    """What goes wrong in a first round, if the method's own code cannot do one."""
    found = check_fact(RUNS, subject)
    return found if found is not None and found.error else None


def _cell(outcome: Outcome) -> Text:
    if outcome.finding is None:
        return Text("·", style="dim")
    error = outcome.finding.error
    shown = "inf" if math.isinf(error) else f"{error:.0e}" if error else "0"
    if outcome.holds:
        return Text(shown, style="green")
    return Text(f"✗ {shown}", style="bold red")


def explanations(outcomes: Iterable[Outcome]) -> list[str]:
    """One line for each fact that does not hold."""
    lines = []
    lost: set[str] = set()  # methods that do not end where they should even in the plainest case
    for outcome in outcomes:
        if outcome.holds or outcome.finding is None:
            continue
        fact, finding = outcome.fact, outcome.finding
        if fact.name == "limit":
            lost.add(outcome.method)
        elif fact.name in ("partial", "momentum", "ragged") and outcome.method in lost:
            lines.append(f"{outcome.method}, {fact.name}: fails too, as limit does.")
            continue
        where = f" ({finding.note})" if finding.note else ""
        if fact is RUNS:
            lines.append(f"{outcome.method} breaks down: {finding.note.rstrip('.')}.")
            continue
        lines.append(
            f"{outcome.method}, {fact.name}: {fact.meaning[:-1]}, but the error is "
            f"{finding.error:.1e} instead of at most {fact.allowed:g}{where}; {fact.failed}."
        )
    return lines


def as_json(outcomes: Iterable[Outcome]) -> str:
    """A list of {method, fact, expected, measured, error, holds}."""
    rows = [
        {
            "method": outcome.method,
            "fact": outcome.fact.name,
            "expected": outcome.finding.expected,
            "measured": outcome.finding.measured,
            "error": outcome.finding.error if math.isfinite(outcome.finding.error) else None,
            "holds": outcome.holds,
        }
        for outcome in outcomes
        if outcome.finding is not None
    ]
    return json.dumps(_finite(rows), indent=2)


def _finite(value: object) -> object:
    """The same with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
