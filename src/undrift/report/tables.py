"""The tables of a report: what it cost to reach targets, how runs ended, who took part."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from undrift.errors import UndriftError, require, require_choice
from undrift.files import written_whole
from undrift.report.reading import Group, RunFiles, Runs, read_runs, rows
from undrift.result import SHOWN
from undrift.targets import Target, reached

Targets = Mapping[str, Target] | Sequence[tuple[str, Target]]
LEVELS = (0.9, 0.95, 0.99)
"""Parts of the best that was reached, where nobody says what the targets are."""
RISING = ("test_accuracy", "validation_accuracy", "train_accuracy")
FALLING = ("test_loss", "objective", "train_loss")


@dataclass(frozen=True)
class Over:
    """A number over seeds."""

    values: tuple[float, ...]
    """one per seed; where a target was not reached, what was spent without reaching it"""
    missed: int = 0
    """seeds that did not reach the target: if any, the mean is a lower bound"""

    @property
    def mean(self) -> float:
        return fmean(self.values) if self.values else math.nan

    @property
    def std(self) -> float:
        """With n − 1; zero for a single seed."""
        return stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Row:
    """What a method needed to reach a target."""

    method: str
    metric: str
    target: Target
    costs: dict[str, Over]
    """under the names of `reading.COSTS`"""
    savings: dict[str, str]
    """how many times less than the baseline, as "4.0×"; with > or < where one was not reached"""

    @property
    def goal(self) -> str:
        """The target in words."""
        return goal(self.metric, self.target)


def as_target(text: str) -> tuple[str, Target]:
    """A target in words: metric=value; metric<=value or metric>=value for your own metrics."""
    match = re.fullmatch(r"\s*([^<>=\s]+)\s*(<=|>=|=)\s*(\S+)\s*", text)
    try:
        if match is None:
            raise ValueError
        metric, sign, value = match[1], match[2], float(match[3])
        if not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise UndriftError(
            f"The target {text!r} must be metric=value, metric<=value or metric>=value with a "
            "finite number, for example test_accuracy=0.9."
        ) from None
    return metric, value if sign == "=" else ({"<=": "below", ">=": "above"}[sign], value)


def goal(metric: str, target: Target) -> str:
    """A target in words, "test accuracy 0.9"."""
    words = {"below": "≤ ", "above": "≥ "}
    level = f"{words[target[0]]}{target[1]:g}" if isinstance(target, tuple) else f"{target:g}"
    return f"{metric.replace('_', ' ')} {level}"


def find_targets(runs: Runs, targets: Targets | None = None) -> list[tuple[str, Target]]:
    """The targets that are asked for, or the experiments', or parts of the best reached."""
    given = list(targets.items() if isinstance(targets, Mapping) else targets or ())
    for metric, _ in given:
        require_choice("The metric of a target", metric, runs.metrics)
    return given or [t for t in runs.targets() if t[0] in runs.metrics] or _levels(runs)


def _levels(runs: Runs) -> list[tuple[str, Target]]:
    """90, 95 and 99 % of the best accuracy, or of the way from the initial loss to the best."""
    metric = next((name for name in (*RISING, *FALLING) if name in runs.metrics), None)
    if metric is None:
        return []
    values = [r.metrics[metric] for run in runs for r in run.records if metric in r.metrics]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return []
    if metric in RISING:
        levels = [part * max(values) for part in LEVELS]
    else:
        first, best = values[0], min(values)
        levels = [best + (1 - part) * (first - best) for part in LEVELS]
    return [(metric, level) for level in dict.fromkeys(float(f"{x:.3g}") for x in levels)]


def find_baseline(runs: Runs, baseline: str | None = None) -> Group:
    """The method that others are measured against: by default FedAvg, or the first."""
    if baseline is not None:
        require_choice("The baseline", baseline, [group.label for group in runs.groups])
        return next(group for group in runs.groups if group.label == baseline)
    return next((group for group in runs.groups if group.name == "FedAvg"), runs.groups[0])


def target_table(
    runs: Runs, targets: Targets | None = None, baseline: str | None = None
) -> list[Row]:
    """What every method needed to reach every target for the first time."""
    wanted = find_targets(runs, targets)
    against = find_baseline(runs, baseline)
    table = []
    for metric, target in wanted:
        of_baseline = _needed(against, metric, target)
        for group in runs.groups:
            costs = _needed(group, metric, target)
            savings = {
                name: saving(of_baseline[name], cost)
                for name, cost in costs.items()
                if name in of_baseline
            }
            table.append(Row(group.label, metric, target, costs, savings))
    return table


def _needed(group: Group, metric: str, target: Target) -> dict[str, Over]:
    values: dict[str, list[float]] = {}
    missed = 0
    for run in group.runs:
        if not run.records:
            continue
        at = _first(run, metric, target)
        missed += at is None
        for name, spent in group.totals(run).items():
            values.setdefault(name, []).append(spent[-1 if at is None else at])
    return {name: Over(tuple(found), missed) for name, found in values.items()}


def _first(run: RunFiles, metric: str, target: Target) -> int | None:
    """The first record in which a target was reached."""
    for at, record in enumerate(run.records):
        if metric in record.metrics and reached({metric: target}, record.metrics):
            return at
    return None


def saving(baseline: Over, cost: Over) -> str:
    """The baseline's cost over a method's, as FedDyn's tables have it."""
    if (baseline.missed and cost.missed) or not cost.mean or not math.isfinite(cost.mean):
        return "–"
    sign = ">" if baseline.missed else "<" if cost.missed else ""
    ratio = baseline.mean / cost.mean
    return f"{sign}{ratio:.1f}×" if ratio < 99.95 else f"{sign}{ratio:.0f}×"


def shown(cost: Over, name: str = "") -> str:
    """A cost in words: "38 ± 2", or "> 1000" where a seed did not reach the target."""
    if not cost.values or not math.isfinite(cost.mean):
        return "–"
    divisor, unit = scale(cost.mean, name)
    mean, std = cost.mean / divisor, cost.std / divisor
    plain = cost.missed or not cost.std  # a count without a spread is shown as a whole number
    digits = _digits(mean, whole=bool(plain) and not unit and all(v == int(v) for v in cost.values))
    text = f"{mean:,.{digits}f}"
    if cost.missed:
        text = f"> {text}"
    elif std:  # nothing to say of a single seed, or of seeds that agree
        text += f" ± {std:,.{max(digits, 1) if std < 10 else digits}f}"
    reached = len(cost.values) - cost.missed
    some = f" ({reached} of {len(cost.values)} seeds)" if cost.missed and reached else ""
    return f"{text} {unit}".strip() + some


def _digits(value: float, whole: bool) -> int:
    if whole and value == int(value):
        return 0
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 999.5 else 0


def scale(value: float, name: str) -> tuple[float, str]:
    """By what to divide a number of that name, and the unit it then has."""
    if name == "bytes":
        for divisor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= 0.9995 * divisor:
                return divisor, unit
        return 1, "B"
    if name.endswith("seconds"):
        for divisor, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
            if abs(value) >= 2 * divisor:
                return divisor, unit
        return 1, "s"
    if name == "gradients" and abs(value) >= 1e6:
        return (1e9, "G") if abs(value) >= 1e9 else (1e6, "M")
    return 1, ""


@dataclass(frozen=True)
class Final:
    """How a method ended."""

    method: str
    made: str
    seeds: int
    metrics: dict[str, Over]
    """of the seeds that did not diverge"""
    costs: dict[str, Over]


def final_table(runs: Runs) -> list[Final]:
    """The last metrics of every method and what they cost, over seeds."""
    table = []
    for group in runs.groups:
        begun = [run for run in group.runs if run.records]
        metrics = {}
        for name in ordered(runs.metrics):
            values = [run.metrics[name] for run in begun if name in run.metrics]
            if values:
                metrics[name] = Over(tuple(values), len(begun) - len(values))
        spent = [group.totals(run) for run in begun]
        costs = {name: Over(tuple(each[name][-1] for each in spent)) for name in runs.costs}
        table.append(Final(group.label, group.runs[0].method, len(begun), metrics, costs))
    return table


def ordered(metrics: Iterable[str]) -> list[str]:
    """The server's metrics in the order of a summary, then the user's own and other models'."""
    names = list(metrics)
    return [n for n in SHOWN if n in names] + sorted(n for n in names if n not in SHOWN)


def measured(value: Over) -> str:
    """A metric over seeds: "0.9731 ± 0.0012"."""
    if not value.values or math.isnan(value.mean):
        return "–"
    if not math.isfinite(value.mean):
        return "∞" if value.mean > 0 else "−∞"
    text = f"{value.mean:.4g}"
    if len(value.values) > 1:
        text += f" ± {value.std:.2g}"
    return text + (f" ({len(value.values)} seeds)" if value.missed else "")


@dataclass(frozen=True)
class Participation:
    """How often clients took part, over all rounds and seeds of methods with equal cohorts."""

    methods: tuple[str, ...]
    clients: int
    """all that there are, if the folder says so, or else those that were seen"""
    seen: int
    times: Counter[int]
    """how many clients took part how often, pooled over seeds"""
    seeds: int
    rejected: dict[str, int]
    """unusable replies, by method"""
    absent: dict[str, int]
    """clients of a cohort that managed no work, by method"""
    reasons: dict[str, str]
    """the first rejection's, by method"""

    @property
    def summary(self) -> tuple[int, float, int]:
        """The fewest, median and most times."""
        every = sorted(self.times.elements())
        return (every[0], median(every), every[-1]) if every else (0, 0.0, 0)


def participation(runs: Runs) -> list[Participation]:
    """Who took part, how often; methods that had the same cohorts are together."""
    together: dict[Any, list[Group]] = {}
    counts: dict[Any, list[Counter[str]]] = {}
    for group in runs.groups:
        own = [_took_part(run) for run in group.runs if run.records]
        key = (id(group.folder), tuple(frozenset(each.items()) for each in own))
        together.setdefault(key, []).append(group)
        counts[key] = own
    found = []
    for key, groups in together.items():
        per_seed = counts[key]
        seen = max((len(each) for each in per_seed), default=0)
        clients = max(int(groups[0].folder.data.get("clients") or 0), seen)
        times: Counter[int] = Counter()
        for each in per_seed:
            times.update(each.values())
            times[0] += clients - len(each)
        records = {g.label: [r for run in g.runs for r in run.records] for g in groups}
        found.append(
            Participation(
                methods=tuple(group.label for group in groups),
                clients=clients,
                seen=seen,
                times=+times,
                seeds=len(per_seed),
                rejected={m: sum(len(r.rejected) for r in own) for m, own in records.items()},
                absent={m: sum(len(r.absent) for r in own) for m, own in records.items()},
                reasons={
                    m: f"round {r.round}, client {client!r}: {reason}"
                    for m, own in records.items()
                    for r in [next((r for r in own if r.rejected), None)]
                    if r is not None
                    for client, reason in list(r.rejected.items())[:1]
                },
            )
        )
    return found


def _took_part(run: RunFiles) -> Counter[str]:
    """In how many rounds each client worked."""
    times: Counter[str] = Counter()
    for record in run.records:
        absent = set(map(str, record.absent))
        times.update(client for client in set(map(str, record.cohort)) if client not in absent)
    return times


def bars(times: Counter[int], most: int = 40) -> list[tuple[int, int, int]]:
    """A histogram of whole numbers: (first, last, how many), in bars of equal width."""
    if not times:
        return []
    low, high = min(times), max(times)
    width = math.ceil((high - low + 1) / most)
    found = []
    for first in range(low, high + 1, width):
        last = first + width - 1
        found.append((first, last, sum(times[n] for n in range(first, last + 1))))
    return found


# CSV


def csv_text(table: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV, with a column for every name that occurs."""
    table = list(table)
    names = list(dict.fromkeys(name for row in table for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def tables_as_rows(runs: Runs, costs: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Every table but the records themselves, as plain rows under the name of its file."""
    return {
        "targets": list(_target_rows(runs, costs)),
        "final": list(_final_rows(final_table(runs))),
        "runs": list(_run_rows(runs)),
        "participation": list(_participation_rows(participation(runs))),
    }


def _target_rows(runs: Runs, table: Iterable[Row]) -> Iterator[dict[str, Any]]:
    for row in table:
        direction = row.target[0] if isinstance(row.target, tuple) else ""
        level = row.target[1] if isinstance(row.target, tuple) else row.target
        any_cost = next(iter(row.costs.values()), Over(()))
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


def _final_rows(table: Iterable[Final]) -> Iterator[dict[str, Any]]:
    for row in table:
        values: dict[str, Any] = {"method": row.method, "made": row.made, "seeds": row.seeds}
        for name, over in (row.metrics | row.costs).items():
            values |= {f"{name}_mean": over.mean, f"{name}_std": over.std}
        yield values


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


def _participation_rows(table: Iterable[Participation]) -> Iterator[dict[str, Any]]:
    for each in table:
        for times, clients in sorted(each.times.items()):
            yield {
                "methods": "; ".join(each.methods),
                "seeds": each.seeds,
                "rounds_taken_part": times,
                "clients": clients,
            }


def write_csv(
    folders: Sequence[str | Path] | str | Path | Runs,
    out_dir: str | Path,
    targets: Targets | None = None,
    baseline: str | None = None,
) -> list[Path]:
    """Write all records and every table as CSV files."""
    runs = folders if isinstance(folders, Runs) else read_runs(folders)
    tables: dict[str, Iterable[Mapping[str, Any]]] = {"records": rows(runs)}
    tables |= tables_as_rows(runs, target_table(runs, targets, baseline))
    out_dir = ready(out_dir)
    paths = []
    for name, table in tables.items():
        path = out_dir / f"{name}.csv"
        with written_whole(path) as partial:
            partial.write_text(csv_text(table), encoding="utf-8")
        paths.append(path)
    return paths


def ready(folder: str | Path) -> Path:
    """A folder to write to, made if need be."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UndriftError(f"{folder} cannot be made a folder: {error.strerror}.") from error
    require(folder.is_dir(), f"{folder} is not a folder.")
    return folder
