"""Sweeps: tune every method on its own grid or by a search, chosen by the validation part.

The `[sweep]` table of an experiment has dotted keys. Lists form a grid, their product; a table
`{low = 1e-3, high = 1, log = true}` is an interval for Optuna's search. A key that begins with
`method.LABEL.` applies to that method alone, every other key to all methods. A point is one method
with one choice of settings.

Every point has its own run folder, named by a hash of its settings, so that a sweep that was killed
or whose grid has grown runs only the missing points.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from undrift.experiments.experiment import Experiment
from undrift.experiments.settings import applied
from undrift.runs.folder import locked_folder
from undrift.runs.sweeps.grids import Space, canonical, digest, spaces
from undrift.runs.sweeps.judging import Judge, PointResult, SweepPoint
from undrift.runs.sweeps.results import POINTS, SweepResult, spread
from undrift.runs.sweeps.search import Search
from undrift.runs.sweeps.workers import Workers
from undrift.utils.display import progress, progress_is_visible
from undrift.utils.errors import UndriftError, require, require_whole
from undrift.utils.files import slug

TRIALS = 20
"""Number of points that a search tries for each method by default."""
UNDRIFT = (sys.executable, "-m", "undrift")
SEARCH, BEST = "search.sqlite", "best"
NOT_COMPUTED = ("name", "output", "sweep")
"""The keys of an experiment that do not change its results."""


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
) -> SweepResult:
    """Run the points of an experiment's sweep that were not run yet, and choose the best.

    Parameters
    ----------
    path
        the experiment file
    out
        the folder of points and results; by default the experiment's run folder with "-sweep"
    jobs
        number of points to run at a time, each in its own process
    metric
        the metric to choose by: "validation_accuracy" or "validation_loss"
    trials
        number of points to try for each method, if [sweep] has intervals
    settings
        values by dotted keys that replace those of the file
    progress
        whether to show a progress bar
    command
        the command that runs `undrift`
    """
    jobs = require_whole("jobs", jobs, at_least=1)
    sweep = _Sweep(path, settings or {}, metric, trials)
    folder = out or Path(f"{sweep.experiment.output.folder}-sweep")
    place = folder / POINTS
    with locked_folder(folder):
        place.mkdir(exist_ok=True)

        def start(point: SweepPoint, own: Path) -> list[str]:
            # Written to a separate file, so that edits of the user's file do not change a point.
            file = place / f"{point.id}.toml"
            sweep.at(point.label, point.settings).write(file)
            return [*command, "run", str(file), "--out", str(own), "--quiet"]

        def resume(own: Path) -> list[str]:
            return [*command, "resume", str(own), "--quiet"]

        workers = Workers(place, jobs, start, resume)
        lists = {label: space.lists for label, space in sweep.spaces.items()}
        verdicts: dict[str, list[PointResult]] = {label: [] for label in sweep.spaces}
        result = SweepResult(folder, sweep.judge, verdicts, lists=lists)
        with _progress_of_points(sweep.total, progress) as show:

            def note(verdict: PointResult) -> None:
                result.verdicts[verdict.point.label].append(verdict)
                result.write()
                show(result, verdict)

            grids = [space for space in sweep.spaces.values() if not space.ranges]
            points = _unique(sweep.point(s.label, one) for s in grids for one in s.grid())
            workers.run(points, sweep.judge, note)
            for space in sweep.spaces.values():
                if space.ranges:
                    _search(sweep, space, workers, note)
        order = {point.id: number for number, point in enumerate(points)}
        for space in grids:  # in the order of the grid, because the first of equals is chosen
            result.verdicts[space.label].sort(key=lambda each: order[each.point.id])
        result.files = sweep.write_best(result)
        result.write()
    return result


def _unique(points: Iterable[SweepPoint]) -> list[SweepPoint]:
    """The points without duplicates: different settings may describe the same computation."""
    found: dict[str, SweepPoint] = {}
    for point in points:
        found.setdefault(point.id, point)
    return list(found.values())


def _search(
    sweep: _Sweep, space: Space, workers: Workers, note: Callable[[PointResult], None]
) -> None:
    """Search the intervals of one method by `sweep.trials` points."""
    search = Search(space, workers.folder.parent / SEARCH, sweep.searched(space))
    seen: set[str] = set()

    def run(trials: Mapping[int, Mapping[str, Any]]) -> dict[int, PointResult]:
        points = {number: sweep.point(space.label, each) for number, each in trials.items()}
        found = workers.run(_unique(points.values()), sweep.judge)
        verdicts = {number: found[point.id] for number, point in points.items()}
        for verdict in verdicts.values():
            if verdict.point.id not in seen:
                seen.add(verdict.point.id)
                note(verdict)
        return verdicts

    run(search.finished())  # of an earlier sweep: their results are read from their folders
    for trials in search.trials(sweep.trials, workers.jobs):
        verdicts = run(trials)
        if any(verdict.status == "failed" for verdict in verdicts.values()):
            return  # a failed point has no rating, so the next sweep tries it again
        for number, verdict in verdicts.items():
            search.tell(number, sweep.judge.cost(verdict))


class _Sweep:
    """An experiment and the points of its sweep, all checked before anything runs."""

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
        changes_loss = any(
            key.partition(".")[0] in ("loss", "step") for key in self.experiment.sweep
        )
        require(
            not changes_loss or metric != "validation_loss",
            "[sweep] changes the loss, so its points cannot be compared by validation_loss: use "
            "--metric validation_accuracy.",
        )
        if trials is not None:
            require_whole("trials", trials, at_least=1)
            require(
                any(space.ranges for space in self.spaces.values()),
                "trials is for a search, but [sweep] has lists only: give a key an interval "
                "{low = …, high = …}.",
            )
        self.trials = trials or TRIALS
        for space in self.spaces.values():  # so that a mistake in any point is reported first
            for one in space.grid():
                self.at(space.label, {**one, **{k: r.low for k, r in space.ranges.items()}})

    @property
    def total(self) -> int:
        """The number of points."""
        each = self.spaces.values()
        return sum(self.trials if space.ranges else len(space.grid()) for space in each)

    def at(self, label: str, settings: Mapping[str, Any]) -> Experiment:
        """The experiment of a point: one method with its settings."""
        return self._with([label], self._changes(label, settings))

    def point(self, label: str, settings: Mapping[str, Any]) -> SweepPoint:
        """A point with its hash."""
        resolved = self.at(label, settings).resolved()
        computed = {key: value for key, value in resolved.items() if key not in NOT_COMPUTED}
        return SweepPoint(label, dict(settings), digest(computed))

    def searched(self, space: Space) -> str:
        """The name of a method's search: a hash of its space and of how points are compared."""
        ranges = {key: vars(each) for key, each in space.ranges.items()}
        return digest([self.point(space.label, {}).id, space.lists, ranges, self.judge.rule])

    def write_best(self, result: SweepResult) -> list[Path]:
        """Write the best settings: one experiment file, or one per method if shared keys differ."""
        for file in result.folder.glob(f"{BEST}*.toml"):  # of an earlier sweep
            file.unlink()
        changes = {k: self._changes(k, v.point.settings) for k, v in result.best().items()}
        shared = [{k: v for k, v in c.items() if not _own(k)} for c in changes.values()]
        if len({canonical(each) for each in shared}) == 1:
            merged = {key: value for each in changes.values() for key, value in each.items()}
            return [self._write(result.folder / f"{BEST}.toml", list(changes), merged)]
        return [
            self._write(result.folder / f"{BEST}-{slug(label)}.toml", [label], each)
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
        """Settings as changes to the file that apply to one method where possible.

        A key of [local] becomes a key of the method's own `local`. So it also applies where the
        method changes [local], and the best settings of all methods fit into one file.
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
            if len(path) > 1:
                # A key inside a schedule: the method's own `local` needs the whole schedule.
                before = own.get(path[0], self._base["local"].get(path[0], {}))
                inside = {path[0]: found.get(place, before)}
                value = applied(inside, {".".join(path): value})[path[0]]
            found[place] = value
        return found


def _own(key: str) -> bool:
    """Whether a key applies to one method alone."""
    return key.startswith("method.")


Show = Callable[[SweepResult, PointResult], None]
"""Shows the newest of the points that a sweep has finished."""


@contextmanager
def _progress_of_points(total: int, shown: bool) -> Iterator[Show]:
    """Progress over the points: a bar where one can be seen, else a line per point."""
    if shown and not progress_is_visible():
        yield partial(_print_point, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True),
    )
    with progress(*columns, shown=None if shown else False) as bars:
        task = bars.add_task("points", total=total, note="")

        def advance(result: SweepResult, verdict: PointResult) -> None:
            label = verdict.point.label
            best = result.best().get(label)
            note = "" if best is None else f"{escape(label)}: {fmean(best.values):.4f} at best"
            done = sum(len(each) for each in result.verdicts.values())
            bars.update(task, completed=done, note=note)

        yield advance


def _print_point(total: int, result: SweepResult, verdict: PointResult) -> None:
    """Print a point that is done as one line to standard error, for files and pipes."""
    point, done = verdict.point, sum(len(each) for each in result.verdicts.values())
    settings = ", ".join(f"{key} = {value}" for key, value in point.settings.items())
    value = spread(verdict.values) if verdict.status == "finished" else verdict.status
    line = f"{done}/{total}  {point.label}  {settings or 'as in the file'}: {value}"
    print(line, file=sys.stderr, flush=True)
