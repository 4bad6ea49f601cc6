"""Computes numbers and lines of a reproduction from its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from undrift.core.targets import Target
from undrift.report.recorded_runs import MethodRuns, RunFiles, Runs
from undrift.report.tables import OverSeeds, target_table
from undrift.reproduce.figure import Line, line_over_seeds


def method_runs(runs: Runs, label: str) -> MethodRuns:
    """Return the runs of a method, one per seed."""
    return next(each for each in runs.groups if each.runs[0].label == label)


def labels(runs: Runs) -> list[str]:
    """Return the labels of the methods, in the order of the experiment file."""
    return [each.runs[0].label for each in runs.groups]


def final(runs: Runs, label: str, metric: str, last: int = 1) -> OverSeeds:
    """Return the mean of the last values of a metric; infinity for a run that diverged."""
    values = []
    for run in method_runs(runs, label).runs:
        history = [r.metrics[metric] for r in run.records if metric in r.metrics]
        diverged = run.status == "diverged" or not history
        values.append(math.inf if diverged else fmean(history[-last:]))
    return OverSeeds(tuple(values))


def best(runs: Runs, label: str, metric: str, falls: bool = False) -> OverSeeds:
    """Return the best value of a metric of each seed; the lowest if `falls`."""
    choose = min if falls else max
    values = []
    for run in method_runs(runs, label).runs:
        history = [r.metrics[metric] for r in run.records if metric in r.metrics]
        values.append(choose((v for v in history if math.isfinite(v)), default=math.nan))
    return OverSeeds(tuple(values))


def cost(
    runs: Runs, label: str, metric: str, target: Target, unit: str = "rounds", smooth: int = 1
) -> OverSeeds:
    """Return what a method spent until it first reached a target.

    Parameters
    ----------
    unit
        the cost, one of `undrift.report.recorded_runs.COSTS`
    smooth
        number of evaluations over which the metric is averaged
    """
    if smooth == 1:
        own = method_runs(runs, label).label
        return next(
            row.costs[unit] for row in target_table(runs, [(metric, target)]) if row.method == own
        )
    direction, value = target if isinstance(target, tuple) else ("above", target)
    values, missed = [], 0
    for run in method_runs(runs, label).runs:
        spent = method_runs(runs, label).totals(run)[unit]
        at = [number for number, r in enumerate(run.records) if metric in r.metrics]
        history = smoothed([run.records[number].metrics[metric] for number in at], smooth)
        hits = [v <= value if direction == "below" else v >= value for v in history]
        missed += not any(hits)
        values.append(spent[at[hits.index(True)]] if any(hits) else spent[-1])
    return OverSeeds(tuple(values), missed)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and the `window` − 1 values before it."""
    return [fmean(values[max(0, at + 1 - window) : at + 1]) for at in range(len(values))]


def line(
    runs: Runs,
    label: str,
    metric: str,
    against: str = "rounds",
    name: str | None = None,
    dash: str = "",
    minus: float = 0.0,
    smooth: int = 1,
) -> Line:
    """Return the line of a metric against a cost: the mean over seeds, with their deviation.

    The line ends where the first seed ends. `minus` is subtracted, for example the optimal loss.
    """
    own = method_runs(runs, label)
    curves = [_curve(own, run, metric, against, smooth) for run in own.runs]
    shortest = min(len(x) for x, _ in curves)
    x = [fmean(each) for each in zip(*(x[:shortest] for x, _ in curves), strict=True)]
    columns = [
        [value - minus for value in each]
        for each in zip(*(y[:shortest] for _, y in curves), strict=True)
    ]
    return line_over_seeds(name or label, x, columns, dash=dash)


def _curve(
    own: MethodRuns, run: RunFiles, metric: str, against: str, smooth: int
) -> tuple[list[float], list[float]]:
    spent = own.totals(run)[against]
    at = [number for number, record in enumerate(run.records) if metric in record.metrics]
    values = smoothed([run.records[number].metrics[metric] for number in at], smooth)
    return [spent[number] for number in at], values
