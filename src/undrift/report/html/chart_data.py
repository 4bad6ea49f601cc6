"""The data of the page's charts: the records as columns, small enough to embed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from undrift.core.records import Record
from undrift.report.naming import DIAGNOSTICS, STATUS_NOTES, metric_label, uses_log_scale
from undrift.report.recorded_runs import COSTS, MethodRuns, Runs
from undrift.utils.plot_style import COLOURS, dash_number

DARK = dict(
    zip(
        COLOURS,
        (
            "#77aadd",
            "#ff8f9d",
            "#55bb66",
            "#ddcc66",
            "#88ddff",
            "#dd77bb",
            "#aaaaaa",
            "#ffa64d",
            "#5599ff",
            "#cc8844",
            "#66ccbb",
            "#ffffff",
        ),
        strict=True,
    )
)
"""The colour that replaces each of `COLOURS` on a dark page."""
MAX_POINTS = 2000
"""Points of a curve."""
MAX_NUMBERS = 420_000
"""Numbers in a page, about 4 MB."""
SUMMED_COLUMNS = (
    *("bytes_down", "bytes_up", "steps", "gradients", "wasted_steps", "wasted_gradients"),
    *("busy_seconds", "idle_seconds", "seconds"),
    *("rejected", "absent", "lost", "partial", "updates"),
)
"""Columns whose values are sums over the rounds since the previous row."""


def chart_data(runs: Runs) -> tuple[dict[str, Any], int]:
    """Return the records as columns, and n if only one of n evaluated rounds is shown."""
    found: list[dict[str, Any]] = []
    step = _thinning(runs)
    for number, group in enumerate(runs.groups):
        found += [
            {
                "method": number,
                "seed": run.seed,
                "columns": columns(run.records, _kept(run.records, step)),
            }
            for run in group.runs
            if run.records
        ]
    names = {name: metric_label(name) for name in runs.metrics}
    names |= {name: DIAGNOSTICS.get(name, metric_label(name)) for name in runs.diagnostics}
    methods = [
        {
            "label": group.label,
            "light": COLOURS[number % len(COLOURS)],
            "dark": DARK[COLOURS[number % len(COLOURS)]],
            "dash": dash_number(number),
            "unit": group.fedavg_round_bytes or 1.0,
            "state": next((state for state in STATUS_NOTES if state in _states(group)), ""),
        }
        for number, group in enumerate(runs.groups)
    ]
    return {
        "methods": methods,
        "runs": found,
        "costs": COSTS | runs.costs,
        "names": names,
        "linear": [name for name in runs.metrics if not uses_log_scale(runs, name)],
    }, step


def _states(group: MethodRuns) -> set[str]:
    return {run.status for run in group.runs}


def _thinning(runs: Runs) -> int:
    """Return n to show one of n evaluated rounds, so that the page stays small."""
    longest = max(len(shown_rows(run.records)) for run in runs)
    others = 10 if "virtual_seconds" in runs.costs else 4  # other columns that do not compress well
    width = len(runs.metrics) + len(runs.diagnostics) + others
    cells = sum(len(shown_rows(run.records)) * width for run in runs)
    return max(1, math.ceil(longest / MAX_POINTS), math.ceil(cells / MAX_NUMBERS))


def shown_rows(records: Sequence[Record]) -> list[int]:
    """Return the indices of records to show: all, or the evaluated ones of a long run."""
    if len(records) <= MAX_POINTS:
        return list(range(len(records)))
    return [i for i, record in enumerate(records) if record.metrics] or list(range(len(records)))


def _kept(records: Sequence[Record], step: int) -> list[int]:
    """Return the indices of one of `step` shown records, and of the last one."""
    return sorted({*shown_rows(records)[::step], *range(len(records))[-1:]})


def columns(records: Sequence[Record], kept: Sequence[int]) -> dict[str, Any]:
    """Return the records with the indices `kept` as columns; sums include the rows between them."""
    names = dict.fromkeys(name for record in records for name in record.flat())
    flat = [record.flat() for record in records]
    found = {}
    for name in names:
        if name in SUMMED_COLUMNS:
            starts = [0, *(place + 1 for place in kept[:-1])]
            values = [
                sum(row[name] for row in flat[start : end + 1])
                for start, end in zip(starts, kept, strict=True)
            ]
        else:
            values = [flat[place].get(name) for place in kept]
        found[name] = _packed([_number(value) for value in values])
    return found


def _number(value: Any) -> Any:
    """Round to the seven digits that a chart needs; JSON has no infinity and NaN, so use text."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    short = float(f"{value:.7g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def _packed(values: list[Any]) -> Any:
    """Return a column, run-length encoded where that is shorter."""
    runs = [(key, len(list(group))) for key, group in groupby(values)]
    if 3 * len(runs) < len(values):
        return {"n": [count for _, count in runs], "v": [key for key, _ in runs]}
    return values


def as_script(value: Any) -> str:
    """Return JSON for a script element, without characters that could end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
