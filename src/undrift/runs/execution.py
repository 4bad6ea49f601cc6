"""Doing the runs of an experiment, one after another, each round committed to its store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from undrift.core.evaluation import Evaluation
from undrift.core.losses import Losses
from undrift.core.method import Method
from undrift.core.records import Record
from undrift.core.sampling import Sampler
from undrift.core.targets import Target
from undrift.data.federated import FederatedData
from undrift.data.fingerprint import fingerprint
from undrift.devices import DeviceFile, Profiles
from undrift.engines import EngineOptions
from undrift.local.solvers import Local
from undrift.loops import Loop, loop
from undrift.loops.comparison import shared_sampler
from undrift.loops.paces import Pace
from undrift.loops.planning import Limit
from undrift.nets.modules import ModuleLosses, save_weights
from undrift.runs.folder import (
    DATA,
    DONE,
    MODEL,
    PICTURE,
    RECORDS,
    RUN,
    STORE,
    alone_in,
    read_json,
    run_folder,
    write_json,
)
from undrift.runs.keeping import commit, restore
from undrift.runs.loggers import Begun, Logger
from undrift.runs.states import StoredStates
from undrift.runs.stopping import asked_to_stop, interrupt
from undrift.runs.store import Store, require_storable
from undrift.utils.errors import Diverged, UndriftError, first_line, require, require_range
from undrift.utils.files import written_whole

MEGABYTE = 1_000_000


@dataclass
class Plan:
    """What is to be run: every method with every seed, on the same data."""

    data: FederatedData
    model: Callable[[int], nn.Module]
    """the initial model of a seed"""
    methods: Mapping[str, Method]
    local: Mapping[str, Local]
    """the local work of each method"""
    rounds: int
    seeds: Sequence[int] = (0,)
    cohort: int | Sampler | None = None
    objective: str = "samples"
    evaluation: Evaluation = field(default_factory=Evaluation)
    limit: Limit | None = None
    devices: Profiles | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """by label, where it is not the method's own"""
    target: Mapping[str, Target] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what loggers are told of the experiment"""

    def losses(self, seed: int) -> Losses:
        """What is learned: the model of a seed on the data."""
        return ModuleLosses(self.model(seed), self.data)

    def fingerprint(self) -> str:
        """What tells these data from others."""
        return fingerprint(self.data)

    def describe(self, folder: Path) -> None:
        """Write down what the data are like, for the report."""
        if not (folder / DATA).is_file():
            described = self.data.describe()
            described.plot(folder / PICTURE)
            write_json(folder / DATA, described.as_dict())

    def loop(self, label: str, *args: Any, **options: Any) -> Loop:
        """A run of a method."""
        return loop(*args, engine=self.engine, devices=self.devices, **options)


@dataclass(frozen=True)
class Keeping:
    """How runs are kept.

    Parameters
    ----------
    durability
        what a committed round survives: "power" (synced to the disk) or "process"
    memory
        megabytes of client states to hold in memory besides the round in flight
    loggers
        makes the loggers of a run
    """

    durability: str = "power"
    memory: float = 64
    loggers: Callable[[], Sequence[Logger]] = tuple

    def __post_init__(self) -> None:
        require_range("memory", self.memory, at_least=0)


class Watcher(Protocol):
    """Someone who looks on."""

    def begin(self, label: str, seed: int, round: int) -> None:
        """A run starts, or goes on after a round."""

    def show(self, label: str, seed: int, record: Record) -> None:
        """A round is done and committed."""

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        """A run is over."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    label: str
    seed: int
    status: str
    reason: str | None
    folder: Path
    before: bool = field(default=False, compare=False)
    """it had ended before, so that nothing was done"""


def execute(
    plan: Plan, folder: Path, keeping: Keeping = Keeping(), watcher: Watcher | None = None
) -> list[Outcome]:
    """Do every run of a plan in a folder, or what is left of them.

    A run that was interrupted, or killed at any moment, goes on from its last committed round and
    ends as if it had never been. Ctrl-C lets the round in flight finish.
    """
    outcomes = []
    with alone_in(folder), asked_to_stop(again=interrupt) as stop:
        plan.describe(folder)
        data = plan.fingerprint()
        for seed in plan.seeds:
            losses = None
            for label, method in plan.methods.items():
                own = run_folder(folder, label, seed)
                done = ended(own)
                if done is None:
                    if losses is None:
                        losses = plan.losses(seed)
                    work = Work(plan, label, method, seed, losses, own, keeping, watcher, data)
                    status, reason = work.do(stop)
                else:
                    status, reason = done
                    if watcher:
                        watcher.begin(label, seed, plan.rounds)
                        watcher.end(label, seed, status, reason)
                outcomes.append(Outcome(label, seed, status, reason, own, done is not None))
                if stop():
                    return outcomes
    return outcomes


@dataclass
class Work:
    """One method with one seed."""

    plan: Plan
    label: str
    method: Method
    seed: int
    losses: Losses
    folder: Path
    keeping: Keeping
    watcher: Watcher | None
    data: str
    """a fingerprint of the data"""

    def do(self, stop: Callable[[], int]) -> tuple[str, str | None]:
        """Run to the end, or until asked to stop; gives the status and its reason."""
        self.folder.mkdir(parents=True, exist_ok=True)
        require_storable(self.losses.ids)
        records = self.folder / RECORDS
        begun = records.is_file() and records.stat().st_size > 0
        store = Store(self.folder / STORE, self._meta(), self.keeping.durability)
        try:
            require(
                store.round is not None or not begun,
                f"{records} has rounds, but the store beside it is empty: put the store back, or "
                f"remove {self.folder} to begin again.",
            )
            self._say("running", None)
            run = self._run(store)
            resumed = restore(run, store)
            with written_whole(records) as whole:  # a killed process may leave half a line
                whole.write_text("".join(f"{line}\n" for line in store.records()), "utf-8")
            if self.watcher:
                self.watcher.begin(self.label, self.seed, run.round)
            loggers = self._loggers(run.round if resumed else None)
            status, reason = self._rounds(run, store, loggers, stop)
            flat = getattr(self.losses, "flat", None)  # an analytic problem has no module
            if status in DONE and flat is not None:
                save_weights(flat.filled(run.server.x, run.buffers), self.folder / MODEL)
            for logger in loggers:
                logger.finish(status)
            self._say(status, reason)
        finally:
            store.close()
        if self.watcher:
            self.watcher.end(self.label, self.seed, status, reason)
        return status, reason

    def _run(self, store: Store) -> Loop:
        plan = self.plan
        sampler = shared_sampler(plan.cohort, plan.methods.values(), self.losses, plan.objective)
        return plan.loop(
            self.label,
            self.method,
            self.losses,
            plan.local[self.label],
            sampler,
            plan.rounds,
            objective=plan.objective,
            seed=self.seed,
            evaluation=plan.evaluation,
            limit=plan.limit,
            target=plan.target,
            pace=plan.paces.get(self.label),
            states=partial(StoredStates, store=store, memory=int(self.keeping.memory * MEGABYTE)),
        )

    def _rounds(
        self, run: Loop, store: Store, loggers: Sequence[Logger], stop: Callable[[], int]
    ) -> tuple[str, str | None]:
        try:
            with (self.folder / RECORDS).open("a", encoding="utf-8") as lines:
                for record in run.rounds():
                    commit(run, store, record)
                    lines.write(record.to_json() + "\n")
                    lines.flush()
                    for logger in loggers:
                        logger.log(record)
                    if self.watcher:
                        self.watcher.show(self.label, self.seed, record)
                    if stop() and run.round < run.total and run.stopped is None:
                        return "interrupted", f"interrupted after round {run.round}"
        except Diverged as error:
            return "diverged", str(error)
        except OSError as error:
            raise UndriftError(
                f"{self.folder / RECORDS} cannot be written ({first_line(error)}); nothing is lost "
                f"but the round in flight."
            ) from error
        return ("finished", None) if run.stopped is None else ("stopped", run.stopped)

    def _loggers(self, resumed_from: int | None) -> Sequence[Logger]:
        loggers = self.keeping.loggers()
        begun = Begun(self.label, self.seed, self.plan.settings, self.folder, resumed_from)
        for logger in loggers:
            logger.start(begun)
        return loggers

    def _meta(self) -> dict[str, Any]:
        """What the store belongs to: with other data it would go on with another run."""
        devices = self.plan.devices
        return {
            "label": self.label,
            "seed": self.seed,
            "parameters": self.losses.dimension,
            "data": self.data,
            **({"devices": devices.fingerprint()} if isinstance(devices, DeviceFile) else {}),
        }

    def _say(self, status: str, reason: str | None) -> None:
        write_json(
            self.folder / RUN,
            {
                **self._meta(),
                "method": repr(self.method),
                "name": self.method.name,
                "paper": self.method.paper,
                "rounds": self.plan.rounds,
                "status": status,
                "reason": reason,
            },
        )


def ended(folder: Path) -> tuple[str, str | None] | None:
    """How a run ended, if it did."""
    try:
        found = read_json(folder / RUN)
    except UndriftError:  # not there, or left empty by a power loss: the store knows
        return None
    model = folder / MODEL
    ended = found.get("status") in DONE and model.is_file() and model.stat().st_size > 0
    return (found["status"], found.get("reason")) if ended else None
