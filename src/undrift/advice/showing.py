"""Render advice for the terminal, 80 columns wide, and for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undrift.utils.formatting import duration, short, size

if TYPE_CHECKING:
    from undrift.advice.advising import Advice
    from undrift.advice.candidates import Candidate

NOTHING = "–"
LEGEND = (
    "keeps: state of a client between rounds; all keep: state of all clients that take part in the "
    "run, which a simulation stores on disk; server: server state; gradients: of single samples."
)


def shown(advice: Advice) -> Group:
    """The whole advice for the terminal."""
    parts: list[RenderableType] = [_title(advice), Text("")]
    parts += [_head("What this means"), _points(advice.meaning), Text("")]
    compared = [each for each in advice.methods if each.left_out is None]
    if compared:
        parts += [_head("Suitable methods, cost per client and round"), _costs(compared)]
        parts += [Text(LEGEND, style="dim"), Text(""), _needs(compared), Text("")]
    parts += [_head("Recommended"), *_recommended(advice), Text("")]
    left = [(each.name, f"{each.left_out}.") for each in advice.methods if each.left_out]
    parts += [_head("Left out"), _hanging(left), Text("")]
    parts += [_head("What this cannot tell"), _points(advice.unknown)]
    return Group(*parts)


def _title(advice: Advice) -> Text:
    facts = advice.facts
    title = Text(facts.name, style="bold")
    title.append(
        f": {facts.clients:,} clients, {facts.samples:,} training samples, "
        f"{facts.parameters:,} parameters",
        style="not bold",
    )
    return title


def _head(text: str) -> Text:
    return Text(text, style="bold")


def _points(sentences: Iterable[str]) -> Table:
    return _hanging(("-", sentence) for sentence in sentences)


def _hanging(lines: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for word, sentence in lines:
        grid.add_row(Text(word), Text(sentence))
    return grid


def _cells(candidate: Candidate, clock: bool) -> list[str]:
    """The cells of a row of costs."""
    found = [
        size(candidate.down),
        size(candidate.up),
        size(candidate.kept) if candidate.kept else NOTHING,
        size(candidate.kept_in_all) if candidate.kept else NOTHING,
        size(candidate.server),
        short(candidate.gradients),
    ]
    if clock:
        found.append(NOTHING if candidate.seconds is None else duration(candidate.seconds))
    return found


def _columns(clock: bool) -> list[str]:
    return ["down", "up", "keeps", "all keep", "server", "gradients"] + ["a round"] * clock


def _costs(compared: list[Candidate]) -> Table:
    clock = any(each.seconds is not None for each in compared)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    table.add_column("method", no_wrap=True)
    for name in _columns(clock):
        table.add_column(name, justify="right", no_wrap=True)
    for each in compared:
        style = "bold" if each.recommended else ""
        table.add_row(Text(each.name, style=style), *_cells(each, clock))
    return table


def _needs(compared: list[Candidate]) -> Table:
    """The point that each method converges to, and its requirements."""
    return _hanging(
        (
            each.name,
            f"converges {each.ends_at}"
            + (f"; needs {', '.join(each.needs)}." if each.needs else "; needs nothing special."),
        )
        for each in compared
    )


def _recommended(advice: Advice) -> list[RenderableType]:
    if not advice.chosen:
        return [Text(f"Nothing: {advice.nothing()}.")]
    first, *others = advice.chosen
    parts: list[RenderableType] = [Text(repr(first.method), style="bold green")]
    parts += [_indented(f"Because {first.reason}.", *(f"{why}." for why in first.because))]
    for each in others:
        parts += [Text.assemble((repr(each.method), "bold green"), " to compare with")]
        parts += [_indented(*(f"{_capital(why)}." for why in (each.reason, *each.because)))]
    return parts


def _capital(text: str) -> str:
    """A text with a capital letter; one that begins with a parameter is not changed."""
    return text if " = " in text[:12] else text[:1].upper() + text[1:]


def _indented(*lines: str) -> Padding:
    return Padding(Text("\n".join(lines)), (0, 0, 0, 2))


def html(advice: Advice) -> str:
    """The advice for a notebook: sentences as lists, costs as a table."""
    facts = advice.facts
    compared = [each for each in advice.methods if each.left_out is None]
    clock = any(each.seconds is not None for each in compared)
    rows = "".join(
        "<tr>"
        + f"<th style='text-align:left'>{escape(each.name)}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(each, clock))
        + "</tr>"
        for each in compared
    )
    heads = "".join(f"<th>{escape(name)}</th>" for name in ["method", *_columns(clock)])
    named = ", ".join(f"<code>{escape(repr(each))}</code>" for each in advice.recommended)
    because = [why for each in advice.chosen for why in each.because]
    reasons = f"Because {advice.reason}." if advice.chosen else f"{_capital(advice.nothing())}."
    left = [f"{each.name}: {each.left_out}." for each in advice.methods if each.left_out]
    return (
        f"<p><b>{escape(facts.name)}</b>: {facts.clients:,} clients, {facts.samples:,} training "
        f"samples, {facts.parameters:,} parameters</p>"
        f"<p><b>Recommended:</b> {named or 'nothing'}. {escape(reasons)}</p>{_list(because)}"
        f"<p><b>What this means</b></p>{_list(advice.meaning)}"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f"<details><summary>Left out</summary>{_list(left)}</details>"
        f"<details><summary>What this cannot tell</summary>{_list(advice.unknown)}</details>"
    )


def _list(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(each)}</li>" for each in sentences)
    return f"<ul>{items}</ul>" if items else ""
