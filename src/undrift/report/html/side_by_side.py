"""The section that compares run folders side by side: settings that differ, and final metrics."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from undrift.report.html.html_parts import html_table
from undrift.report.naming import main_metrics, metric_label
from undrift.report.recorded_runs import Folder, MethodRuns, Runs
from undrift.report.tables import FinalMetrics, OverSeeds, final_table, format_metric
from undrift.utils.plain_text import plain_text

LEFT_OUT = ("name", "output")
"""Keys of an experiment that do not decide its results."""
MAX_CHARACTERS = 80


def side_by_side_section(runs: Runs) -> str:
    """Return what differs between the experiments and between their results, folder by folder.

    Empty for a single folder.
    """
    if len(runs.folders) < 2:
        return ""
    names = [escape(name) for name in folder_names(runs.folders)]
    return f"{_results(runs, names)}\n{_settings(runs.folders, names)}"


def folder_names(folders: Sequence[Folder]) -> list[str]:
    """Return names that tell the folders apart: those of the experiments, or else the paths."""
    names = [folder.name for folder in folders]
    return [
        name if names.count(name) == 1 else str(folder.path)
        for name, folder in zip(names, folders, strict=True)
    ]


def _results(runs: Runs, names: Sequence[str]) -> str:
    """The last metrics of the methods that at least two folders have."""
    finals = dict(zip((id(group) for group in runs.groups), final_table(runs), strict=True))
    rows = []
    for label in dict.fromkeys(group.runs[0].label for group in runs.groups):
        own = [_of(runs, folder, label, finals) for folder in runs.folders]
        if sum(each is not None for each in own) < 2:
            continue
        for metric in main_metrics(runs):
            values = [each.metrics.get(metric) if each else None for each in own]
            rows.append([escape(label), escape(metric_label(metric)), *_cells(values)])
    if not rows:
        return "<p>No method is in more than one of the folders.</p>"
    head = ["method", "metric", *names, *["difference"] * (len(names) == 2)]
    note = " Difference: the second folder minus the first." if len(names) == 2 else ""
    return f"""{html_table(head, rows, "Final metrics side by side", text=(1,))}
<p class="note">The last evaluation: mean ± standard deviation over seeds (n − 1).{note}</p>"""


def _of(
    runs: Runs, folder: Folder, label: str, finals: Mapping[int, FinalMetrics]
) -> FinalMetrics | None:
    """The final metrics of a method in one folder; None if the folder does not have it."""
    mine: Iterator[MethodRuns] = (group for group in runs.groups if group.folder is folder)
    return next((finals[id(group)] for group in mine if group.runs[0].label == label), None)


def _cells(values: Sequence[OverSeeds | None]) -> list[str]:
    cells = ["–" if value is None else escape(format_metric(value)) for value in values]
    if len(values) == 2:
        first, second = values
        cells.append(f"{second.mean - first.mean:+.4g}" if first and second else "–")
    return cells


def _settings(folders: Sequence[Folder], names: Sequence[str]) -> str:
    """The settings of the experiment files that are not the same in all folders."""
    settings = [dict(_flat(tomllib.loads(folder.experiment))) for folder in folders]
    keys = dict.fromkeys(key for own in settings for key in own)
    rows = []
    for key in keys:
        values = [own.get(key) for own in settings]
        if any(value != values[0] for value in values):
            shown = ["–" if v is None else escape(plain_text(v, MAX_CHARACTERS)) for v in values]
            rows.append([f"<code>{escape(key)}</code>", *shown])
    if not rows:
        return "<p>The experiment files have the same settings.</p>"
    long = range(1, len(names) + 1)
    return f"<h3>Settings that differ</h3>{html_table(['', *names], rows, 'Settings', long=long)}"


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """The settings of an experiment as (dotted key, value); methods by their labels."""
    for key, value in table.items():
        if not above and key in LEFT_OUT:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        elif not above and key == "method" and isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    label = str(each.get("label", each.get("name")))
                    options = {k: v for k, v in each.items() if k not in ("label", "name")}
                    yield f"method.{label}", str(each.get("name", label))
                    yield from _flat(options, f"method.{label}.")
        else:
            yield f"{above}{key}", str(value)
