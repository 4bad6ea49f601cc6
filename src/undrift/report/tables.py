"""The tables of a report: the cost of reaching targets, and the final metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from undrift.core.targets import Target, reached
from undrift.report.headings import METRIC_HEADINGS
from undrift.report.recorded_runs import MethodRuns, RunFiles, Runs
from undrift.utils.errors import UndriftError, require_choice
from undrift.utils.formatting import time_unit

Targets = Mapping[str, Target] | Sequence[tuple[str, Target]]
TARGET_SHARES = (0.9, 0.95, 0.99)
"""Default targets, as shares of the best value that was reached."""
ACCURACIES = ("test_accuracy", "validation_accuracy", "train_accuracy")
LOSSES = ("test_loss", "objective", "train_loss")


@dataclass(frozen=True)
class OverSeeds:
    """A number with one value per seed."""

    values: tuple[float, ...]
    """one per seed; for a target that was not reached, the total cost of the run"""
    missed: int = 0
    """seeds that did not reach the target; if any, the mean is a lower bound"""

    @property
    def mean(self) -> float:
        return fmean(self.values) if self.values else math.nan

    @property
    def std(self) -> float:
        """Standard deviation with n − 1; zero for a single seed, NaN if a value is not finite."""
        if len(self.values) < 2:
            return 0.0
        finite = all(map(math.isfinite, self.values))  # `stdev` raises on infinite values
        return stdev(self.values) if finite else math.nan


@dataclass(frozen=True)
class TargetCost:
    """What one method spent to reach one target."""

    method: str
    metric: str
    target: Target
    costs: dict[str, OverSeeds]
    """by the names of `recorded_runs.COSTS`"""
    savings: dict[str, str]
    """how many times less than the baseline, as "4.0×"; with > or < if one did not reach it"""


def as_target(text: str) -> tuple[str, Target]:
    """Parse a target: metric=value, or metric<=value and metric>=value for your own metrics."""
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


def describe_target(metric: str, target: Target) -> str:
    """Return a target as text: "test accuracy 0.9", or "mine ≤ 3"."""
    words = {"below": "≤ ", "above": "≥ "}
    level = f"{words[target[0]]}{target[1]:g}" if isinstance(target, tuple) else f"{target:g}"
    return f"{metric.replace('_', ' ')} {level}"


def find_targets(runs: Runs, targets: Targets | None = None) -> list[tuple[str, Target]]:
    """Return the given targets, or those of the experiments, or shares of the best value."""
    given = list(targets.items() if isinstance(targets, Mapping) else targets or ())
    for metric, _ in given:
        require_choice("The metric of a target", metric, runs.metrics)
    return given or [t for t in runs.targets() if t[0] in runs.metrics] or _default_targets(runs)


def _default_targets(runs: Runs) -> list[tuple[str, Target]]:
    """Return 90, 95 and 99 % of the best accuracy, or of the way from first to best loss."""
    metric = next((name for name in (*ACCURACIES, *LOSSES) if name in runs.metrics), None)
    if metric is None:
        return []
    values = [r.metrics[metric] for run in runs for r in run.records if metric in r.metrics]
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return []
    if metric in ACCURACIES:
        levels = [part * max(values) for part in TARGET_SHARES]
    else:
        first, best = values[0], min(values)
        levels = [best + (1 - part) * (first - best) for part in TARGET_SHARES]
    return [(metric, level) for level in dict.fromkeys(float(f"{x:.3g}") for x in levels)]


def find_baseline(runs: Runs, baseline: str | None = None) -> MethodRuns:
    """Return the method that savings are relative to: by default FedAvg, or the first."""
    if baseline is not None:
        require_choice("The baseline", baseline, [group.label for group in runs.groups])
        return next(group for group in runs.groups if group.label == baseline)
    return next((group for group in runs.groups if group.name == "FedAvg"), runs.groups[0])


def target_table(
    runs: Runs, targets: Targets | None = None, baseline: str | None = None
) -> list[TargetCost]:
    """Return what every method spent until it first reached each target."""
    wanted = find_targets(runs, targets)
    against = find_baseline(runs, baseline)
    table = []
    for metric, target in wanted:
        of_baseline = _costs_to_reach(against, metric, target)
        for group in runs.groups:
            costs = _costs_to_reach(group, metric, target)
            savings = {
                name: saving(of_baseline[name], cost)
                for name, cost in costs.items()
                if name in of_baseline
            }
            table.append(TargetCost(group.label, metric, target, costs, savings))
    return table


def _costs_to_reach(group: MethodRuns, metric: str, target: Target) -> dict[str, OverSeeds]:
    values: dict[str, list[float]] = {}
    missed = 0
    for run in group.runs:
        if not run.records:
            continue
        at = _first_reached(run, metric, target)
        missed += at is None
        for name, spent in group.totals(run).items():
            values.setdefault(name, []).append(spent[-1 if at is None else at])
    return {name: OverSeeds(tuple(found), missed) for name, found in values.items()}


def _first_reached(run: RunFiles, metric: str, target: Target) -> int | None:
    """Return the index of the first record that reached a target; None if none did."""
    for at, record in enumerate(run.records):
        if metric in record.metrics and reached({metric: target}, record.metrics):
            return at
    return None


def saving(baseline: OverSeeds, cost: OverSeeds) -> str:
    """Format the baseline's cost divided by a method's, as FedDyn's tables do: "4.0×"."""
    if (baseline.missed and cost.missed) or not cost.mean or not math.isfinite(cost.mean):
        return "–"
    sign = ">" if baseline.missed else "<" if cost.missed else ""
    ratio = baseline.mean / cost.mean
    return f"{sign}{ratio:.1f}×" if ratio < 99.95 else f"{sign}{ratio:.0f}×"


def format_cost(cost: OverSeeds, name: str = "") -> str:
    """Format a cost: "38 ± 2", or "> 1000" if a seed did not reach the target."""
    if not cost.values or not math.isfinite(cost.mean):
        return "–"
    divisor, unit = unit_of(cost.mean, name)
    mean, std = cost.mean / divisor, cost.std / divisor
    plain = cost.missed or not cost.std  # a count without spread is shown as an integer
    digits = _digits(mean, whole=bool(plain) and not unit and all(v == int(v) for v in cost.values))
    text = f"{mean:,.{digits}f}"
    if cost.missed:
        text = f"> {text}"
    elif std:  # no spread for one seed, or for equal seeds
        text += f" ± {std:,.{max(digits, 1) if std < 10 else digits}f}"
    reached = len(cost.values) - cost.missed
    some = f" ({reached} of {len(cost.values)} seeds)" if cost.missed and reached else ""
    return f"{text} {unit}".strip() + some


def _digits(value: float, whole: bool) -> int:
    if whole and value == int(value):
        return 0
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 999.5 else 0


def unit_of(value: float, name: str) -> tuple[float, str]:
    """Return the divisor of a cost and its unit."""
    if name == "bytes":
        for divisor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= 0.9995 * divisor:
                return divisor, unit
        return 1, "B"
    if name.endswith("seconds"):
        return time_unit(value)
    if name == "gradients" and abs(value) >= 1e6:
        return (1e9, "G") if abs(value) >= 1e9 else (1e6, "M")
    return 1, ""


@dataclass(frozen=True)
class FinalMetrics:
    """The last metrics and the total cost of one method."""

    method: str
    made: str
    seeds: int
    metrics: dict[str, OverSeeds]
    """over the seeds that did not diverge"""
    costs: dict[str, OverSeeds]


def final_table(runs: Runs) -> list[FinalMetrics]:
    """Return the last metrics and the total cost of every method, over seeds."""
    table = []
    for group in runs.groups:
        begun = [run for run in group.runs if run.records]
        metrics = {}
        for name in sort_metrics(runs.metrics):
            values = [run.metrics[name] for run in begun if name in run.metrics]
            if values:
                metrics[name] = OverSeeds(tuple(values), len(begun) - len(values))
        spent = [group.totals(run) for run in begun]
        costs = {name: OverSeeds(tuple(each[name][-1] for each in spent)) for name in runs.costs}
        table.append(FinalMetrics(group.label, group.runs[0].method, len(begun), metrics, costs))
    return table


def sort_metrics(metrics: Iterable[str]) -> list[str]:
    """Sort metrics: the server's in the order of a summary, then user-defined and other models'."""
    names = list(metrics)
    return [n for n in METRIC_HEADINGS if n in names] + sorted(
        n for n in names if n not in METRIC_HEADINGS
    )


def format_metric(value: OverSeeds) -> str:
    """Format a metric over seeds: "0.9731 ± 0.0012"."""
    if not value.values or math.isnan(value.mean):
        return "–"
    if not math.isfinite(value.mean):
        return "∞" if value.mean > 0 else "−∞"
    text = f"{value.mean:.4g}"
    if len(value.values) > 1:
        text += f" ± {value.std:.2g}"
    return text + (f" ({len(value.values)} seeds)" if value.missed else "")
