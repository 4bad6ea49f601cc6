"""`undrift verify`: checks facts about methods and shows the verdicts as tables, lines or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from undrift.utils.threads import one_thread
from undrift.verify.facts import FACTS, RUNS, Fact, check_fact
from undrift.verify.runs import RAISED, Finding
from undrift.verify.subjects import Subject

FACTS_PER_TABLE = 6
"""The number of facts that fit beside a method's name in 80 columns."""


@dataclass(frozen=True)
class Verdict:
    """Whether a fact holds for a method."""

    method: str
    fact: Fact
    finding: Finding | None
    """the measurement; None if the fact does not apply to the method"""

    @property
    def holds(self) -> bool:
        """Whether the error is at most the allowed one, or the fact does not apply."""
        return self.finding is None or self.finding.error <= self.fact.allowed


def verify(subjects: Iterable[Any], facts: Sequence[Fact] = FACTS) -> Iterator[Verdict]:
    """Measure every fact for every subject, one verdict at a time; see `Subject`.

    A method that fails in its first round gets that as one more verdict, the fact `RUNS`.
    """
    for subject in subjects:
        with one_thread():
            broken = first_round_error(subject) if isinstance(subject, Subject) else None
        for fact in facts:
            with one_thread():
                finding = check_fact(fact, subject) if broken is None else None
            yield Verdict(subject.label, fact, finding)
        if broken is not None:
            yield Verdict(subject.label, RUNS, broken)


def tables(verdicts: Sequence[Verdict], facts: Sequence[Fact] = FACTS) -> list[Table]:
    """Methods × facts: the measured error in each cell, the allowed one under each name."""
    found = {(v.method, v.fact.name): v for v in verdicts}
    methods = list(dict.fromkeys(v.method for v in verdicts))
    made = []
    for first in range(0, len(facts), FACTS_PER_TABLE):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("method", no_wrap=True, width=14)
        part = facts[first : first + FACTS_PER_TABLE]
        for fact in part:
            allowed = f"≤{fact.allowed:.0e}" if fact.allowed else "= 0"
            table.add_column(f"{fact.name}\n{allowed}", justify="right", no_wrap=True, width=9)
        for method in methods:
            table.add_row(method, *(_cell(found[method, fact.name]) for fact in part))
        made.append(table)
    return made


def first_round_error(subject: Subject) -> Finding | None:
    """The error of a method whose own code fails in its first round, else None."""
    found = check_fact(RUNS, subject)
    return found if found is not None and found.error else None


def _cell(verdict: Verdict) -> Text:
    if verdict.finding is None:
        return Text("·", style="dim")
    error = verdict.finding.error
    shown = "inf" if math.isinf(error) else f"{error:.0e}" if error else "0"
    if verdict.holds:
        return Text(shown, style="green")
    return Text(f"✗ {shown}", style="bold red")


def explanations(verdicts: Iterable[Verdict]) -> list[str]:
    """One sentence for each fact that does not hold."""
    lines = []
    # A method that misses its limit fails the harder forms of that fact too: explain it once.
    misses_limit: set[str] = set()
    for verdict in verdicts:
        if verdict.holds or verdict.finding is None:
            continue
        fact, finding = verdict.fact, verdict.finding
        if fact.name == "limit":
            misses_limit.add(verdict.method)
        elif (
            fact.name in ("partial", "momentum", "clipped", "ragged")
            and verdict.method in misses_limit
        ):
            lines.append(f"{verdict.method}, {fact.name}: fails too, as limit does.")
            continue
        note = finding.note.rstrip(".")
        where = f" ({note})" if note else ""
        if fact.name == RUNS.name:
            lines.append(f"{verdict.method} breaks down: {note}.")
            continue
        if finding.measured == RAISED:  # the likely cause of a wrong number does not explain it
            lines.append(
                f"{verdict.method}, {fact.name}: {fact.meaning[:-1]}, but measuring it failed: "
                f"{note}."
            )
            continue
        lines.append(
            f"{verdict.method}, {fact.name}: {fact.meaning[:-1]}, but the error is "
            f"{finding.error:.1e} instead of at most {fact.allowed:g}{where}; {fact.failed}."
        )
    return lines


def remarks(verdicts: Iterable[Verdict]) -> list[str]:
    """One sentence for each finding that deserves a look although its fact holds."""
    return [
        f"{verdict.method}, {verdict.fact.name}: {verdict.finding.remark}; if that is meant, "
        f"declare it in `idle`, and if it should act, in `acting`."
        for verdict in verdicts
        if verdict.finding is not None and verdict.finding.remark
    ]


def as_json(verdicts: Iterable[Verdict]) -> str:
    """A list of {method, fact, expected, measured, error, holds}."""
    rows = [
        {
            "method": verdict.method,
            "fact": verdict.fact.name,
            "expected": verdict.finding.expected,
            "measured": verdict.finding.measured,
            "error": verdict.finding.error if math.isfinite(verdict.finding.error) else None,
            "holds": verdict.holds,
        }
        for verdict in verdicts
        if verdict.finding is not None
    ]
    return json.dumps(_finite(rows), indent=2)


def _finite(value: object) -> object:
    """The value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
