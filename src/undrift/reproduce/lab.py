"""Executes the runs of a reproduction in one folder, and resumes or reads those already there."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from undrift.data.federated import FederatedData
from undrift.experiments.building import build_data
from undrift.experiments.experiment import Experiment
from undrift.experiments.settings import applied
from undrift.experiments.tables import DataTable
from undrift.report.recorded_runs import Runs, read_runs
from undrift.reproduce.reproduction import Reproduction
from undrift.runs.experiment_runs import claim, run_experiment
from undrift.runs.folder import (
    EXPERIMENT,
    locked_folder,
    read_json,
    run_folder,
    write_description,
    write_json,
)
from undrift.runs.observers import make_observer
from undrift.runs.storage import ended
from undrift.utils.errors import UndriftError, require, require_choice
from undrift.utils.files import slug

Value = TypeVar("Value")
RUNS, KEPT, TIMES, DONE = "runs", "kept", "times.json", "done.json"


class Interrupted(UndriftError):
    """Ctrl-C was pressed; the same command resumes."""


class Lab:
    """Executes, resumes or reads the runs of a reproduction in a folder.

    Parameters
    ----------
    reproduction
        the reproduction
    folder
        where its runs are stored
    quick
        whether to run the reduced version
    seeds
        number of seeds, which count from 0
    parts
        parts to run, besides those that the folder already has; by default all
    console
        where progress is printed; None prints nothing
    """

    def __init__(
        self,
        reproduction: Reproduction,
        folder: Path,
        quick: bool = False,
        seeds: int = 1,
        parts: Sequence[str] = (),
        console: Console | None = None,
    ):
        self.reproduction = reproduction
        self.folder = folder
        self.quick = quick
        self.seeds = list(range(seeds))
        self.most_seeds = seeds
        """the largest number of seeds of a cell: a folder may already have more than asked for"""
        self.parts = self._parts(parts)
        """parts to run, in the order of the reproduction"""
        self._asked = parts
        self._seeds = self.seeds
        """seeds of the current part"""
        self.console = console or Console(quiet=True)
        self.folders: list[Path] = []
        """run folders of the cells that were run"""
        self._data: tuple[DataTable, FederatedData] | None = None
        """the last data set, with the table it was built from"""

    def begin(self, part: str) -> None:
        """Say that the next runs are of this part.

        Parts that were not asked for, but are in the folder, keep the seeds they have.
        """
        self._seeds = self.seeds if not self._asked or part in self._asked else [0]

    def either(self, full: Value, quick: Value) -> Value:
        """Return one value in a full run, another in a quick one."""
        return quick if self.quick else full

    def run(
        self,
        cell: str,
        settings: Mapping[str, Any] | None = None,
        only: Sequence[str] | None = None,
        file: str | None = None,
        most_seeds: int | None = None,
    ) -> Runs:
        """Execute or resume the runs of the reproduction's experiment file, and return them.

        Parameters
        ----------
        cell
            name of these runs, which is also that of their folder
        settings
            keys of the file to change, as in `undrift run --set key=value`
        only
            labels of the methods to run; by default all
        file
            the experiment file; by default the reproduction's own
        most_seeds
            most seeds of these runs, such as 1 for runs that tune a parameter
        """
        experiment = self._experiment(cell, settings or {}, only, file, most_seeds)
        folder = self.folder / RUNS / slug(cell)
        experiment = _with_earlier_seeds(experiment, folder)
        self.most_seeds = max(self.most_seeds, len(experiment.seeds))
        self.folders.append(folder)
        claim(experiment, folder, extend=True)
        if not _all_ended(experiment, folder):
            self.console.print(f"{self.reproduction.name}: {cell}", style="bold")
            with self._timed(f"{RUNS}/{slug(cell)}"):
                self._do(experiment, folder)
        return read_runs(folder)

    def _do(self, experiment: Experiment, folder: Path) -> None:
        labels, seeds = experiment.labels, len(experiment.seeds)
        with make_observer(labels, experiment.rounds, seeds, self.console.quiet) as watcher:
            data = self._data_of(experiment)
            outcomes = run_experiment(experiment, folder, data, watcher, extend=True)
        if len(outcomes) < len(labels) * seeds or any(o.status == "interrupted" for o in outcomes):
            raise Interrupted("Interrupted: run the same command to resume.")

    def _data_of(self, experiment: Experiment) -> FederatedData:
        """Return the data of an experiment; consecutive experiments share equal data."""
        if self._data is None or self._data[0] != experiment.data:
            self._data = (experiment.data, build_data(experiment))
        return self._data[1]

    def keep(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what a function computes, as plain values; later calls read the stored result."""
        path = self.folder / KEPT / f"{slug(name)}.json"
        if path.is_file():
            return _read_keys(path, "value")["value"]
        self.console.print(f"{self.reproduction.name}: {name}", style="bold")
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._timed(f"{KEPT}/{slug(name)}"):
            value = compute()
        write_json(path, {"value": value})
        return json.loads(path.read_text("utf-8"))["value"]

    def _parts(self, wanted: Sequence[str]) -> list[str]:
        """Return the wanted parts and those that were completed before."""
        every = self.reproduction.parts
        for part in wanted:
            require(bool(every), f"{self.reproduction.name} has no parts: leave out --part.")
            require_choice(f"The part of {self.reproduction.name}", part, every)
        before: list[str] = []
        path = self.folder / DONE
        if path.is_file():
            done = _read_keys(path, "quick", "parts")
            before = done["parts"]
            require(
                done["quick"] == self.quick,
                f"{self.folder} holds the {'quick' if done['quick'] else 'full'} version: choose "
                f"another folder with --out.",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"quick": self.quick, "parts": before})
        return [part for part in every if part in (*(wanted or every), *before)]

    def done(self) -> None:
        """Mark the parts as completed: findings include them from now on."""
        write_json(self.folder / DONE, {"quick": self.quick, "parts": self.parts})

    @property
    def seconds(self) -> float:
        """Seconds that all runs took, except time lost when the process was killed."""
        times = self.folder / TIMES
        return sum(read_json(times).values()) if times.is_file() else 0.0

    def _experiment(
        self,
        cell: str,
        settings: Mapping[str, Any],
        only: Sequence[str] | None,
        file: str | None,
        most_seeds: int | None,
    ) -> Experiment:
        name = file or f"{self.reproduction.name.partition('-')[2].replace('-', '_')}.toml"
        path = files(f"undrift.reproduce.{self.reproduction.paper.lower()}") / name
        quick = dict(self.reproduction.quick) if self.quick else {}
        given = {
            "output.durability": "process",  # safe if the process is killed, not on power loss
            **quick,
            **settings,
            "name": f"{self.reproduction.name}: {cell}",
            "seeds": self._seeds[:most_seeds],
        }
        place = Path(str(path))
        if only is None:
            return Experiment.load(place, given)
        # Methods that are not run need not fit the settings: FedPD fits no sampling of clients.
        tables = applied(tomllib.loads(place.read_text(encoding="utf-8")), given)
        methods = {table.get("label", table["name"]): table for table in tables["method"]}
        for label in only:
            require_choice("The method", label, tuple(methods))
        tables["method"] = [table for label, table in methods.items() if label in only]
        return Experiment.from_dict(tables, folder=place.parent)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Add the seconds of the block to those of earlier calls for the same part."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            times = self.folder / TIMES
            self.folder.mkdir(parents=True, exist_ok=True)
            before = read_json(times) if times.is_file() else {}
            write_json(times, {**before, part: before.get(part, 0.0) + took})


def _read_keys(path: Path, *keys: str) -> dict[str, Any]:
    """Read a file of the lab and check that it has these keys."""
    found = read_json(path)
    for key in keys:
        require(key in found, f"{path} has no {key!r}: remove the file to compute it again.")
    return found


def _all_ended(experiment: Experiment, folder: Path) -> bool:
    """Whether all runs of the experiment have ended."""
    return all(
        ended(run_folder(folder, label, seed), experiment.rounds)
        for label in experiment.labels
        for seed in experiment.seeds
    )


def _with_earlier_seeds(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment with the seeds that its folder already has added."""
    path = folder / EXPERIMENT
    if not path.is_file():
        return experiment
    earlier = Experiment.load(path)
    seeds = sorted({*earlier.seeds, *experiment.seeds})
    experiment = Experiment.from_dict({**experiment.resolved(), "seeds": seeds})
    # An experiment that differs only in seeds and rounds is the same; `claim` accepts more rounds
    # and rejects any other difference.
    same = {**earlier.resolved(), "seeds": seeds}
    if Experiment.from_dict({**same, "rounds": experiment.rounds}) == experiment:
        with locked_folder(folder):
            write_description(path, Experiment.from_dict(same).to_toml())
    return experiment
