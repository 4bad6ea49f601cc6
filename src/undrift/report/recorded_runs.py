"""Reads run folders for reports: what was run, how it ended, and the record of every round."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import NoneType
from typing import TYPE_CHECKING, Any

from undrift.core.client_metrics import read_rows
from undrift.core.records import Record
from undrift.core.targets import Target
from undrift.loops.measuring import client_rows
from undrift.nets.module_losses import ModuleLosses
from undrift.privacy.spending import Released
from undrift.report.seed_curves import cumulative_costs
from undrift.runs.folder import (
    ARGUMENTS,
    CLIENTS,
    DEPLOYMENT,
    EXPELLED,
    EXPERIMENT,
    OPTIONAL_TEXT,
    OPTIONAL_WHOLE,
    RUN,
    read_run,
    require_as_written,
)
from undrift.runs.records_file import read_records
from undrift.runs.store.releases import ledger_of
from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.shapes import NUMBER, Row, fits, require_shapes

if TYPE_CHECKING:
    from undrift.report.result import Result

COSTS = {
    "models": "models sent",
    "rounds": "rounds",
    "bytes": "bytes sent",
    "gradients": "gradient evaluations",
    "virtual_seconds": "virtual time",
    "seconds": "wall time",
}
"""Costs that progress is measured against; "models" are rounds of FedAvg with as many bytes."""
SERVER_TIME = "time since the start"
"""The clock of a deployment, where there is no virtual time."""
DATA_SHAPES = {
    "name": OPTIONAL_TEXT,
    "clients": OPTIONAL_WHOLE,
    "samples": ({str: OPTIONAL_WHOLE}, NoneType),
    "notes": ([str], NoneType),
}
UNFINISHED = ("running", "interrupted")
"""States of a run that can still continue."""


@dataclass
class RunFiles:
    """One run, one method with one seed, as its folder describes it."""

    label: str
    seed: int
    records: list[Record]
    status: str = "finished"
    """"running", "finished", "stopped", "diverged" or "interrupted\""""
    reason: str | None = None
    """why it ended before its last round; None if it did not"""
    folder: Path | None = None
    method: str = ""
    """with its parameters, as in FedDyn(alpha=0.01)"""
    name: str = ""
    paper: str = ""
    rounds: int = 0
    """number of rounds that the experiment asks for"""
    parameters: int = 0
    """P, the number of parameters of the model"""
    clients: list[dict[str, Any]] = field(default_factory=list)
    """metrics of every client, a row per client and reported model; empty if not measured"""
    released: Released = field(default_factory=Released)
    """what a private deployment released, committed or not"""

    @property
    def done(self) -> int:
        """The number of rounds that were done."""
        return self.records[-1].round if self.records else 0

    @property
    def asynchronous(self) -> bool:
        """Whether the run was asynchronous: replies have a staleness."""
        return any(record.staleness for record in self.records)

    @property
    def metrics(self) -> dict[str, float]:
        """The last metrics that were measured; empty if the run diverged."""
        if self.status == "diverged":
            return {}
        return next((r.metrics for r in reversed(self.records) if r.metrics), {})

    def totals(self) -> dict[str, list[float]]:
        """Return what had been spent after each record, for all of `COSTS` but "models"."""
        return cumulative_costs(self.records)


@dataclass
class Folder:
    """What a run folder says about its experiment and data."""

    path: Path | None = None
    experiment: str = ""
    """the text of experiment.toml"""
    about: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    """the numbers of an `undrift.data.Description`"""
    clients: int = 0
    """number of clients; 0 if unknown"""
    picture: bytes = b""
    """the picture of the partition as SVG"""
    name: str = ""
    sites: dict[str, Any] = field(default_factory=dict)
    """what the sites of a deployment told the server about themselves"""
    expelled: dict[str, Any] = field(default_factory=dict)
    """the sites that were expelled from a deployment, and when"""


@dataclass
class MethodRuns:
    """One method of one run folder, with all of its seeds."""

    label: str
    """label, different from that of every other group"""
    runs: list[RunFiles]
    folder: Folder
    fedavg_round_bytes: float
    """bytes of one round of FedAvg with the same clients: the unit of the cost `models`"""

    @property
    def name(self) -> str:
        """The name of the method's class, as in "FedDyn"."""
        return self.runs[0].name

    @property
    def timeline(self) -> list[Record]:
        """The records of the first seed with spans of work; empty without a virtual clock."""
        found = (run.records for run in self.runs if any(r.spans for r in run.records))
        return next(found, [])

    def totals(self, run: RunFiles) -> dict[str, list[float]]:
        """Return what a run had spent after each record, for all of `COSTS`."""
        found = run.totals()
        unit = self.fedavg_round_bytes or float("nan")
        return {"models": [sent / unit for sent in found["bytes"]], **found}


class Runs(Sequence[RunFiles]):
    """The runs of one or several run folders."""

    def __init__(self, parts: Iterable[tuple[Folder, Sequence[RunFiles]]]):
        self.folders: list[Folder] = []
        self.runs: list[RunFiles] = []
        self.groups: list[MethodRuns] = []
        for folder, runs in parts:
            self.folders.append(folder)
            self.runs += runs
            unit = _fedavg_round_bytes(runs)
            for label in dict.fromkeys(run.label for run in runs):
                own = sorted((r for r in runs if r.label == label), key=lambda r: r.seed)
                self.groups.append(MethodRuns(label, own, folder, unit))
        require(bool(self.runs), "There is no run to report.")
        _make_labels_unique(self.groups)
        self.metrics = _names(r.metrics for run in self.runs for r in run.records)
        """metrics that were measured, in the order of their first occurrence"""
        self.diagnostics = _names(r.diagnostics for run in self.runs for r in run.records)
        """diagnostics that were measured"""
        clock = any(r.virtual_seconds for run in self.runs for r in run.records)
        counted = any(group.fedavg_round_bytes for group in self.groups)
        there = {"models": counted, "bytes": counted, "virtual_seconds": clock}
        self.deployed = all(folder.sites for folder in self.folders)
        """whether all runs had real sites, so that their clock is the server's"""
        labels = COSTS | ({"virtual_seconds": SERVER_TIME} if self.deployed else {})
        self.costs = {name: label for name, label in labels.items() if there.get(name, True)}
        """the entries of `COSTS` that were counted: virtual time only with a clock"""

    def __getitem__(self, which):  # type: ignore[no-untyped-def]
        return self.runs[which]

    def __len__(self) -> int:
        return len(self.runs)

    def targets(self) -> list[tuple[str, Target]]:
        """Return the targets of the experiment files."""
        found: dict[tuple[str, Target], None] = {}
        for folder in self.folders:
            for metric, target in _table(folder, "target").items():
                require(
                    fits(target, (*NUMBER, Row((str, NUMBER)))),
                    f"The target of {metric} in {folder.path} is {target!r}, but must be a number, "
                    f"or a list such as ['below', 0.1].",
                )
                found[metric, tuple(target) if isinstance(target, list) else target] = None
        return list(found)


def read_runs(folders: Sequence[str | Path] | str | Path) -> Runs:
    """Read one or several run folders, each with any number of methods and seeds."""
    paths = [folders] if isinstance(folders, str | Path) else list(folders)
    require(len(paths) > 0, "There is no folder to report: name one or several run folders.")
    unique = {Path(path).resolve(): Path(path) for path in paths}
    return Runs(_read_folder(path) for path in unique.values())


def of_results(results: Sequence[Result]) -> Runs:
    """Return the results of `undrift.train` or `undrift.compare` as runs without a folder."""
    runs = [
        RunFiles(
            label=result.label,
            seed=result.run.seed,
            records=result.records,
            status="diverged"
            if result.run.diverged
            else ("stopped" if result.stopped else "finished"),
            reason=result.stopped,
            method=repr(result.method),
            name=result.method.name,
            rounds=result.run.total,
            parameters=result.x.numel(),
            clients=client_rows(result.run) if result.run.client_metrics else [],
        )
        for result in results
    ]
    clients = max((len(result.run.roster) for result in results), default=0)
    folder = Folder(clients=clients)
    losses = results[0].run.losses if results else None
    if isinstance(losses, ModuleLosses):
        described = losses.data.describe()
        folder.data, folder.picture = described.as_dict(), described.svg()
    return Runs([(folder, runs)])


def frame(runs: Sequence[str | Path] | str | Path | Runs | Result | Sequence[Result]) -> Any:
    """Return a pandas data frame with a row per method, seed and round.

    `runs` are one or several run folders, or what `undrift.train`, `undrift.compare` or
    `read_runs` returned.
    """
    return as_frame(record_rows(as_runs(runs)))


def as_frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas data frame."""
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UndriftError(
            "A data frame needs pandas, which is not installed: pip install pandas."
        ) from None
    return pandas.DataFrame(list(rows))


def as_runs(found: object) -> Runs:
    """Return runs, run folders or results as runs."""
    if isinstance(found, Runs):
        return found
    if hasattr(found, "records") and hasattr(found, "run"):  # a Result, whose module imports this
        return of_results([found])  # type: ignore[list-item]
    several = [found] if isinstance(found, str | Path) else found
    if isinstance(several, Sequence) and not isinstance(several, bytes):
        if all(isinstance(each, str | Path) for each in several):
            return read_runs(several)
        if all(hasattr(each, "records") and hasattr(each, "run") for each in several):
            return of_results(several)
    raise UndriftError(
        f"The runs to read are a {type(found).__name__}, but must be run folders, or what ud.train "
        f"or ud.compare returned."
    )


def record_rows(runs: Runs) -> Iterable[dict[str, Any]]:
    """Yield every record as a row with its method and seed."""
    for group in runs.groups:
        for run in group.runs:
            for record in run.records:
                yield {"method": group.label, "seed": run.seed, **record.flat()}


def _read_folder(path: Path) -> tuple[Folder, list[RunFiles]]:
    require(path.is_dir(), f"There is no run folder {path}.")
    # A process that was killed early may leave a folder without any run.
    places = sorted(run.parent for run in path.glob("*/seed-*/run.json"))
    experiment = next(
        (path / name for name in (EXPERIMENT, ARGUMENTS) if (path / name).is_file()),
        path / EXPERIMENT,
    )
    if not places or not experiment.is_file():
        missing = "experiment.toml" if not experiment.is_file() else "<method>/seed-<number>/"
        raise UndriftError(f"{path} is not a run folder: it has no {missing}{_hint(path)}")
    require_as_written(experiment)
    picture = path / "data.svg"
    folder = Folder(
        path=path,
        experiment=_text(experiment),
        about=_json(path / "about.json", optional=True),
        data=_data(path / "data.json"),
        picture=picture.read_bytes() if picture.is_file() else b"",
        sites=_json(path / DEPLOYMENT, optional=True),
        expelled=_json(path / EXPELLED, optional=True),
    )
    folder.clients = folder.data.get("clients") or 0
    folder.name = str(_toml(folder).get("name") or path.resolve().name)
    order = {label: number for number, label in enumerate(_labels(folder))}
    runs = [_read_run(place) for place in places]
    for run in runs:
        ledger = ledger_of(path, run.label, run.seed)
        run.released = Released(len(ledger.rounds), len(ledger.evaluations))
    runs.sort(key=lambda run: order.get(run.label, len(order)))
    return folder, runs


def _hint(path: Path) -> str:
    """Suggest the run folder if the path is its parent or one of its subfolders."""
    places = [*path.glob("*/"), *path.parents[:2]]
    near = [place / name for place in places for name in (EXPERIMENT, ARGUMENTS)]
    found = next((p.parent for p in near if p.is_file()), None)
    return f"; did you mean {found}?" if found else "."


def _read_run(place: Path) -> RunFiles:
    state = read_run(place / RUN)
    run = RunFiles(
        label=state["label"],
        seed=state["seed"],
        records=[],
        status=state["status"],
        reason=state.get("reason"),
        folder=place,
        method=state.get("method") or "",
        name=state.get("name") or state["label"],
        paper=state.get("paper") or "",
        rounds=state.get("rounds") or 0,
        parameters=state.get("parameters") or 0,
    )
    records = place / "records.jsonl"
    if records.is_file() or run.status not in UNFINISHED:  # a run that has not begun has no records
        run.records = read_records(records)
    if (place / CLIENTS).is_file():
        run.clients = read_rows(place / CLIENTS)
    return run


def _text(path: Path) -> str:
    try:
        # A line that was cut off may end inside a multi-byte character.
        return path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error


def _json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise UndriftError(f"{path} is damaged: {first_line(error)}.") from error
    require(isinstance(found, dict), f"{path} must hold a JSON object.")
    return found


def _data(path: Path) -> dict[str, Any]:
    """The description of the data, with values of the right types."""
    found = _json(path, optional=True)
    require_shapes(path, found, DATA_SHAPES)
    return found


def _toml(folder: Folder) -> dict[str, Any]:
    try:
        return tomllib.loads(folder.experiment)
    except tomllib.TOMLDecodeError as error:
        raise UndriftError(
            f"The description of {folder.path} is damaged: {first_line(error)}."
        ) from error


def _table(folder: Folder, name: str) -> dict[str, Any]:
    found = _toml(folder).get(name)
    return found if isinstance(found, dict) else {}


def _labels(folder: Folder) -> list[str]:
    methods = _toml(folder).get("method")
    methods = methods if isinstance(methods, list) else []
    return [str(m.get("label", m.get("name"))) for m in methods if isinstance(m, dict)]


def _names(found: Iterable[Mapping[str, float]]) -> list[str]:
    names: dict[str, None] = {}
    for each in found:
        if not each.keys() <= names.keys():
            names |= dict.fromkeys(each)
    return list(names)


def _fedavg_round_bytes(runs: Sequence[RunFiles]) -> float:
    """Return the bytes of one round of FedAvg: the model to a typical cohort, and back.

    All runs of a folder share the model and the cohort size, so the median number of replies is
    typical; a first round with every client, or a round without replies, is not. A round of
    asynchronous training has any length: those count only if there are no others.
    """
    rounds = [run for run in runs if not run.asynchronous] or runs
    records = [record for run in rounds for record in run.records]
    arrived = [len(r.cohort) - len(r.absent) - len(r.lost) for r in records]
    clients = [count for count in arrived if count > 0]
    if not clients:
        return 0.0
    return 2 * _model_bytes(runs) * median(clients)


def _model_bytes(runs: Sequence[RunFiles]) -> float:
    """Return the bytes of a model with its buffers, from what clients were sent."""
    in_rounds: list[float] = []
    at_any_time: list[float] = []
    for run in runs:
        found = at_any_time if run.asynchronous else in_rounds
        for record in run.records:
            asked = len(record.cohort) - len(record.absent)
            if asked > 0 and "x" in record.bytes_down:
                found.append((record.bytes_down["x"] + record.bytes_down.get("buffers", 0)) / asked)
    if in_rounds:
        return max(in_rounds)  # a lost client may not have received the model
    # A client that was sent a model in asynchronous training may reply in a later round.
    return median(at_any_time or [4.0 * run.parameters for run in runs])  # single precision


def _make_labels_unique(groups: Sequence[MethodRuns]) -> None:
    """Add the folder's name, or else its path, to labels that occur in several folders."""
    for suffix in (lambda g: g.folder.name, lambda g: str(g.folder.path)):
        labels = [group.label for group in groups]
        for group in groups:
            if labels.count(group.label) > 1:
                group.label = f"{group.runs[0].label} ({suffix(group)})"
