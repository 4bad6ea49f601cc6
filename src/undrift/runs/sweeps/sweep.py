"""Sweeps: every method tuned on its own grid, or by a search, and judged on the validation part.

The `[sweep]` table of an experiment has dotted keys. A list is a grid, and all lists together their
product; a table `{low = 1e-3, high = 1, log = true}` is a range for Optuna's search. A key that
begins with `method.LABEL.` concerns that method alone; every other one is shared. A point is one
method with its own settings: the shared keys times the method's.

Every point has its folder, named by what it computes, so that a sweep that was killed, or whose
grid has grown, runs only what is missing.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from undrift.experiments.experiment import Experiment
from undrift.experiments.settings import applied
from undrift.runs.folder import locked_folder, write_json
from undrift.runs.sweeps.grids import Space, canonical, digest, spaces
from undrift.runs.sweeps.judging import Judge, Point, Verdict
from undrift.runs.sweeps.search import Search
from undrift.runs.sweeps.workers import Workers
from undrift.utils.display import progress
from undrift.utils.errors import UndriftError, require, require_whole
from undrift.utils.files import slug, written_whole

TRIALS = 20
"""How many points of a range are tried for a method if nobody says."""
UNDRIFT = (sys.executable, "-m", "undrift")
POINTS, SEARCH, JSON, CSV, BEST = "points", "search.sqlite", "sweep.json", "sweep.csv", "best"
NOT_COMPUTED = ("name", "output", "sweep")
"""What an experiment says besides what is computed."""


@dataclass
class Outcome:
    """What a sweep found.

    Parameters
    ----------
    folder
        where the points and the results are
    judge
        how points were compared
    verdicts
        of every point, method by method
    files
        the experiments with the best settings: one, if the methods agree on what is not theirs
    """

    folder: Path
    judge: Judge
    verdicts: dict[str, list[Verdict]]
    files: Sequence[Path] = field(default_factory=list)

    def best(self) -> dict[str, Verdict]:
        """The chosen point of every method that has a usable one."""
        found = {label: self.judge.best(each) for label, each in self.verdicts.items()}
        return {label: each for label, each in found.items() if each is not None}

    def folders(self) -> dict[str, Path]:
        """The run folders of the chosen points, for the report."""
        return {k: self.folder / POINTS / each.point.id for k, each in self.best().items()}

    def failed(self) -> list[Verdict]:
        """The points whose process failed."""
        return [v for each in self.verdicts.values() for v in each if v.status == "failed"]

    def table(self) -> Table:
        """The best of every method."""
        table = Table(title=f"chosen by {self.judge.rule}", title_justify="left")
        headings = ["method", "best settings", self.judge.metric]
        headings += ["rounds to target"] if self.judge.target else []
        for number, heading in enumerate([*headings, "points"]):
            table.add_column(heading, justify="left" if number < 2 else "right")
        best = self.best()
        for label, verdicts in self.verdicts.items():
            chosen = best.get(label)
            row = [label, "none is usable", "–"] if chosen is None else self._row(chosen)
            if self.judge.target:
                row.append("–" if chosen is None else _rounds(fmean(chosen.rounds)))
            table.add_row(*(escape(cell) for cell in [*row, _counts(verdicts)]))
        return table

    def _row(self, chosen: Verdict) -> list[str]:
        point = chosen.point
        own = f"method.{point.label}."
        settings = [f"{k.removeprefix(own)} = {v}" for k, v in point.settings.items()]
        return [point.label, "\n".join(settings) or "as in the file", _spread(chosen.values)]

    def write(self) -> None:
        """Write all points as `sweep.json` and `sweep.csv`, each whole."""
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


def run_sweep(
    path: Path,
    out: Path | None = None,
    *,
    jobs: int = 1,
    metric: str = "validation_accuracy",
    trials: int | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    command: Sequence[str] = UNDRIFT,
) -> Outcome:
    """Run every point of an experiment's sweep that was not run yet, and choose the best.

    Parameters
    ----------
    path
        the experiment file
    out
        where points and results go; otherwise the experiment's folder with "-sweep"
    jobs
        how many points to run at a time, each in its own process
    metric
        what to choose by: "validation_accuracy" or "validation_loss"
    trials
        how many points of a method to try where there are ranges
    settings
        changes to the file, by dotted keys
    progress
        whether to show a bar
    command
        what runs `undrift`
    """
    jobs = require_whole("jobs", jobs, at_least=1)
    sweep = _Sweep(path, settings or {}, metric, trials)
    folder = out or Path(f"{sweep.experiment.output.folder}-sweep")
    place = folder / POINTS
    with locked_folder(folder):
        place.mkdir(exist_ok=True)

        def start(point: Point, own: Path) -> list[str]:
            # A file of its own: what a point computes does not change if the user edits theirs.
            file = place / f"{point.id}.toml"
            sweep.at(point.label, point.settings).write(file)
            return [*command, "run", str(file), "--out", str(own), "--quiet"]

        def resume(own: Path) -> list[str]:
            return [*command, "resume", str(own), "--quiet"]

        workers = Workers(place, jobs, start, resume)
        outcome = Outcome(folder, sweep.judge, {label: [] for label in sweep.spaces})
        with _bar(sweep.total, progress) as bar:

            def note(verdict: Verdict) -> None:
                outcome.verdicts[verdict.point.label].append(verdict)
                outcome.write()
                bar(outcome, verdict.point.label)

            grids = [space for space in sweep.spaces.values() if not space.ranges]
            points = _unique(sweep.point(s.label, one) for s in grids for one in s.grid())
            workers.run(points, sweep.judge, note)
            for space in sweep.spaces.values():
                if space.ranges:
                    _search(sweep, space, workers, note)
        order = {point.id: number for number, point in enumerate(points)}
        for space in grids:  # as they are written, not as they ended: the first of equals is chosen
            outcome.verdicts[space.label].sort(key=lambda each: order[each.point.id])
        outcome.files = sweep.write_best(outcome)
        outcome.write()
    return outcome


def _unique(points: Iterable[Point]) -> list[Point]:
    """Every point once: settings of other words may compute the same."""
    found: dict[str, Point] = {}
    for point in points:
        found.setdefault(point.id, point)
    return list(found.values())


def _search(sweep: _Sweep, space: Space, workers: Workers, note: Callable[[Verdict], None]) -> None:
    """As many points of a method's ranges as were asked for."""
    search = Search(space, workers.folder.parent / SEARCH, sweep.searched(space))
    seen: set[str] = set()

    def run(trials: Mapping[int, Mapping[str, Any]]) -> dict[int, Verdict]:
        points = {number: sweep.point(space.label, each) for number, each in trials.items()}
        found = workers.run(_unique(points.values()), sweep.judge)
        verdicts = {number: found[point.id] for number, point in points.items()}
        for verdict in verdicts.values():
            if verdict.point.id not in seen:
                seen.add(verdict.point.id)
                note(verdict)
        return verdicts

    run(search.told())  # of an earlier sitting: their folders are there
    for trials in search.trials(sweep.trials, workers.jobs):
        verdicts = run(trials)
        if any(verdict.status == "failed" for verdict in verdicts.values()):
            return  # it is not known what the point costs: the next sweep tries again
        for number, verdict in verdicts.items():
            search.tell(number, sweep.judge.cost(verdict))


class _Sweep:
    """An experiment and the points of its sweep, checked before anything runs."""

    def __init__(self, path: Path, given: Mapping[str, Any], metric: str, trials: int | None):
        self._path = path
        self.experiment = Experiment.load(path, given)
        self._base = self.experiment.resolved() | {"sweep": {}}
        self._methods = {table["label"]: table for table in self._base["method"]}
        targets = {
            k: tuple(v) if isinstance(v, list) else v for k, v in self._base["target"].items()
        }
        self.judge = Judge.of(metric, self.experiment.seeds, targets)
        require(
            "validation" in self._base["data"],
            f"{path} has no validation part to choose settings by: add validation = 0.1 to its "
            f"[data].",
        )
        try:
            self.experiment.evaluation.build().require_measured("The metric", metric)
        except UndriftError as error:
            raise UndriftError(f"{path}: {error}") from None
        self.spaces = spaces(self.experiment.sweep, self._base["method"])
        changes_loss = any(key.partition(".")[0] == "loss" for key in self.experiment.sweep)
        require(
            not changes_loss or metric != "validation_loss",
            "[sweep] changes the loss, so its points cannot be compared by validation_loss: use "
            "--metric validation_accuracy.",
        )
        if trials is not None:
            require_whole("trials", trials, at_least=1)
            require(
                any(space.ranges for space in self.spaces.values()),
                "trials is for a search, but [sweep] has lists only: give a key a table "
                "{low = …, high = …} to search in.",
            )
        self.trials = trials or TRIALS
        for space in self.spaces.values():  # a mistake at any point is said before the first runs
            for one in space.grid():
                self.at(space.label, {**one, **{k: r.low for k, r in space.ranges.items()}})

    @property
    def total(self) -> int:
        """How many points there are."""
        each = self.spaces.values()
        return sum(self.trials if space.ranges else len(space.grid()) for space in each)

    def at(self, label: str, settings: Mapping[str, Any]) -> Experiment:
        """The experiment of a point: one method."""
        return self._with([label], self._changes(label, settings))

    def point(self, label: str, settings: Mapping[str, Any]) -> Point:
        """A point, named by all that is computed there."""
        resolved = self.at(label, settings).resolved()
        computed = {key: value for key, value in resolved.items() if key not in NOT_COMPUTED}
        return Point(label, dict(settings), digest(computed))

    def searched(self, space: Space) -> str:
        """A name for what is searched, and how it is judged."""
        ranges = {key: vars(each) for key, each in space.ranges.items()}
        return digest([self.point(space.label, {}).id, space.lists, ranges, self.judge.rule])

    def write_best(self, outcome: Outcome) -> list[Path]:
        """The best settings as experiment files: one for all, or one each where they disagree."""
        for file in outcome.folder.glob(f"{BEST}*.toml"):  # of an earlier sitting
            file.unlink()
        changes = {k: self._changes(k, v.point.settings) for k, v in outcome.best().items()}
        shared = [{k: v for k, v in c.items() if not _own(k)} for c in changes.values()]
        if len({canonical(each) for each in shared}) == 1:
            merged = {key: value for each in changes.values() for key, value in each.items()}
            return [self._write(outcome.folder / f"{BEST}.toml", list(changes), merged)]
        return [
            self._write(outcome.folder / f"{BEST}-{slug(label)}.toml", [label], each)
            for label, each in changes.items()
        ]

    def _write(self, file: Path, labels: Sequence[str], changes: Mapping[str, Any]) -> Path:
        place = {"output.folder": str(file.with_suffix("").absolute())}
        self._with(labels, {**changes, **place}).write(file)
        return file

    def _with(self, labels: Sequence[str], changes: Mapping[str, Any]) -> Experiment:
        """The experiment with some of its methods, and some of its values changed."""
        raw = applied(self._base, changes)
        raw["method"] = [table for table in raw["method"] if table["label"] in labels]
        return Experiment.from_dict(raw, folder=self._path.parent, where=str(self._path))

    def _changes(self, label: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as changes to the file that concern one method as far as they can.

        A key of [local] becomes one of the method's own `local`: so it has its way where the
        method changes [local] already, and the best of all methods fit into one file.
        """
        number = list(self._methods).index(label)
        own = self._methods[label].get("local", {})
        found: dict[str, Any] = {}
        for key, value in settings.items():
            first, *path = key.split(".")
            if first != "local":
                found[key] = value
                continue
            place = f"method.{number}.local.{path[0]}"
            if len(path) > 1:  # inside a schedule, of which the method's own has to be whole
                before = own.get(path[0], self._base["local"].get(path[0], {}))
                inside = {path[0]: found.get(place, before)}
                value = applied(inside, {".".join(path): value})[path[0]]
            found[place] = value
        return found


def _own(key: str) -> bool:
    """Whether a key concerns one method alone."""
    return key.startswith("method.")


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[Outcome, str], None]]:
    """A bar over the points, with the best so far of the method at hand."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True),
    )
    with progress(*columns, shown=None if shown else False) as bars:
        task = bars.add_task("points", total=total, note="")

        def advance(outcome: Outcome, label: str) -> None:
            best = outcome.best().get(label)
            note = "" if best is None else f"{escape(label)}: {fmean(best.values):.4f} at best"
            done = sum(len(each) for each in outcome.verdicts.values())
            bars.update(task, completed=done, note=note)

        yield advance


def _row(verdict: Verdict, chosen: bool) -> dict[str, Any]:
    """A point as a row of the results."""
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
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _cell(value: object) -> object:
    return value if isinstance(value, str | int | float) else canonical(value)


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.4f}" + (f" ± {pstdev(values):.4f}" if len(values) > 1 else "")


def _rounds(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else "not reached"


def _counts(verdicts: Sequence[Verdict]) -> str:
    """How many points there were, and what became of the others."""
    found = Counter(each.status for each in verdicts)
    others = [f"{n} {status}" for status, n in found.items() if status != "finished"]
    return ", ".join([str(len(verdicts)), *others])
