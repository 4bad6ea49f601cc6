"""Where a reproduction does its runs: each is kept, and none is done twice."""

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
from undrift.report.reading import Runs, read_runs
from undrift.reproduce.reproduction import Reproduction
from undrift.runs.folder import EXPERIMENT, alone_in, read_json, run_folder, write_json
from undrift.runs.planning import claim, run_experiment
from undrift.runs.storage import ended
from undrift.runs.watching import watching
from undrift.utils.errors import UndriftError, require, require_choice
from undrift.utils.files import slug

Value = TypeVar("Value")
RUNS, KEPT, TIMES, DONE = "runs", "kept", "times.json", "done.json"


class Interrupted(UndriftError):
    """Somebody pressed Ctrl-C; the same command goes on."""


class Lab:
    """A folder in which the runs of a reproduction are done, or gone on with.

    Parameters
    ----------
    reproduction
        what is reproduced
    folder
        where its runs are kept
    quick
        whether the reduced version is wanted
    seeds
        how many seeds, counted from 0
    parts
        which of the reproduction's parts to do, besides those that are in the folder already; all
        of them if left out
    console
        where it is said what is being done; None says nothing
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
        """that any of its runs has: a folder may have more already"""
        self.parts = self._parts(parts)
        """of the reproduction, in its order; what it loops over"""
        self.console = console or Console(quiet=True)
        self.folders: list[Path] = []
        """of the runs that were asked for"""
        self._data: tuple[DataTable, FederatedData] | None = None
        """the last data, and what they were built from"""

    def either(self, full: Value, quick: Value) -> Value:
        """One value for a full run, another for a quick one."""
        return quick if self.quick else full

    def run(
        self,
        cell: str,
        settings: Mapping[str, Any] | None = None,
        only: Sequence[str] | None = None,
        file: str | None = None,
    ) -> Runs:
        """Do the runs of the reproduction's experiment file, or what is left of them.

        Parameters
        ----------
        cell
            what these runs are called, among those of the reproduction
        settings
            keys of the file with other values, as `--set` of `undrift run` takes them
        only
            the labels of the methods to run, if not all
        file
            the name of the experiment file, if it is not the reproduction's own
        """
        experiment = self._experiment(cell, settings or {}, only, file)
        folder = self.folder / RUNS / slug(cell)
        experiment = _with_earlier_seeds(experiment, folder)
        self.most_seeds = max(self.most_seeds, len(experiment.seeds))
        self.folders.append(folder)
        claim(experiment, folder)
        if not _all_ended(experiment, folder):
            self.console.print(f"{self.reproduction.name}: {cell}", style="bold")
            with self._timed(f"{RUNS}/{slug(cell)}"):
                self._do(experiment, folder)
        return read_runs(folder)

    def _do(self, experiment: Experiment, folder: Path) -> None:
        labels, seeds = experiment.labels, len(experiment.seeds)
        with watching(labels, experiment.rounds, seeds, self.console.quiet) as watcher:
            outcomes = run_experiment(experiment, folder, self._data_of(experiment), watcher)
        if len(outcomes) < len(labels) * seeds or any(o.status == "interrupted" for o in outcomes):
            raise Interrupted("Interrupted; the same command goes on from here.")

    def _data_of(self, experiment: Experiment) -> FederatedData:
        """The data of an experiment, built once for those in a row that have the same."""
        if self._data is None or self._data[0] != experiment.data:
            self._data = (experiment.data, build_data(experiment))
        return self._data[1]

    def keep(self, name: str, compute: Callable[[], Any]) -> Any:
        """What a function computes, in plain values; computed once, and then read."""
        path = self.folder / KEPT / f"{slug(name)}.json"
        if path.is_file():
            return _told(path, "value")["value"]
        self.console.print(f"{self.reproduction.name}: {name}", style="bold")
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._timed(f"{KEPT}/{slug(name)}"):
            value = compute()
        write_json(path, {"value": value})
        return json.loads(path.read_text("utf-8"))["value"]

    def _parts(self, wanted: Sequence[str]) -> list[str]:
        """Those that are wanted, and those that were done before."""
        every = self.reproduction.parts
        for part in wanted:
            require(bool(every), f"{self.reproduction.name} has no parts: it is done as a whole.")
            require_choice(f"The part of {self.reproduction.name}", part, every)
        before: list[str] = []
        path = self.folder / DONE
        if path.is_file():
            done = _told(path, "quick", "parts")
            before = done["parts"]
            require(
                done["quick"] == self.quick,
                f"{self.folder} has the {'quick' if done['quick'] else 'full'} version: choose "
                f"another folder with --out.",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"quick": self.quick, "parts": before})
        return [part for part in every if part in (*(wanted or every), *before)]

    def done(self) -> None:
        """Note that all parts are done: they are reported from now on, whichever are asked for."""
        write_json(self.folder / DONE, {"quick": self.quick, "parts": self.parts})

    @property
    def seconds(self) -> float:
        """What all of it took, as far as it was not killed."""
        times = self.folder / TIMES
        return sum(read_json(times).values()) if times.is_file() else 0.0

    def _experiment(
        self,
        cell: str,
        settings: Mapping[str, Any],
        only: Sequence[str] | None,
        file: str | None,
    ) -> Experiment:
        name = file or f"{self.reproduction.name.partition('-')[2].replace('-', '_')}.toml"
        path = files(f"undrift.reproduce.{self.reproduction.paper.lower()}") / name
        quick = dict(self.reproduction.quick) if self.quick else {}
        given = {
            "output.durability": "process",  # a killed process loses nothing; a power loss may
            **quick,
            **settings,
            "name": f"{self.reproduction.name}: {cell}",
            "seeds": self.seeds,
        }
        place = Path(str(path))
        if only is None:
            return Experiment.load(place, given)
        # The others need not fit the settings: FedPD fits no sample of the clients.
        tables = applied(tomllib.loads(place.read_text(encoding="utf-8")), given)
        methods = {table.get("label", table["name"]): table for table in tables["method"]}
        for label in only:
            require_choice("The method", label, tuple(methods))
        tables["method"] = [table for label, table in methods.items() if label in only]
        return Experiment.from_dict(tables, folder=place.parent)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Add what a part took to what it took before."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            times = self.folder / TIMES
            self.folder.mkdir(parents=True, exist_ok=True)
            before = read_json(times) if times.is_file() else {}
            write_json(times, {**before, part: before.get(part, 0.0) + took})


def _told(path: Path, *keys: str) -> dict[str, Any]:
    """What a file of the lab says; one that says something else was changed by somebody."""
    found = read_json(path)
    for key in keys:
        require(key in found, f"{path} has no {key!r}: remove it, and what it kept is made again.")
    return found


def _all_ended(experiment: Experiment, folder: Path) -> bool:
    """Whether nothing is left to do."""
    return all(
        ended(run_folder(folder, label, seed))
        for label in experiment.labels
        for seed in experiment.seeds
    )


def _with_earlier_seeds(experiment: Experiment, folder: Path) -> Experiment:
    """The experiment with the seeds that its folder has already, which then gets the new ones."""
    path = folder / EXPERIMENT
    if not path.is_file():
        return experiment
    earlier = Experiment.load(path)
    seeds = sorted({*earlier.seeds, *experiment.seeds})
    experiment = Experiment.from_dict({**experiment.resolved(), "seeds": seeds})
    # With other seeds alone it is the same experiment; any other difference is refused later.
    if Experiment.from_dict({**earlier.resolved(), "seeds": seeds}) == experiment:
        with alone_in(folder):
            experiment.write(path)
    return experiment
