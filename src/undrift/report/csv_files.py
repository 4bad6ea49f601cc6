"""Writes the records and every table of a report as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from undrift.report.paired import PairedTest, paired_table
from undrift.report.recorded_runs import Runs, as_runs, record_rows
from undrift.report.reply_counts import ReplyCounts, count_replies
from undrift.report.tables import (
    FinalMetrics,
    OverSeeds,
    TargetCost,
    Targets,
    final_table,
    target_table,
)
from undrift.report.virtual_time import VirtualTime, virtual_time_table
from undrift.utils.errors import UndriftError, require
from undrift.utils.files import written_whole


def csv_text(table: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with a column for every key that occurs in a row."""
    table = list(table)
    names = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def tables_as_rows(
    runs: Runs, costs: Sequence[TargetCost], baseline: str | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return every table except the records, as plain rows by the name of the file."""
    found = {
        "targets": list(_target_rows(runs, costs)),
        "final": list(_final_rows(final_table(runs))),
        "runs": list(_run_rows(runs)),
        "participation": list(_participation_rows(count_replies(runs))),
    }
    paired = list(_paired_rows(paired_table(runs, baseline)))
    found |= {"paired": paired} if paired else {}
    clients = list(_client_rows(runs))
    found |= {"clients": clients} if clients else {}
    timed = list(_time_rows(virtual_time_table(runs)))
    return found | ({"time": timed} if timed else {})


def _target_rows(runs: Runs, table: Iterable[TargetCost]) -> Iterator[dict[str, Any]]:
    for row in table:
        direction = row.target[0] if isinstance(row.target, tuple) else ""
        level = row.target[1] if isinstance(row.target, tuple) else row.target
        any_cost = next(iter(row.costs.values()), OverSeeds(()))
        values: dict[str, Any] = {
            "metric": row.metric,
            "direction": direction,
            "target": level,
            "method": row.method,
            "seeds": len(any_cost.values),
            "seeds_that_reached_it": len(any_cost.values) - any_cost.missed,
        }
        for name in runs.costs:
            if name in row.costs:
                values[f"{name}_mean"] = row.costs[name].mean
                values[f"{name}_std"] = row.costs[name].std
                values[f"{name}_saving"] = row.savings.get(name, "")
        yield values


def _final_rows(table: Iterable[FinalMetrics]) -> Iterator[dict[str, Any]]:
    for row in table:
        values: dict[str, Any] = {"method": row.method, "made": row.made, "seeds": row.seeds}
        for name, over in (row.metrics | row.costs).items():
            values |= {f"{name}_mean": over.mean, f"{name}_std": over.std}
        yield values


def _paired_rows(table: Iterable[PairedTest]) -> Iterator[dict[str, Any]]:
    for test in table:
        yield {
            "method": test.method,
            "baseline": test.baseline,
            "metric": test.metric,
            "seeds": len(test.differences),
            "difference_mean": test.mean,
            "difference_std": test.std,
            "t": test.t,
            "p": test.p,
        }


def _client_rows(runs: Runs) -> Iterator[dict[str, Any]]:
    for group in runs.groups:
        for run in group.runs:
            for row in run.clients:
                yield {"method": group.label, "seed": run.seed, **row}


def _run_rows(runs: Runs) -> Iterator[dict[str, Any]]:
    for group in runs.groups:
        for run in group.runs:
            spent = {name: values[-1:] for name, values in group.totals(run).items()}
            yield {
                "method": group.label,
                "made": run.method,
                "seed": run.seed,
                "status": run.status,
                "reason": run.reason or "",
                "rounds_done": run.done,
                "rounds_asked": run.rounds,
                **{n: spent[n][0] if spent[n] else 0 for n in runs.costs if n != "rounds"},
                **run.metrics,
            }


def _participation_rows(table: Iterable[ReplyCounts]) -> Iterator[dict[str, Any]]:
    for each in table:
        for times, clients in sorted(each.times.items()):
            yield {
                "methods": "; ".join(each.methods),
                "seeds": len(each.never),
                "replies": times,
                "clients": clients,
            }


def _time_rows(table: Iterable[VirtualTime]) -> Iterator[dict[str, Any]]:
    for row in table:
        values: dict[str, Any] = {"method": row.method, "seeds": len(row.clock.values)}
        numbers = {
            "virtual_seconds": row.clock,
            "updates": row.updates,
            "rounds_skipped": row.skipped,
            "replies": row.replies,
            "partial": row.partial,
            **{f"lost_{reason}": over for reason, over in row.lost.items()},
            "wasted_share": row.wasted,
            "idle_share": row.idle,
            "staleness": row.stale,
            "never_replied": row.never,
        }
        for name, over in numbers.items():  # a quantity that a method does not have stays empty
            there = bool(over.values)
            values |= {f"{name}_mean": over.mean if there else ""}
            values |= {f"{name}_std": over.std if there else ""}
        yield values | {"staleness_largest": max(row.staleness, default="")}


def write_csv(
    folders: Sequence[str | Path] | str | Path | Runs,
    out_dir: str | Path,
    targets: Targets | None = None,
    baseline: str | None = None,
) -> list[Path]:
    """Write all records and every table as CSV files, and return their paths."""
    runs = as_runs(folders)
    tables: dict[str, Iterable[Mapping[str, Any]]] = {"records": record_rows(runs)}
    tables |= tables_as_rows(runs, target_table(runs, targets, baseline), baseline)
    out_dir = ensure_folder(out_dir)
    paths = []
    for name, table in tables.items():
        path = out_dir / f"{name}.csv"
        with written_whole(path) as partial:
            partial.write_text(csv_text(table), encoding="utf-8")
        paths.append(path)
    return paths


def ensure_folder(folder: str | Path) -> Path:
    """Return a folder to write to, creating it if necessary."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UndriftError(f"The folder {folder} cannot be created: {error.strerror}.") from error
    require(folder.is_dir(), f"{folder} is a file: choose a folder to write to.")
    return folder
