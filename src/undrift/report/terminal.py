"""The final metrics of runs as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from undrift.report.naming import main_metrics
from undrift.report.reading import Runs
from undrift.report.tables import final_table, measured
from undrift.units import duration, size

COLUMNS = {
    "objective": "objective",
    "validation_accuracy": "val acc",
    "test_loss": "test loss",
    "test_accuracy": "test acc",
    "test_absolute_error": "test MAE",
    "train_loss": "train loss",
    "train_accuracy": "train acc",
}
MOST = 3
"""so many metrics fit beside the rest on 80 columns"""


def final(runs: Runs) -> Table:
    """A row per method: rounds done, the last metrics over its seeds, what was sent and when."""
    rows = final_table(runs)
    found = {name for row in rows for name in row.metrics}
    several = any(row.seeds > 1 for row in rows)  # then a metric has a spread beside it
    clock = "virtual_seconds" in runs.costs
    metrics = [name for name in COLUMNS if name in found]
    room = MOST - several - clock
    if room == 1:  # then the one that says most
        metrics.sort(key=lambda name: name not in main_metrics(runs)[:1])
    metrics = metrics[:room]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True, overflow="ellipsis", max_width=18)
    for head in (
        "seeds",
        "rounds",
        *(COLUMNS[name] for name in metrics),
        "sent",
        *["time"] * clock,
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for group, row in zip(runs.groups, rows, strict=True):
        done = [run.done for run in group.runs]
        sent = sum(run.totals()["bytes"][-1] for run in group.runs if run.records) / len(done)
        table.add_row(
            group.label,
            str(len(done)),
            str(min(done)) if min(done) == max(done) else f"{min(done)}–{max(done)}",
            *(measured(row.metrics[name]) if name in row.metrics else "–" for name in metrics),
            size(sent),
            *([duration(row.costs["virtual_seconds"].mean)] if clock else []),
        )
    return table
