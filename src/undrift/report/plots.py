"""Plots of metrics against rounds or costs, with the spread over seeds, for `Result.plot`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from undrift.core.targets import RISING
from undrift.report.seed_curves import (
    align_seeds,
    band_title,
    cumulative_costs,
    mean_and_band,
)
from undrift.utils.errors import require, require_choice, require_range
from undrift.utils.formatting import time_unit
from undrift.utils.plot_style import draw_curve, format_axes, literal, use_log_axis

if TYPE_CHECKING:
    from undrift.report.result import Result
    from undrift.utils.pictures import Picture

LOSSES = ("objective", "test_loss", "validation_loss")
"""The first of these that was measured is drawn by default."""
AGAINST = {
    "rounds": "rounds",
    "bytes": "MB sent",
    "gradients": "gradient evaluations",
    "virtual_seconds": "virtual time",
}
"""What metrics can be drawn against, with the label of the axis."""
WIDTHS_INCHES = {"column": 3.25, "page": 6.75}
"""Widths of figures in a paper, in inches."""


def plot_histories(
    results: Sequence[Result],
    path: str | Path | None = None,
    metrics: Sequence[str] | None = None,
    against: str = "rounds",
    width: str | float | None = None,
) -> Path | Picture:
    """Draw metrics, one line per method; losses on a logarithmic scale.

    Runs with the same label are seeds: the line is their mean, the band their standard deviation.

    Parameters
    ----------
    path
        a .png, .svg or .pdf file to write; without a path the figure is returned
    metrics
        which metrics to draw; by default a loss, and an accuracy or an error
    against
        "rounds", "bytes", "gradients" or "virtual_seconds"
    width
        size for a paper: "column" (3.25 inches), "page" (6.75 inches) or a number of inches; the
        text is then small and the legend below the panels
    """
    from undrift.utils.pictures import require_suffix, write

    if path is not None:
        require_suffix(path)
    require_choice("What to plot against", against, AGAINST)
    found = [name for result in results for r in result.records for name in r.metrics]
    metrics = [metrics] if isinstance(metrics, str) else metrics
    metrics = _default_metrics(found) if metrics is None else metrics
    require(len(metrics) > 0, "The runs have no metric to plot: no round was evaluated.")
    for metric in metrics:
        require_choice("A metric to plot", metric, dict.fromkeys(found))
    figure = _figure(results, metrics, against, width)
    return figure if path is None else write(figure, path, dpi=144 if width is None else 300)


def _default_metrics(found: Sequence[str]) -> list[str]:
    """Return the default metrics: a loss, and an accuracy or an error of the test part."""
    others = [m for m in found if m.startswith("test_") and m != "test_loss"]
    second = [*others, *(m for m in found if m == "gradient_norm")]
    first = [m for m in LOSSES if m in found]
    return list(dict.fromkeys([*first[:1], *second[:1]])) or list(found[:1])


def _figure(
    results: Sequence[Result], metrics: Sequence[str], against: str, width: str | float | None
) -> Picture:
    from matplotlib.ticker import MaxNLocator

    from undrift.utils.pictures import Picture

    several: dict[str, list[Result]] = {}
    for result in results:
        several.setdefault(result.label, []).append(result)
    wide = _inches(width)
    letters = 11.0 if wide is None else 8.0
    columns = max(1, min(len(several), int((wide or 0) / 1.15)))
    rows = -(-len(several) // columns)
    if wide is None:
        size = 5.2 * len(metrics) + 1.6, 4.2
    else:
        size = wide, 0.78 * wide / len(metrics) + 0.17 * (rows + 1)
    figure = Picture(figsize=size, layout="constrained")
    divisor, axis = _axis(results, against)
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        values: list[float] = []
        for number, (label, own) in enumerate(several.items()):
            x, mean, low, high = over_seeds(own, metric, against)
            values += mean
            x = [at / divisor for at in x]
            if lower_is_better(metric):  # a log axis cannot show a band below zero
                low = [at if at > 0 else m for at, m in zip(low, mean, strict=True)]
            band = (low, high) if len(own) > 1 else ()
            thick = 2.0 if wide is None else 1.2
            draw_curve(panel, number, x, mean, *band, label=literal(label), linewidth=thick)
        finite = [value for value in values if math.isfinite(value)]
        if lower_is_better(metric) and finite and min(finite) > 0:
            use_log_axis(panel)
        format_axes(panel, axis, metric.replace("_", " "), letters)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=against == "rounds"))
    handles, labels = panels[0].get_legend_handles_labels()
    bands = band_title(map(len, several.values()))
    if wide is None or len(labels) > 1 or bands:
        figure.legend(
            handles,
            labels,
            title=bands,
            title_fontsize=letters - (2 if wide is None else 0),
            loc="outside right center" if wide is None else "outside lower center",
            ncols=1 if wide is None else columns,
            frameon=False,
            fontsize=letters - (2 if wide is None else 0),
            handlelength=2.6 if wide is None else 2.2,
        )
    return figure


def over_seeds(
    results: Sequence[Result], metric: str, against: str = "rounds"
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return x, mean, mean − std and mean + std of a metric, where all seeds measured it."""
    seeds = [(r.records, cumulative_costs(r.records)[against]) for r in results]
    x, values = align_seeds(seeds, metric)
    return x, *mean_and_band(values)


def _axis(results: Sequence[Result], against: str) -> tuple[float, str]:
    """Return the divisor of the x axis and its label with the unit."""
    if against == "bytes":
        return 1e6, AGAINST[against]
    if against != "virtual_seconds":
        return 1.0, AGAINST[against]
    ends = [result.records[-1].virtual_seconds for result in results if result.records]
    require(any(ends), "There is no virtual time to plot against: the runs had no devices.")
    divisor, unit = time_unit(max(ends))
    return divisor, f"{AGAINST[against]}, {unit}"


def lower_is_better(metric: str) -> bool:
    """Whether a metric is a loss or an error, which falls and suits a logarithmic scale.

    Accuracies, AUC, F1 and Dice rise, and so does r², which may be negative and ends at one.
    """
    name = metric.rpartition("/")[2]
    rising = not {*name.split("_")}.isdisjoint(RISING)
    return "accuracy" not in name and not rising and not name.endswith(("_r2", "r²"))


def _inches(width: str | float | None) -> float | None:
    if isinstance(width, str):
        require_choice("The width of a picture", width, WIDTHS_INCHES)
        return WIDTHS_INCHES[width]
    if width is not None:
        require_range("The width of a picture", width, at_least=1, at_most=40)
    return width
