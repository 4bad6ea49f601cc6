"""The final metrics of runs as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.table import Table

from undrift.report.naming import main_metrics
from undrift.report.reading import RunFiles, Runs
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
MOST = 3
"""more metrics than these are for the report"""
LABEL = 18
"""the columns of a method's name, at most"""
GAP = 2


def final(runs: Runs, width: int = 80) -> Table:
    """A row per method: rounds done, the last metrics over its seeds, what was sent and when.

    Of the metrics those are shown that fit beside the rest, accuracy before all others.
    """
    rows = final_table(runs)
    columns = {"seeds": [str(len(group.runs)) for group in runs.groups]}
    columns["rounds"] = [_span([run.done for run in group.runs]) for group in runs.groups]
    ends = {"sent": [size(_sent(group.runs)) for group in runs.groups]}
    if "virtual_seconds" in runs.costs:
        ends["virtual"] = [duration(row.costs["virtual_seconds"].mean) for row in rows]
    label = max(min(cell_len(group.label), LABEL) for group in runs.groups)
    room = width - max(label, cell_len("method")) - _wide(columns) - _wide(ends)
    columns |= _metrics(runs, rows, room) | ends
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    table.add_column("method", no_wrap=True, overflow="ellipsis", max_width=LABEL)
    for head in columns:
        table.add_column(head, justify="right", no_wrap=True)
    for group, cells in zip(runs.groups, zip(*columns.values(), strict=True), strict=True):
        table.add_row(group.label, *cells)
    return table


def _metrics(runs: Runs, rows: Sequence[FinalMetrics], room: int) -> dict[str, list[str]]:
    """The columns of the metrics that say most, as many as there is room for; one at least."""
    found = [name for name in COLUMNS if any(name in row.metrics for row in rows)]
    first = main_metrics(runs)
    chosen: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda name: first.index(name) if name in first else len(first)):
        cells = [format_metric(row.metrics[name]) if name in row.metrics else "–" for row in rows]
        room -= _wide({COLUMNS[name]: cells})
        if len(chosen) == MOST or (chosen and room < 0):
            break
        chosen[name] = cells
    return {head: chosen[name] for name, head in COLUMNS.items() if name in chosen}


def _wide(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(GAP + max(map(cell_len, (head, *cells))) for head, cells in columns.items())


def _span(done: Sequence[int]) -> str:
    return str(min(done)) if min(done) == max(done) else f"{min(done)}–{max(done)}"


def _sent(runs: Sequence[RunFiles]) -> float:
    """The bytes of a seed, on average."""
    return sum(run.totals()["bytes"][-1] for run in runs if run.records) / len(runs)
