"""Draws the figure of a reproduction: panels of lines, laid out like the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from undrift.utils.files import written_whole
from undrift.utils.plot_style import COLOURS

WIDTH_INCHES, HEIGHT_INCHES = 4.6, 3.5
"""The size of a panel."""
MAX_COLUMNS = 3
"""Panels side by side."""


@dataclass(frozen=True)
class Line:
    """One line of a panel; `low` and `high` are the range over seeds."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: str = "-"
    """format string of matplotlib; "o" for points"""


@dataclass(frozen=True)
class Panel:
    """One panel; a label has the same colour in every panel."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    marks: Sequence[tuple[str, float]] = ()
    """horizontal lines (label, value), such as a target"""
    y_limits: tuple[float, float] | None = None


def draw(panels: Sequence[Panel], path: Path) -> Path:
    """Draw the panels of a figure to a file and return its path."""
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else min(MAX_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = WIDTH_INCHES * columns, HEIGHT_INCHES * rows + 0.5
    figure = Figure(figsize=size, layout="constrained")
    axes = list(chain.from_iterable(figure.subplots(rows, columns, squeeze=False)))
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    colours = {label: COLOURS[number % len(COLOURS)] for number, label in enumerate(labels)}
    handles = {}
    for axis, panel in zip(axes, panels, strict=False):
        for number, line in enumerate(panel.lines):
            colour = colours[line.label]
            (handles[line.label],) = axis.plot(
                line.x,
                line.y,
                line.style,
                color=colour,
                linewidth=2.4
                - 1.2 * number / max(1, len(panel.lines) - 1),  # lines below stay visible
                markersize=4,
            )
            if line.low:
                axis.fill_between(
                    line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0
                )
        for word, value in panel.marks:
            axis.axhline(value, color="#777777", linewidth=0.8, linestyle=":")
            axis.annotate(
                word,
                (0, value),
                xytext=(2, 2),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                fontsize=7,
                color="#555555",
            )
        axis.set(xlabel=panel.x, ylabel=panel.y)
        axis.set_title(panel.title, fontsize=10)
        if panel.log_x:
            axis.set_xscale("log")
        if panel.log_y:
            axis.set_yscale("log")
        if panel.y_limits is not None:
            axis.set_ylim(*panel.y_limits)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=min(len(handles), 3 * columns, _legend_columns(handles, WIDTH_INCHES * columns)),
        frameon=False,
        fontsize=8,
    )
    with written_whole(path) as partial:
        figure.savefig(partial, dpi=110 if len(panels) <= 2 * MAX_COLUMNS else 80)
    return path


def _legend_columns(labels: Iterable[str], width: float) -> int:
    """Return the number of legend columns that fit into `width` inches."""
    longest = max(map(len, labels), default=1)
    return max(1, int(width / (0.07 * longest + 0.5)))
