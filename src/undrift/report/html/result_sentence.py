"""The result of a report in one sentence, which stands below its title."""

from __future__ import annotations

import math

from undrift.report.html.html_parts import plural
from undrift.report.naming import main_metrics, metric_label
from undrift.report.plots import lower_is_better
from undrift.report.recorded_runs import UNFINISHED, Runs
from undrift.report.tables import FinalMetrics, final_table, find_baseline, format_metric

MAX_TIED = 3
"""How many methods with the same value are named."""


def result_sentence(runs: Runs, baseline: str | None = None, metric: str | None = None) -> str:
    """Return which method ended best by a metric, and how the baseline did.

    By default it is the main metric. Empty if nothing was measured.
    """
    metric = metric or next(iter(main_metrics(runs)), None)
    if metric is None:
        return ""
    measured = [
        row
        for row in final_table(runs)
        if metric in row.metrics and math.isfinite(row.metrics[metric].mean)
    ]
    if not measured:
        return f"No run ended with a finite {metric_label(metric)}."
    begin = "So far: " if any(run.status in UNFINISHED for run in runs) else ""
    name = metric_label(metric)
    if len(measured) == 1 and len(runs.groups) == 1:
        (only,) = measured
        rounds = plural(max(run.done for run in runs), "round")
        return f"{begin}{only.method} has {name} {_value(only, metric)} after {rounds}."
    falls = lower_is_better(metric)
    ordered = sorted(measured, key=lambda row: row.metrics[metric].mean, reverse=not falls)
    best = [row for row in ordered if _value(row, metric) == _value(ordered[0], metric)]
    verb = "has" if len(best) == 1 else "have"
    words = "lowest" if falls else "highest"
    sentence = f"{begin}{_names(best)} {verb} the {words} {name}, {_value(best[0], metric)}"
    rest = [row for row in ordered if row not in best]
    against = find_baseline(runs, baseline).label
    other = next((row for row in rest if row.method == against), next(iter(rest), None))
    if other is not None:
        sentence += f"; {other.method} has {_value(other, metric)}"
    return f"{sentence}."


def _value(row: FinalMetrics, metric: str) -> str:
    return format_metric(row.metrics[metric])


def _names(rows: list[FinalMetrics]) -> str:
    names = [row.method for row in rows]
    if len(names) > MAX_TIED:
        return f"{', '.join(names[:MAX_TIED])} and {len(names) - MAX_TIED} more"
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
