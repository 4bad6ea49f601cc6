"""Prints the findings of a reproduction in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.findings_page import VERDICTS
from undrift.reproduce.reproduction import PAPERS, Reproduction

STYLES = {True: "green", False: "red", None: "yellow"}


def listing(papers: dict[str, list[Reproduction]]) -> RenderableType:
    """Return the list of all reproductions, with what they show and cost."""
    parts: list[RenderableType] = [_columns("name", "shows", "a full run", header=True)]
    for paper, reproductions in papers.items():
        table = _columns()
        for each in reproductions:
            needs = f"; needs {', '.join(each.needs)}" if each.needs else ""
            table.add_row(each.name, each.shows, each.cost + needs)
        parts += [Text(PAPERS[paper], style="dim"), table, Text("")]
    return Group(*parts[:-1])


def _columns(*heads: str, header: bool = False) -> Table:
    """Return an empty table whose columns have the same widths for every paper."""
    table = Table(box=None, pad_edge=False, show_header=header, header_style="bold")
    for head, width in zip(heads or ("", "", ""), (21, 27, 28), strict=True):
        table.add_column(head, width=width)
    return table


def summary(reproduction: Reproduction, found: Findings) -> RenderableType:
    """Return the published next to the measured numbers, then the claims."""
    parts: list[RenderableType] = []
    if found.numbers:
        parts += [_numbers(found.numbers), Text("")]
    parts += [_claims(found.claims)]
    parts += [Text(f"Note: {note}") for note in found.notes]
    return Group(*parts)


def _numbers(numbers: Iterable[Number]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("where", max_width=28)
    table.add_column("what", max_width=20)
    for head in ("published", "measured"):
        table.add_column(head, justify="right", no_wrap=True)
    before = None
    for number in numbers:
        where = "" if number.where == before else number.where
        before = number.where
        table.add_row(escape(where), escape(number.what), number.printed(), number.shown())
    return table


def _claims(claims: Iterable[Claim]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(width=13)
    table.add_column()
    for claim in claims:
        verdict = Text(VERDICTS[claim.holds], style=STYLES[claim.holds])
        table.add_row(verdict, Text(claim.text))
        table.add_row("", Text(claim.evidence, style="dim"))
    return table
