"""Draws which client worked when, on the virtual clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from undrift.core.records import Record, Span
from undrift.utils.errors import require
from undrift.utils.formatting import time_unit
from undrift.utils.plot_style import literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from undrift.utils.pictures import Picture

MAX_CLIENTS = 40
"""Clients in one figure."""
MAX_NUMBERED_ROUNDS = 14
"""Rounds with a number above the figure."""
MAX_LINES = 150
"""Rounds with a line at their end."""
PHASES = {"reading the model": "#9ecae1", "computing": "#4292c6", "sending": "#084594"}
UNUSED = "not used"
PALE, RED = "#fde0d2", "#c0271d"
GREY = "#555555"
VIRTUAL_TIME = "virtual time"


def plot_timeline(records: Sequence[Record], path: str | Path | None, label: str) -> Path | Picture:
    """Draw a timeline to a .png, .svg or .pdf file; without a path return the figure."""
    from undrift.utils.pictures import require_suffix, write

    if path is not None:
        require_suffix(path)
    require(
        any(record.virtual_seconds for record in records),
        f"{label} has no timeline because it ran without a virtual clock: give it devices.",
    )
    require(
        any(record.spans for record in records),
        f"{label} has no timeline because no client worked in its first rounds.",
    )
    figure = timeline_figure(records, label)
    return figure if path is None else write(figure, path)


def timeline_figure(
    records: Sequence[Record], title: str = "", clock: str = VIRTUAL_TIME
) -> Picture:
    """Return the timeline as a figure; `clock` names its time."""
    from undrift.utils.pictures import Picture

    rows = len(shown_clients(records)[0])
    figure = Picture(figsize=(7.6, 1.5 + 0.15 * max(rows, 4)), layout="constrained")
    draw_timeline(figure.subplots(), records, title, clock=clock)
    return figure


def shown_clients(records: Sequence[Record], most: int = MAX_CLIENTS) -> tuple[list[Hashable], int]:
    """Return the busiest clients in the order of their ids, and how many clients worked."""
    busy: dict[Hashable, float] = defaultdict(float)
    for span in _spans(records):
        busy[span.client] += span.end - span.start
    ordered = sorted(busy, key=_roster_order)
    kept = sorted(ordered, key=lambda client: -busy[client])[:most]
    return sorted(kept, key=_roster_order), len(busy)


def draw_timeline(
    axes: Axes,
    records: Sequence[Record],
    title: str = "",
    most: int = MAX_CLIENTS,
    clock: str = VIRTUAL_TIME,
) -> None:
    """Draw a row per client: its reading, computing and sending, and work that was not used.

    Thin lines mark the ends of rounds. Of more than `most` clients the busiest are drawn.
    """
    from matplotlib.ticker import MaxNLocator

    clients, at_work = shown_clients(records, most)
    place = {client: row for row, client in enumerate(clients)}
    spans = [span for span in _spans(records) if span.client in place]
    end = max((span.end for span in _spans(records)), default=0.0)
    divisor, unit = time_unit(end)
    for number, (phase, colour) in enumerate(PHASES.items()):
        used = [span for span in spans if span.outcome == "replied"]
        bars = [(place[span.client], *_phases(span)[number]) for span in used]
        _draw_bars(axes, bars, divisor, phase, facecolor=colour)
    lost = [(place[s.client], s.start, s.end) for s in spans if s.outcome != "replied"]
    style = {"facecolor": PALE, "edgecolor": RED, "hatch": "//////", "linewidth": 0.5}
    _draw_bars(axes, lost, divisor, UNUSED, **style)
    axes.set_xlim(0, end / divisor or 1)
    axes.set_ylim(len(clients) - 0.35, -0.65)  # the first client is on top
    axes.set_yticks(range(len(clients)), [_name(client) for client in clients], fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=(1, 2, 5, 10)))
    axes.set_xlabel(f"{clock}, {unit}", fontsize=9)
    few = f"the busiest {len(clients)} of {at_work:,} clients" if at_work > len(clients) else ""
    axes.set_ylabel(few or "client", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for row in range(0, len(clients), 2):  # stripes guide the eye to the client's name
        axes.axhspan(row - 0.5, row + 0.5, color="#f3f4f6", linewidth=0, zorder=0)
    _mark_rounds(axes, [r for r in records if r.round and r.virtual_seconds <= end], divisor)
    _add_legend(axes, title, lost=bool(lost))


def _add_legend(axes: Axes, title: str, lost: bool) -> None:
    """Put the legend below the time axis, and the title above the rounds."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=phase) for phase, colour in PHASES.items()]
    if lost:
        # The boxes of the legend are small: a sparser hatch.
        style = {"facecolor": PALE, "edgecolor": RED, "hatch": "/////", "linewidth": 0.5}
        handles.append(Patch(label=UNUSED, **style))  # type: ignore[arg-type]
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        handlelength=1.6,
        columnspacing=1.6,
    )
    if title:
        axes.set_title(literal(title), fontsize=10, loc="left")


def _mark_rounds(axes: Axes, records: Sequence[Record], divisor: float) -> None:
    """Draw thin lines at the ends of rounds, some of them with the number of the round."""
    step = -(-len(records) // MAX_LINES) or 1
    lined = [record.virtual_seconds / divisor for record in records[step - 1 :: step]]
    axes.vlines(
        lined, 0, 1, color=GREY, linewidth=0.6, transform=axes.get_xaxis_transform(), zorder=3
    )
    step = -(-len(records) // MAX_NUMBERED_ROUNDS) or 1
    numbered = records[step - 1 :: step]
    # Labels of rounds that ended at nearly the same time would overlap: only the last is drawn.
    width = axes.get_xlim()[1] / 22
    kept: list[Record] = []
    for record in numbered:
        if kept and (record.virtual_seconds - kept[-1].virtual_seconds) / divisor < width:
            kept.pop()
        kept.append(record)
    above = axes.secondary_xaxis("top")
    above.set_xticks([r.virtual_seconds / divisor for r in kept], [str(r.round) for r in kept])
    above.tick_params(labelsize=7, length=2, pad=1, color=GREY, labelcolor=GREY)
    above.set_xlabel("end of round", fontsize=8, color=GREY)
    above.spines["top"].set_visible(False)


def _draw_bars(
    axes: Axes,
    bars: Sequence[tuple[int, float, float]],
    divisor: float,
    label: str,
    **style: object,
) -> None:
    """Draw bars of (row, from, to) as one collection, which is faster than single patches."""
    from matplotlib.collections import PolyCollection

    half = 0.36
    corners = [
        [(a, row - half), (b, row - half), (b, row + half), (a, row + half)]
        for row, first, last in bars
        if last > first
        for a, b in [(first / divisor, last / divisor)]
    ]
    style = {"linewidth": 0, **style}
    axes.add_collection(PolyCollection(corners, label=label, zorder=2, **style))  # type: ignore[arg-type]


def _phases(span: Span) -> list[tuple[float, float]]:
    """Return start and end of reading, computing and sending, cut off at the end of the span."""
    edges = [min(at, span.end) for at in (span.start, span.computing, span.sending, span.end)]
    return list(pairwise(edges))


def _spans(records: Sequence[Record]) -> list[Span]:
    return [span for record in records for span in record.spans]


def _roster_order(client: Hashable) -> tuple[str, Hashable]:
    """Sort as a roster does: numbers by size, text alphabetically."""
    return type(client).__name__, client


def _name(client: Hashable) -> str:
    name = str(client)
    name = name if name.isprintable() and name.strip() else repr(name)
    return literal(name if len(name) <= 14 else f"{name[:6]}…{name[-7:]}")
