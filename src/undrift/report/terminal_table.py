"""The table of final metrics that `undrift run` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.table import Table

from undrift.report.naming import main_metrics
from undrift.report.recorded_runs import RunFiles, Runs
from undrift.report.tables import FinalMetrics, final_table, format_metric
from undrift.utils.formatting import duration, size

COLUMNS = {
    "objective": "objective",
    "validation_accuracy": "val acc",
    "test_loss": "test loss",
    "test_accuracy": "test acc",
    "test_absolute_error": "test MAE",
    "train_loss": "train loss",
    "train_accuracy": "train acc",
}
MAX_METRICS = 3
MAX_LABEL_WIDTH = 18
"""Characters of a method's label."""
GAP_WIDTH = 2
"""Characters between two columns."""


def final_metrics_table(runs: Runs, width: int = 80) -> Table:
    """Return a row per method: rounds done, last metrics over its seeds, traffic and time.

    Only the metrics that fit into `width` are shown, an accuracy first.
    """
    rows = final_table(runs)
    columns = {"seeds": [str(len(group.runs)) for group in runs.groups]}
    columns["rounds"] = [_span([run.done for run in group.runs]) for group in runs.groups]
    ends = {"sent": [size(_mean_bytes(group.runs)) for group in runs.groups]}
    if "virtual_seconds" in runs.costs:
        ends["time" if runs.deployed else "virtual"] = [
            duration(row.costs["virtual_seconds"].mean) for row in rows
        ]
    label = max(min(cell_len(group.label), MAX_LABEL_WIDTH) for group in runs.groups)
    room = width - max(label, cell_len("method")) - _width(columns) - _width(ends)
    columns |= _metrics(runs, rows, room) | ends
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP_WIDTH, 0, 0))
    table.add_column("method", no_wrap=True, overflow="ellipsis", max_width=MAX_LABEL_WIDTH)
    for head in columns:
        table.add_column(head, justify="right", no_wrap=True)
    for group, cells in zip(runs.groups, zip(*columns.values(), strict=True), strict=True):
        table.add_row(group.label, *cells)
    return table


def _metrics(runs: Runs, rows: Sequence[FinalMetrics], room: int) -> dict[str, list[str]]:
    """Return the columns of the most important metrics that fit into `room`; at least one."""
    found = [name for name in COLUMNS if any(name in row.metrics for row in rows)]
    first = main_metrics(runs)
    chosen: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda name: first.index(name) if name in first else len(first)):
        cells = [format_metric(row.metrics[name]) if name in row.metrics else "–" for row in rows]
        room -= _width({COLUMNS[name]: cells})
        if len(chosen) == MAX_METRICS or (chosen and room < 0):
            break
        chosen[name] = cells
    return {head: chosen[name] for name, head in COLUMNS.items() if name in chosen}


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(GAP_WIDTH + max(map(cell_len, (head, *cells))) for head, cells in columns.items())


def _span(done: Sequence[int]) -> str:
    return str(min(done)) if min(done) == max(done) else f"{min(done)}–{max(done)}"


def _mean_bytes(runs: Sequence[RunFiles]) -> float:
    """Return the mean traffic of a seed in bytes."""
    return sum(run.totals()["bytes"][-1] for run in runs if run.records) / len(runs)
