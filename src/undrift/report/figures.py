"""Writes the charts of a report as figures for a paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from undrift.report.csv_files import ensure_folder
from undrift.report.naming import DIAGNOSTICS, LOG_ZERO, main_metrics, metric_label, uses_log_scale
from undrift.report.recorded_runs import MethodRuns, Runs, as_runs
from undrift.report.reply_counts import count_replies
from undrift.report.seed_curves import align_seeds, band_title, mean_and_band
from undrift.report.timeline import timeline_figure
from undrift.utils.errors import require_choice
from undrift.utils.files import slug, written_whole
from undrift.utils.formatting import time_unit
from undrift.utils.plot_style import (
    COLOURS,
    draw_curve,
    format_axes,
    literal,
    reproducible_svg,
    use_log_axis,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("svg", "png", "pdf")


def write_figures(
    folders: Sequence[str | Path] | str | Path | Runs,
    out_dir: str | Path,
    metrics: Sequence[str] | None = None,
    kinds: Sequence[str] = KINDS,
) -> list[Path]:
    """Write a figure per metric and axis, and those of diagnostics, participation and timelines.

    Parameters
    ----------
    metrics
        which metrics to draw; by default an accuracy and a loss
    kinds
        file formats: "svg", "png", "pdf"
    """
    runs = as_runs(folders)
    for metric in metrics or ():
        require_choice("A metric to draw", metric, runs.metrics)
    for kind in kinds:
        require_choice("The kind of a figure", kind, KINDS)
    out_dir = ensure_folder(out_dir)
    figures: dict[str, Figure] = {}
    for metric in main_metrics(runs) if metrics is None else metrics:
        for axis in runs.costs:
            name = f"{metric.replace('/', '-')}-{axis.replace('_', '-')}"
            figures[name] = _panels(runs, [metric], axis)
    if runs.diagnostics:
        known = [name for name in DIAGNOSTICS if name in runs.diagnostics]
        own = [name for name in runs.diagnostics if name not in known]
        figures["diagnostics"] = _panels(runs, [*known, *own], "rounds")
    figures["participation"] = _participation(runs)
    for number, group in enumerate(runs.groups):
        records = group.timeline
        if records:
            name = f"timeline-{slug(group.label)}"
            name = f"{name}-{number + 1}" if name in figures else name
            figures[name] = timeline_figure(records, group.label, runs.costs["virtual_seconds"])
    paths = []
    with reproducible_svg():
        for name, figure in figures.items():
            for kind in kinds:
                path = out_dir / f"{name}.{kind}"
                dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
                with written_whole(path) as partial:
                    figure.savefig(partial, dpi=200, metadata=dated.get(kind))
                paths.append(path)
    return paths


def curve(
    group: MethodRuns, name: str, axis: str
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return x, mean, mean − std and mean + std over seeds, in rounds that all seeds measured."""
    seeds = [(run.records, group.totals(run)[axis]) for run in group.runs if run.records]
    x, values = align_seeds(seeds, name)
    return x, *mean_and_band(values)


def _panels(runs: Runs, names: Sequence[str], axis: str) -> Figure:
    """Draw one panel per metric or diagnostic, with a common legend."""
    from matplotlib.figure import Figure

    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    wide, high = (4.6, 3.4) if len(names) == 1 else (3.6, 2.7)
    figure = Figure(figsize=(wide * columns + 1.5, high * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    handles: dict[str, Artist] = {}
    for panel, name in zip(panels, names, strict=False):
        _draw(panel, runs, name, axis)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    bands = band_title(sum(1 for run in group.runs if run.records) for group in runs.groups)
    if len(runs.groups) > 1 or bands:
        figure.legend(
            list(handles.values()),
            list(handles),
            title=bands and bands.replace(" of ", "\nof ").replace(" over ", "\nover "),
            title_fontsize=9,
            loc="outside right center",
            frameon=False,
            fontsize=9,
            handlelength=2.6,
        )
    return figure


def _draw(panel: Axes, runs: Runs, name: str, axis: str) -> None:
    divisor, label = _unit(runs, axis)
    log = uses_log_scale(runs, name)
    for number, group in enumerate(runs.groups):
        x, mean, low, high = curve(group, name, axis)
        if not x:
            continue
        x = [at / divisor for at in x]
        if log:  # a logarithmic scale cannot show zero
            mean = [value if value > LOG_ZERO else math.nan for value in mean]
            # As on the page: the band ends at the mean where it would go below zero.
            low = [value if value > LOG_ZERO else m for value, m in zip(low, mean, strict=True)]
        band = (low, high) if len(group.runs) > 1 else ()
        draw_curve(panel, number, x, mean, *band, label=literal(group.label), linewidth=1.5)
    if log:
        use_log_axis(panel)
    format_axes(panel, label, DIAGNOSTICS.get(name, metric_label(name)), 9)


def _unit(runs: Runs, axis: str) -> tuple[float, str]:
    """Return the divisor of a cost and the label of its axis with the unit."""
    if axis == "bytes":
        return 1e6, "MB sent"
    if not axis.endswith("seconds"):
        return 1, runs.costs[axis]
    spent = [value for run in runs for value in run.totals()[axis][-1:]]
    divisor, unit = time_unit(max(spent, default=0.0))
    return divisor, f"{runs.costs[axis]}, {unit}"


def _participation(runs: Runs) -> Figure:
    """Draw how many clients replied how often."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    axis = figure.subplots()
    table = count_replies(runs)
    for number, each in enumerate(table):
        times = sorted(each.times)
        if times:
            places = [time + 0.8 * (number - (len(table) - 1) / 2) / len(table) for time in times]
            axis.bar(
                places,
                [each.times[time] for time in times],
                0.8 / len(table),
                color=COLOURS[number % len(COLOURS)],
                label=literal(", ".join(each.methods)),
            )
    axis.set_xlabel("used replies", fontsize=9)
    axis.set_ylabel("clients", fontsize=9)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.tick_params(labelsize=8)
    if len(table) > 1:
        axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return figure
