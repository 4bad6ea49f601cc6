"""Draws the figure of a reproduction: panels of lines, laid out like the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from undrift.report.seed_curves import band_title, mean_and_band
from undrift.utils.files import written_whole
from undrift.utils.plot_style import draw_curve, format_axes, literal, use_log_axis

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

WIDTH_INCHES, HEIGHT_INCHES = 4.6, 3.5
"""The size of a panel."""
MAX_COLUMNS = 3
"""Panels side by side."""


@dataclass(frozen=True)
class Line:
    """One line of a panel; `low` and `high` are the mean ∓ standard deviation over seeds."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    seeds: int = 1
    """how many seeds the mean is over"""
    marker: str = ""
    """mark of every value, such as "o"; by default none"""
    dash: str = ""
    """line style of matplotlib; by default that of the label's number"""


def line_over_seeds(
    label: str,
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    marker: str = "",
    dash: str = "",
) -> Line:
    """Return the line of the mean over seeds with its band, from the values of the seeds at each x.

    One seed has no band.
    """
    mean, low, high = mean_and_band(values)
    seeds = max(map(len, values), default=1)
    if seeds == 1:
        low, high = [], []
    return Line(label, x, mean, low, high, seeds, marker, dash)


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
    handles: dict[str, Line2D] = {}
    for axis, panel in zip(axes, panels, strict=False):
        for line in panel.lines:
            low = line.low
            if panel.log_y:  # a logarithmic scale cannot show a band below zero
                low = [at if at > 0 else y for at, y in zip(low, line.y, strict=False)]
            handle = draw_curve(
                axis,
                labels.index(line.label),
                line.x,
                line.y,
                low,
                line.high,
                marker=line.marker,
                markersize=4,
                linewidth=1.6,
                **({"linestyle": line.dash} if line.dash else {}),
            )
            handles.setdefault(line.label, handle)
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
        axis.set_title(panel.title, fontsize=10)
        if panel.log_x:
            axis.set_xscale("log")
        if panel.log_y:
            use_log_axis(axis)
        if panel.y_limits is not None:
            axis.set_ylim(*panel.y_limits)
        format_axes(axis, panel.x, panel.y, 9)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.legend(
        handles.values(),
        [literal(label) for label in handles],
        title=band_title(line.seeds for panel in panels for line in panel.lines if line.low),
        title_fontsize=8,
        handlelength=2.6,
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
