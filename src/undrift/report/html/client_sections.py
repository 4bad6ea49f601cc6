"""The section about results per client as HTML: spread, fairness, and the worst clients."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

from undrift.core.client_metrics import falls, spread
from undrift.report.html.html_parts import csv_link, histogram, html_table, method_cell, plural
from undrift.report.naming import metric_label
from undrift.report.recorded_runs import MethodRuns, Runs
from undrift.report.tables import OverSeeds, format_metric, sort_metrics

WORST_CLIENTS = 5
PERCENT = 100


def clients_section(runs: Runs, text: str) -> str:
    """Return how the main metric is spread over clients; empty without results per client."""
    judged = [group for group in runs.groups if any(run.clients for run in group.runs)]
    metric = _main_metric(runs)
    if not judged or metric is None:
        return ""
    rows = [row for group in judged for row in _spread_rows(runs, group, metric)]
    head = ["method", "model", "clients", "mean", "deviation", "worst tenth", "Jain's index"]
    charts = "".join(_distribution(group, metric) for group in judged)
    return f"""<h3>{escape(metric_label(metric))} over clients</h3>
{html_table([*head, "worst clients"], rows, "Metrics over clients", text=(1,), long=(7,))}
<p class="note">Every client counts alike; values over seeds are mean ± standard deviation. Worst
tenth: the mean of the tenth of the clients with the worst values. Jain's index is one if all
clients have the same value. The worst clients are those of the first seed.</p>
<div class="charts small">{charts}</div>
<p>{csv_link("clients", text)}</p>"""


def _main_metric(runs: Runs) -> str | None:
    """The metric to show: an accuracy, of the test part if clients have one."""
    names = {name for run in runs for row in run.clients for name in row}
    known = sort_metrics(names - {"model", "client", "samples"})
    order = [f"{part}_{kind}" for kind in ("accuracy", "loss") for part in ("test", "validation")]
    order += ["train_accuracy", "train_loss", *known]
    return next((name for name in order if name in names), None)


def _spread_rows(runs: Runs, group: MethodRuns, metric: str) -> list[list[str]]:
    """A row per reported model of a method."""
    seeds = [run.clients for run in group.runs if run.clients]
    found = []
    for model in dict.fromkeys(row["model"] for rows in seeds for row in rows):
        tables = [[r for r in rows if r["model"] == model and metric in r] for rows in seeds]
        tables = [table for table in tables if table]
        if not tables:
            continue
        each = [spread(metric, [row[metric] for row in table]) for table in tables]
        cells = [
            format_metric(OverSeeds(tuple(one[name] for one in each)))
            for name in ("mean", "std", "worst_tenth", "jain")
        ]
        worst = _worst(tables[0], metric)
        count = str(len(tables[0]))
        found.append([method_cell(runs, group.label), escape(str(model)), count, *cells, worst])
    return found


def _worst(table: list[dict[str, Any]], metric: str) -> str:
    ordered = sorted(table, key=lambda row: row[metric], reverse=falls(metric))
    return escape(", ".join(f"{r['client']} ({r[metric]:.3g})" for r in ordered[:WORST_CLIENTS]))


def _distribution(group: MethodRuns, metric: str) -> str:
    """How many clients have which value, in percent; only for metrics between zero and one."""
    rows = [row for run in group.runs for row in run.clients if metric in row]
    model = rows[0]["model"] if rows else ""
    values = [row[metric] for row in rows if row["model"] == model]
    if not values or not all(0 <= value <= 1 for value in values):
        return ""
    times = Counter(round(PERCENT * value) for value in values)
    return histogram(
        group.label,
        times,
        f"{metric_label(metric)}, %",
        "clients",
        lambda count, reach: f"{plural(count, 'client')}: {reach} %",
    )
