"""Plots of a `Description`: the clients' samples of each class, their sizes and label skew."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from undrift.data.description import (
    NAMED_CLIENTS,
    Description,
    Histogram,
    Labels,
    PlottedClients,
    describe,
)
from undrift.data.federated import FederatedData
from undrift.utils.files import written_whole
from undrift.utils.plot_style import COLOURS, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from undrift.utils.pictures import Picture

SHADES = ("#9ecae1", "#4292c6", "#084594")  # for 40, 60 and 80 per cent
TICK_POINTS = 7  # font size of the tick labels
POINTS_PER_INCH = 72
CACHED_PLOTS = 8
_cache: dict[tuple[str, str], bytes] = {}
"""The last plots by content and file type, because many runs use the same data."""


def plot_description(
    data: FederatedData | Description, path: str | Path | None = None
) -> Path | Picture:
    """Plot the samples of each class as bubbles, the sizes, and Figure 3 of FedDyn.

    A bubble's area is proportional to the number of samples. Of more than 40 clients an evenly
    spaced selection is shown. For data without classes only the sizes are plotted. Returns the
    path, or the figure if no path is given.
    """
    from undrift.utils.pictures import require_suffix

    if path is not None:
        path = require_suffix(path)
    found = data if isinstance(data, Description) else describe(data)
    if path is None:
        return draw(found)
    with written_whole(path) as partial:
        partial.write_bytes(_rendered(found, path.suffix))
    return path


def _rendered(found: Description, suffix: str) -> bytes:
    """The content of the plot's file, cached because drawing takes half a second."""
    key = (repr(asdict(found)), suffix)
    if key not in _cache:
        content = io.BytesIO()
        draw(found).savefig(content, format=suffix[1:], dpi=144)
        if len(_cache) == CACHED_PLOTS:
            del _cache[next(iter(_cache))]
        _cache[key] = content.getvalue()
    return _cache[key]


def draw(found: Description) -> Picture:
    """The plot as a figure, which callers may change."""
    from undrift.utils.pictures import Picture

    title = f"{shorten(found.name, 60, placeholder=' …')}: {_amount(found.clients, 'client')}, "
    title += _amount(found.samples["train"], "training sample")
    if found.labels is None:
        figure = Picture(figsize=(6.4, 3.6), layout="constrained")
        _draw_sizes(figure.subplots(), found)
    else:
        # A row per client and a column per class, within limits that fit on a page; in inches.
        width = min(7.6, max(3.4, 0.13 * len(found.plotted.classes)))
        height = min(6.4, max(3.8, 0.17 * len(found.plotted.ids)))
        figure = Picture(figsize=(width + 5.0, height + 1.2), layout="constrained")
        grid = figure.add_gridspec(2, 2, width_ratios=(width, 3.6))
        _draw_bubbles(figure, figure.add_subplot(grid[:, 0]), found, width, height)
        _draw_sizes(figure.add_subplot(grid[0, 1]), found)
        _draw_needed(figure.add_subplot(grid[1, 1]), found.labels)
    figure.suptitle(literal(title), fontsize=12)
    return figure


def _draw_bubbles(
    figure: Figure, axis: Axes, found: Description, width: float, height: float
) -> None:
    """Draw a row per client and a column per class; width and height are in inches."""
    plotted = found.plotted
    rows, columns = len(plotted.ids), len(plotted.classes)
    cell = min(width / columns, height / rows) * POINTS_PER_INCH
    most = max((max(row) for row in plotted.counts), default=0) or 1
    largest = (1.3 * min(max(cell, 6.0), 15.0)) ** 2  # area of the largest bubble, in square points
    held = [(c, k, n) for k, row in enumerate(plotted.counts) for c, n in enumerate(row) if n]
    axis.scatter(
        [c for c, _, _ in held],
        [k for _, k, _ in held],
        # Without a minimum, one sample among many thousands would be invisible.
        s=[max(largest * n / most, 1.5) for _, _, n in held],
        c=[COLOURS[c % len(COLOURS)] for c, _, _ in held],
        alpha=0.8,
        linewidths=0,
    )
    axis.set_xlim(-0.8, columns - 0.2)
    axis.set_ylim(rows - 0.3, -0.7)  # the first client at the top
    axis.set_xlabel("class", fontsize=9)
    axis.set_ylabel("client", fontsize=9)
    _label_ticks(axis, plotted, width, height)
    title = "samples of each class"
    if rows < found.clients:
        title = f"{rows} of {found.clients:,} clients, evenly spaced"
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_axisbelow(True)
    axis.grid(alpha=0.2, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    numbers = _round_numbers(most)
    labels = [f"{n:,}" for n in numbers]
    labels[-1] = _amount(numbers[-1], "sample")
    handles = [
        axis.scatter([], [], s=largest * n / most, color="#999999", linewidths=0) for n in numbers
    ]
    figure.legend(
        handles,
        labels,
        loc="outside lower left",
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        borderpad=0.8,
        handletextpad=0.8,
    )


def _label_ticks(axis: Axes, plotted: PlottedClients, width: float, height: float) -> None:
    """Label the ticks with classes and clients, as many as fit."""
    names = [_short(name, 14) for name in plotted.classes]
    room = width * POINTS_PER_INCH / len(names)
    longest = max(map(len, names))
    upright = 0.6 * TICK_POINTS * (longest + 1) > room
    step = math.ceil(1.25 * TICK_POINTS / room) if upright else 1
    if upright and longest <= 3:  # a few short labels are easier to read than all of them upright
        upright, step = False, math.ceil(0.6 * TICK_POINTS * (longest + 1) / room)
    ticks = range(0, len(names), step)
    axis.set_xticks(
        ticks,
        [literal(names[c]) for c in ticks],
        fontsize=TICK_POINTS,
        rotation=90 if upright else 0,
    )
    step = math.ceil(1.25 * TICK_POINTS * len(plotted.ids) / (height * POINTS_PER_INCH))
    rows = range(0, len(plotted.ids), step)
    labels = [literal(_short(plotted.ids[k], 14)) for k in rows]
    axis.set_yticks(rows, labels, fontsize=TICK_POINTS)
    axis.tick_params(length=2)


def _draw_sizes(axis: Axes, found: Description) -> None:
    """Draw the sizes: a bar per client if there are few clients, else a histogram."""
    axis.set_title("sizes", fontsize=10, loc="left")
    if found.clients > NAMED_CLIENTS:
        _draw_histogram(axis, found.histogram)
        return
    names = [shorten(id, 14, placeholder="…") for id in found.plotted.ids]
    axis.barh(range(len(names)), found.plotted.sizes, color=COLOURS[0])
    axis.set_yticks(range(len(names)), [literal(name) for name in names], fontsize=TICK_POINTS)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("training samples of a client", fontsize=9)


def _draw_histogram(axis: Axes, histogram: Histogram) -> None:
    """Draw how many clients have how many samples."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    edges = histogram.edges
    widths = [b - a for a, b in pairwise(edges)]
    axis.bar(
        edges[:-1],
        histogram.counts,
        widths,
        align="edge",
        color=COLOURS[0],
        edgecolor="white",
        linewidth=0.5,
    )
    if histogram.logarithmic:
        axis.set_xscale("log")
        decades = math.log10(edges[-1] / edges[0])
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
        axis.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,g}" if value >= 1 else "")
        )
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.xaxis.set_major_locator(
            MaxNLocator(nbins=6, integer=True, min_n_ticks=1, steps=(1, 2, 5, 10))
        )
    axis.set_xlim(edges[0], edges[-1])
    if len(widths) == 1:  # a single bar would fill the whole plot
        axis.set_xlim(edges[0] - 2, edges[-1] + 2)
        axis.set_xticks([(edges[0] + edges[-1]) / 2])
    axis.set_xlabel("training samples of a client", fontsize=9)
    _count_clients(axis)


def _draw_needed(axis: Axes, labels: Labels) -> None:
    """Draw how many clients need how many classes for 40, 60 and 80 % of their data."""
    from matplotlib.ticker import MaxNLocator

    groups, most = len(labels.needed), len(labels.needed["80"].clients)
    places = range(1, most + 1)
    for number, (percent, needed) in enumerate(labels.needed.items()):
        colour, name = SHADES[number % len(SHADES)], f"{percent} %"
        if most <= 15:
            width = 0.8 / groups
            shifted = [place + (number - (groups - 1) / 2) * width for place in places]
            axis.bar(shifted, needed.clients, width, color=colour, label=name)
        else:  # bars beside each other would be too thin
            edges = [place - 0.5 for place in (*places, most + 1)]
            axis.stairs(needed.clients, edges, fill=True, color=colour, alpha=0.3)
            axis.stairs(needed.clients, edges, color=colour, linewidth=1.6, label=name)
    axis.set_xlim(0.4, most + 0.6)
    axis.xaxis.set_major_locator(
        MaxNLocator(nbins=8, integer=True, min_n_ticks=1, steps=(1, 2, 5, 10))
    )
    axis.set_xlabel("classes that make up a share of a client's data", fontsize=9)
    axis.set_title("label skew", fontsize=10, loc="left")
    axis.legend(  # above the axes, where no bar can hide it
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0,
        ncols=groups,
        frameon=False,
        fontsize=8,
        columnspacing=1.2,
        handlelength=1.2,
    )
    _count_clients(axis)


def _count_clients(axis: Axes) -> None:
    """Format the y axis as numbers of clients."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.yaxis.set_major_locator(
        MaxNLocator(nbins=5, integer=True, min_n_ticks=1, steps=(1, 2, 5, 10))
    )
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_ylabel("clients", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.set_axisbelow(True)
    axis.grid(axis="y", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _amount(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _round_numbers(most: int) -> Sequence[int]:
    """Up to three round numbers that are at most `most`, for a legend."""
    power = 10 ** math.floor(math.log10(most))
    top = max(m * power for m in (1, 2, 5) if m * power <= most)
    return sorted({max(1, top // 10), max(1, top // 3 if top < 10 else top * 2 // 5), top})


def _short(name: str, most: int) -> str:
    """A name of at most `most` characters: a long one keeps its beginning and its end."""
    name = name if name.isprintable() and name.strip() else repr(name)
    if len(name) <= most:
        return name
    return f"{name[: most // 2 - 1]}…{name[most // 2 - most :]}"
