"""Compare the points of a sweep by the validation part, never by the test part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from undrift.core.records import Record
from undrift.core.targets import Target, reached
from undrift.runs.folder import DONE, OPTIONAL_TEXT, RECORDS, RUN, read_json, run_folder
from undrift.runs.records_file import read_records
from undrift.utils.errors import UndriftError, require, require_choice
from undrift.utils.shapes import require_shapes

METRICS = {"validation_accuracy": "above", "validation_loss": "below"}
"""The metrics that points may be chosen by, and whether larger or smaller values are better."""
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class SweepPoint:
    """One method with its settings: what one process of a sweep runs."""

    label: str
    settings: Mapping[str, Any]
    """by the keys of the `[sweep]` table"""
    id: str
    """hash of everything that determines the result; the name of its folder"""


@dataclass(frozen=True)
class Judge:
    """Compares the points of a sweep.

    A point is rated by the last evaluated value of `metric`, averaged over seeds. If the experiment
    has a target on the validation part, it is rated by the mean number of rounds to the target, and
    `metric` decides between equals. A point that diverged with any seed is the worst. Among equal
    points the first is chosen.

    Parameters
    ----------
    metric
        "validation_accuracy" or "validation_loss"
    seeds
        the seeds of the experiment
    target
        a metric of the validation part with its value; None without a target
    """

    metric: str = "validation_accuracy"
    seeds: Sequence[int] = (0,)
    target: tuple[str, Target] | None = None

    @staticmethod
    def of(metric: str, seeds: Sequence[int], targets: Mapping[str, Target]) -> Judge:
        """The judge of an experiment; raises an error for a metric or target of the test part."""
        if _tested(metric):
            raise UndriftError(
                f"The metric {metric!r} is of the test part, which must not choose settings: use "
                f"one of {', '.join(METRICS)}."
            )
        require_choice("The metric of a sweep", metric, METRICS)
        for name in targets:
            require(
                not _tested(name),
                f"target.{name} would stop the points of a sweep by the test part: use "
                f"target.{name.replace('test_', 'validation_')}, or take it out.",
            )
        own = [(n, t) for n, t in targets.items() if n.startswith("validation_")]
        return Judge(metric, tuple(seeds), own[0] if own else None)

    @property
    def rule(self) -> str:
        """How the best point is chosen, in words."""
        best = "highest" if METRICS[self.metric] == "above" else "lowest"
        last = f"{best} last evaluated {self.metric}"
        over = f"mean over {len(self.seeds)} seeds" if len(self.seeds) > 1 else "one seed"
        if self.target is None:
            return f"{last} ({over})"
        name, value = self.target
        value = value[1] if isinstance(value, tuple) else value
        return f"fewest rounds to {name} {value:g}, then {last} ({over})"

    def verdict(self, point: SweepPoint, folder: Path) -> PointResult:
        """The result of a point, from the run folder it was run in."""
        runs = []
        for seed in self.seeds:
            own = run_folder(folder, point.label, seed)
            about = read_json(own / RUN) if (own / RUN).is_file() else {}
            require_shapes(own / RUN, about, {"status": OPTIONAL_TEXT, "reason": OPTIONAL_TEXT})
            if about.get("status") not in DONE:
                return PointResult(point, UNFINISHED)
            runs.append((own, about))
        for own, about in runs:
            if about["status"] == "diverged":
                return PointResult(point, "diverged", reason=about.get("reason") or f"see {own}")
        values, rounds = [], []
        for own, _ in runs:
            records = read_records(own / RECORDS)
            found = [r.metrics[self.metric] for r in records if self.metric in r.metrics]
            require(
                len(found) > 0,
                f"{own / RECORDS} has no {self.metric}: for targets that are not classes, choose "
                f"by validation_loss.",
            )
            values.append(found[-1])
            rounds.append(self._rounds(records))
        if not all(math.isfinite(value) for value in values):
            return PointResult(point, "diverged", values, reason=f"{self.metric} is not finite")
        return PointResult(point, "finished", values, rounds if self.target else [])

    def _rounds(self, records: Sequence[Record]) -> float:
        """The number of rounds to the target; infinity if it was not reached."""
        if self.target is None:
            return math.inf
        name, goal = self.target
        for record in records:
            if name in record.metrics and reached({name: goal}, record.metrics):
                return record.round
        return math.inf

    def cost(self, verdict: PointResult) -> tuple[float, float]:
        """The rating of a point: smaller is better, and the first number counts first."""
        if verdict.status != "finished":
            return (math.inf, math.inf)
        value = fmean(verdict.values)
        value = -value if METRICS[self.metric] == "above" else value
        return (fmean(verdict.rounds) if self.target else 0.0, value)

    def best(self, verdicts: Sequence[PointResult]) -> PointResult | None:
        """The best of a method's points; None if none finished."""
        usable = [each for each in verdicts if each.status == "finished"]
        return min(usable, key=self.cost, default=None)  # the first of equals, as `min` returns


@dataclass(frozen=True)
class PointResult:
    """The result of a point, whose status is "finished", "diverged", "failed" or "unfinished"."""

    point: SweepPoint
    status: str
    values: Sequence[float] = ()
    """the metric for each seed"""
    rounds: Sequence[float] = ()
    """rounds to the target for each seed; empty without a target"""
    reason: str | None = None


def _tested(metric: str) -> bool:
    return metric.rpartition("/")[2].startswith("test_")
