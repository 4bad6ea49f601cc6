"""The tables of a report: what it cost to reach targets, and how runs ended."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from undrift.core.targets import Target, reached
from undrift.report.headings import METRIC_HEADINGS
from undrift.report.reading import MethodRuns, RunFiles, Runs
from undrift.utils.errors import UndriftError, require_choice
from undrift.utils.formatting import time_unit

Targets = Mapping[str, Target] | Sequence[tuple[str, Target]]
LEVELS = (0.9, 0.95, 0.99)
"""Parts of the best that was reached, where nobody says what the targets are."""
RISING = ("test_accuracy", "validation_accuracy", "train_accuracy")
FALLING = ("test_loss", "objective", "train_loss")


@dataclass(frozen=True)
class OverSeeds:
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
class TargetCost:
    """What a method needed to reach a target."""

    method: str
    metric: str
    target: Target
    costs: dict[str, OverSeeds]
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


def find_baseline(runs: Runs, baseline: str | None = None) -> MethodRuns:
    """The method that others are measured against: by default FedAvg, or the first."""
    if baseline is not None:
        require_choice("The baseline", baseline, [group.label for group in runs.groups])
        return next(group for group in runs.groups if group.label == baseline)
    return next((group for group in runs.groups if group.name == "FedAvg"), runs.groups[0])


def target_table(
    runs: Runs, targets: Targets | None = None, baseline: str | None = None
) -> list[TargetCost]:
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
            table.append(TargetCost(group.label, metric, target, costs, savings))
    return table


def _needed(group: MethodRuns, metric: str, target: Target) -> dict[str, OverSeeds]:
    values: dict[str, list[float]] = {}
    missed = 0
    for run in group.runs:
        if not run.records:
            continue
        at = _first(run, metric, target)
        missed += at is None
        for name, spent in group.totals(run).items():
            values.setdefault(name, []).append(spent[-1 if at is None else at])
    return {name: OverSeeds(tuple(found), missed) for name, found in values.items()}


def _first(run: RunFiles, metric: str, target: Target) -> int | None:
    """The first record in which a target was reached."""
    for at, record in enumerate(run.records):
        if metric in record.metrics and reached({metric: target}, record.metrics):
            return at
    return None


def saving(baseline: OverSeeds, cost: OverSeeds) -> str:
    """The baseline's cost over a method's, as FedDyn's tables have it."""
    if (baseline.missed and cost.missed) or not cost.mean or not math.isfinite(cost.mean):
        return "–"
    sign = ">" if baseline.missed else "<" if cost.missed else ""
    ratio = baseline.mean / cost.mean
    return f"{sign}{ratio:.1f}×" if ratio < 99.95 else f"{sign}{ratio:.0f}×"


def format_cost(cost: OverSeeds, name: str = "") -> str:
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
        return time_unit(value)
    if name == "gradients" and abs(value) >= 1e6:
        return (1e9, "G") if abs(value) >= 1e9 else (1e6, "M")
    return 1, ""


@dataclass(frozen=True)
class FinalMetrics:
    """How a method ended."""

    method: str
    made: str
    seeds: int
    metrics: dict[str, OverSeeds]
    """of the seeds that did not diverge"""
    costs: dict[str, OverSeeds]


def final_table(runs: Runs) -> list[FinalMetrics]:
    """The last metrics of every method and what they cost, over seeds."""
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
    """The server's metrics in the order of a summary, then the user's own and other models'."""
    names = list(metrics)
    return [n for n in METRIC_HEADINGS if n in names] + sorted(
        n for n in names if n not in METRIC_HEADINGS
    )


def format_metric(value: OverSeeds) -> str:
    """A metric over seeds: "0.9731 ± 0.0012"."""
    if not value.values or math.isnan(value.mean):
        return "–"
    if not math.isfinite(value.mean):
        return "∞" if value.mean > 0 else "−∞"
    text = f"{value.mean:.4g}"
    if len(value.values) > 1:
        text += f" ± {value.std:.2g}"
    return text + (f" ({len(value.values)} seeds)" if value.missed else "")
