"""The results of a sweep: every point with its rating, and the best of every method."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from rich.markup import escape
from rich.table import Table

from undrift.runs.folder import write_json
from undrift.runs.sweeps.grids import canonical
from undrift.runs.sweeps.judging import Judge, PointResult
from undrift.utils.files import written_whole

POINTS, JSON, CSV = "points", "sweep.json", "sweep.csv"


@dataclass
class SweepResult:
    """The results of a sweep.

    Parameters
    ----------
    folder
        the folder of the points and the results
    judge
        how points were compared
    verdicts
        the results of all points, by the label of the method
    files
        the experiment files with the best settings: one if the methods agree on shared keys
    lists
        the values of the grid by key, for each method's label
    """

    folder: Path
    judge: Judge
    verdicts: dict[str, list[PointResult]]
    files: Sequence[Path] = field(default_factory=list)
    lists: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)

    def best(self) -> dict[str, PointResult]:
        """The best point of every method of which a point finished."""
        found = {label: self.judge.best(each) for label, each in self.verdicts.items()}
        return {label: each for label, each in found.items() if each is not None}

    def folders(self) -> dict[str, Path]:
        """The run folders of the best points, for the report."""
        return {k: self.folder / POINTS / each.point.id for k, each in self.best().items()}

    def failed(self) -> list[PointResult]:
        """The points whose process failed."""
        return [v for each in self.verdicts.values() for v in each if v.status == "failed"]

    def at_the_edge(self) -> list[str]:
        """A sentence for each setting whose best value is the smallest or largest of its list."""
        found = []
        for label, chosen in self.best().items():
            for key, values in self.lists.get(label, {}).items():
                value = chosen.point.settings[key]
                if len(values) < 2 or not all(map(_is_number, values)):
                    continue
                if value in (min(values), max(values)):
                    side, more = (
                        ("smallest", "smaller")
                        if value == min(values)
                        else (
                            "largest",
                            "larger",
                        )
                    )
                    found.append(
                        f"{label}: the best {key}, {value:g}, is the {side} of its list; try "
                        f"{more} values too."
                    )
        return found

    def table(self) -> Table:
        """A table with the best point of every method."""
        table = Table(title=f"chosen by {self.judge.rule}", title_justify="left")
        headings = ["method", "best settings", self.judge.metric]
        headings += ["rounds to target"] if self.judge.target else []
        for number, heading in enumerate([*headings, "points"]):
            table.add_column(heading, justify="left" if number < 2 else "right")
        best = self.best()
        for label, verdicts in self.verdicts.items():
            chosen = best.get(label)
            row = [label, "no point finished", "–"] if chosen is None else self._row(chosen)
            if self.judge.target:
                row.append("–" if chosen is None else _rounds_text(fmean(chosen.rounds)))
            table.add_row(*(escape(cell) for cell in [*row, _counts(verdicts)]))
        return table

    def _row(self, chosen: PointResult) -> list[str]:
        point = chosen.point
        own = f"method.{point.label}."
        settings = [f"{k.removeprefix(own)} = {v}" for k, v in point.settings.items()]
        return [point.label, "\n".join(settings) or "as in the file", spread(chosen.values)]

    def write(self) -> None:
        """Write all points to `sweep.json` and `sweep.csv`."""
        chosen = {each.point.id for each in self.best().values()}
        rows = [_row(v, v.point.id in chosen) for each in self.verdicts.values() for v in each]
        write_json(
            self.folder / JSON,
            {"metric": self.judge.metric, "rule": self.judge.rule, "points": rows},
        )
        keys = list(dict.fromkeys(key for row in rows for key in row["settings"]))
        text = io.StringIO()
        lines = csv.writer(text)
        metric = self.judge.metric
        lines.writerow(
            ["point", "method", *keys, "status", metric, f"{metric}_std", "rounds", "chosen"]
        )
        for row in rows:
            settings = row["settings"]
            lines.writerow(
                [row["point"], row["method"]]
                + [_cell(settings[key]) if key in settings else "" for key in keys]
                + [row["status"], row["mean"], row["std"], row["rounds_mean"], int(row["chosen"])]
            )
        with written_whole(self.folder / CSV) as partial:
            partial.write_text(text.getvalue(), newline="")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _row(verdict: PointResult, chosen: bool) -> dict[str, Any]:
    """A point as a row of `sweep.json`."""
    values, rounds = list(verdict.values), [_finite(each) for each in verdict.rounds]
    finite = verdict.status == "finished"
    return {
        "point": verdict.point.id,
        "method": verdict.point.label,
        "settings": dict(verdict.point.settings),
        "status": verdict.status,
        "reason": verdict.reason,
        "values": [_finite(value) for value in values],
        "mean": fmean(values) if finite else None,
        "std": pstdev(values) if finite else None,
        "rounds_to_target": rounds,
        "rounds_mean": _finite(fmean(verdict.rounds)) if verdict.rounds else None,
        "chosen": chosen,
    }


def _finite(value: float) -> float | None:
    """The value, or None for infinity and NaN, which JSON lacks."""
    return value if math.isfinite(value) else None


def _cell(value: object) -> object:
    return value if isinstance(value, str | int | float) else canonical(value)


def spread(values: Sequence[float]) -> str:
    """The mean over seeds, with the standard deviation if there are several."""
    return f"{fmean(values):.4f}" + (f" ± {pstdev(values):.4f}" if len(values) > 1 else "")


def _rounds_text(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else "not reached"


def _counts(verdicts: Sequence[PointResult]) -> str:
    """The number of points, and how many did not finish."""
    found = Counter(each.status for each in verdicts)
    others = [f"{n} {status}" for status, n in found.items() if status != "finished"]
    return ", ".join([str(len(verdicts)), *others])
