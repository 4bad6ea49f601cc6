"""Where runs are kept: in memory, or in a run folder that survives a crash at any moment.

The driver uses a `Storage` and, for each run, the `KeptRun` that it opens. The base class `KeptRun`
keeps a run in memory only; `StoredRun` commits every round to the run's store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from safetensors.torch import save_file
from torch import Tensor

from undrift.core.clients import ClientStates
from undrift.core.losses import Federation
from undrift.core.records import Record
from undrift.data.federated import FederatedData
from undrift.data.fingerprint import fingerprint
from undrift.devices import DeviceFile
from undrift.loops import Loop, RunSpec
from undrift.loops.measuring import client_rows
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.weights import save_weights
from undrift.runs.client_tables import write_clients
from undrift.runs.folder import (
    ARCHIVED,
    DATA,
    DIVERGED,
    DONE,
    FINISHED,
    MODEL,
    PICTURE,
    RECORDS,
    RUN,
    RUNNING,
    STORE,
    file_checksum,
    locked_folder,
    read_json,
    read_run,
    run_folder,
    write_json,
)
from undrift.runs.loggers import Logger, StartedRun
from undrift.runs.plan import Plan
from undrift.runs.states import StoredStates
from undrift.runs.stopping import count_stop_requests, interrupt
from undrift.runs.store import KEEP_BYTES, KEEP_ROUNDS, Store, require_storable
from undrift.utils.errors import UndriftError, first_line, require, require_range
from undrift.utils.files import written_whole

BYTES_PER_MB = 1_000_000

Ended = tuple[str, str | None]
"""The status of a run that has ended, and the reason if it ended early."""


class KeptRun:
    """One run while it is executed; this class keeps it in memory only."""

    def states(self, kinds: Mapping[str, str | Tensor], x0: Tensor) -> ClientStates:
        """The container of the clients' states."""
        return ClientStates(kinds, x0)

    def restore(self, run: Loop) -> bool:
        """Bring a new loop to the last committed round; returns whether there was one."""
        return False

    def begin(self, run: Loop, resumed: bool) -> None:
        """Called before the first round, or before the next one of a resumed run."""

    def commit(self, run: Loop, record: Record) -> None:
        """Store a completed round."""

    def end(self, run: Loop, status: str, reason: str | None) -> None:
        """Store how the run ended."""


class Storage(ABC):
    """Where the runs of a plan are kept."""

    @abstractmethod
    def session(self) -> AbstractContextManager[Callable[[], int]]:
        """Lock the storage for a block; gives a function that counts requests to stop."""

    @abstractmethod
    def ended(self, label: str, seed: int, plan: Plan) -> Ended | None:
        """How a run ended, if it did."""

    @abstractmethod
    def folder_of(self, label: str, seed: int) -> Path | None:
        """The folder of a run; None in memory."""

    @abstractmethod
    def open(self, label: str, spec: RunSpec, plan: Plan) -> AbstractContextManager[KeptRun]:
        """Open the storage of one run for a block."""


class MemoryStorage(Storage):
    """Keeps runs in memory. Ctrl-C raises KeyboardInterrupt as usual."""

    def session(self) -> AbstractContextManager[Callable[[], int]]:
        return nullcontext(lambda: 0)

    def ended(self, label: str, seed: int, plan: Plan) -> Ended | None:
        return None

    def folder_of(self, label: str, seed: int) -> Path | None:
        return None

    def open(self, label: str, spec: RunSpec, plan: Plan) -> AbstractContextManager[KeptRun]:
        return nullcontext(KeptRun())


@dataclass(frozen=True)
class FolderStorage(Storage):
    """Keeps runs in a run folder, each in its own store.

    Ctrl-C and SIGTERM let the current round finish and commit; a second Ctrl-C ends at once.

    Parameters
    ----------
    folder
        the run folder
    durability
        what a committed round survives: "power" (a power loss) or "process" (a killed process)
    memory
        megabytes of client states to hold in memory, besides those of the current round
    keep_rounds, keep_megabytes
        how many rounds a run can go back, as long as their states take at most this much disk
    loggers
        makes the loggers of a run
    accepted
        called once a store belongs to the plan, before the run computes anything
    interrupts
        whether a stop request raises KeyboardInterrupt when the session ends, as in a script
    """

    folder: Path
    durability: str = "power"
    memory: float = 64
    loggers: Callable[[], Sequence[Logger]] = tuple
    accepted: Callable[[], None] = lambda: None
    interrupts: bool = False
    keep_rounds: int = KEEP_ROUNDS
    keep_megabytes: float = KEEP_BYTES / BYTES_PER_MB

    def __post_init__(self) -> None:
        require_range("memory", self.memory, at_least=0)

    @contextmanager
    def session(self) -> Iterator[Callable[[], int]]:
        with locked_folder(self.folder), count_stop_requests(again=interrupt) as stop:
            yield stop
            if self.interrupts and stop():
                raise KeyboardInterrupt

    def ended(self, label: str, seed: int, plan: Plan) -> Ended | None:
        return ended(self.folder_of(label, seed), plan.rounds)

    def folder_of(self, label: str, seed: int) -> Path:
        return run_folder(self.folder, label, seed)

    @contextmanager
    def open(self, label: str, spec: RunSpec, plan: Plan) -> Iterator[KeptRun]:
        self._describe(spec.losses)
        folder = self.folder_of(label, spec.seed)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UndriftError(f"{folder} cannot be created: {first_line(error)}.") from error
        require_storable(spec.losses.ids)
        facts = run_facts(label, spec)
        store = Store(
            folder / STORE,
            facts,
            self.durability,
            self.keep_rounds,
            self.keep_megabytes * BYTES_PER_MB,
        )
        try:
            self.accepted()
            yield StoredRun(folder, store, label, facts, plan, self)
        finally:
            store.close()

    def _describe(self, losses: Federation) -> None:
        """Write a description and a picture of the data for the report, if there are none yet."""
        if isinstance(losses, ModuleLosses) and not (self.folder / DATA).is_file():
            description = losses.data.describe()
            description.plot(self.folder / PICTURE)
            write_json(self.folder / DATA, description.as_dict())


class StoredRun(KeptRun):
    """One run in its folder: every round is committed to the store in one transaction."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        label: str,
        facts: Mapping[str, Any],
        plan: Plan,
        storage: FolderStorage,
    ):
        self._folder = folder
        self._store = store
        self._label = label
        self._facts = facts
        self._plan = plan
        self._storage = storage
        self._loggers: Sequence[Logger] = ()

    def states(self, kinds: Mapping[str, str | Tensor], x0: Tensor) -> ClientStates:
        memory = int(self._storage.memory * BYTES_PER_MB)
        return StoredStates(kinds, x0, self._store, memory)

    def restore(self, run: Loop) -> bool:
        records = self._folder / RECORDS
        has_rounds = records.is_file() and records.stat().st_size > 0
        require(
            self._store.round is not None or not has_rounds,
            f"{records} has rounds, but the store beside it is empty: put the store back, or "
            f"remove {self._folder} to begin again.",
        )
        return restore(run, self._store)

    def begin(self, run: Loop, resumed: bool) -> None:
        self._write_status(run, RUNNING, None)
        # The store decides what was committed. A killed process may have left half a line, or no
        # line for the last round: write all records again.
        with written_whole(self._folder / RECORDS) as whole:
            whole.write_text("".join(f"{line}\n" for line in self._store.records()), "utf-8")
        self._loggers = self._storage.loggers()
        started = StartedRun(
            self._label,
            run.seed,
            self._plan.description,
            self._folder,
            run.round if resumed else None,
        )
        for logger in self._loggers:
            logger.start(started)

    def commit(self, run: Loop, record: Record) -> None:
        # First the store: a round that is not in it is repeated after a crash, and a logger that
        # knew of it would get it twice.
        commit(run, self._store, record)
        records = self._folder / RECORDS
        try:
            with records.open("a", encoding="utf-8") as lines:
                lines.write(record.to_json() + "\n")
        except OSError as error:
            raise UndriftError(
                f"{records} cannot be written ({first_line(error)}); the round is in the store, "
                f"and resuming the run writes the file again."
            ) from error
        for logger in self._loggers:
            logger.log(record)

    def end(self, run: Loop, status: str, reason: str | None) -> None:
        if status in DONE:
            _save_model(run, self._folder / MODEL)
            if run.client_metrics and status != DIVERGED:
                write_clients(client_rows(run), self._folder)
        for logger in self._loggers:
            logger.finish(status)
        self._write_status(run, status, reason)

    def _write_status(self, run: Loop, status: str, reason: str | None) -> None:
        write_json(
            self._folder / RUN,
            {
                **self._facts,
                "method": repr(run.method),
                "name": run.method.name,
                "paper": run.method.paper,
                "rounds": run.total,
                "status": status,
                "reason": reason,
                **self._model_checksum(status),
            },
        )

    def _model_checksum(self, status: str) -> dict[str, str]:
        """The checksum of the final model, once there is one."""
        return {"model_checksum": file_checksum(self._folder / MODEL)} if status in DONE else {}


def run_facts(label: str, spec: RunSpec) -> dict[str, Any]:
    """Facts that identify a run: it must not continue from the store of a run with others."""
    devices = spec.devices
    return {
        "label": label,
        "seed": spec.seed,
        "parameters": spec.losses.dimension,
        "data": _fingerprint(spec.losses),
        "initial_model": _hash(spec.losses.initial()),
        **({"devices": devices.fingerprint()} if isinstance(devices, DeviceFile) else {}),
    }


def _hash(x: Tensor) -> str:
    return blake2b(x.detach().cpu().numpy().tobytes(), digest_size=16).hexdigest()


_DATA_FINGERPRINTS: WeakKeyDictionary[FederatedData, str] = WeakKeyDictionary()
"""Hashing all samples takes seconds for large data, so every data set is hashed once."""


def _fingerprint(losses: Federation) -> str:
    """A hash of the clients and their data."""
    if not isinstance(losses, ModuleLosses):
        return losses.fingerprint()
    if losses.data not in _DATA_FINGERPRINTS:
        _DATA_FINGERPRINTS[losses.data] = fingerprint(losses.data)
    return _DATA_FINGERPRINTS[losses.data]


def ended(folder: Path, rounds: int | None = None) -> Ended | None:
    """How the run of a folder ended, or None.

    A run that finished fewer than `rounds` rounds has not ended: it is to be extended.
    """
    try:
        read_json(folder / RUN)
    except UndriftError:  # missing, or left empty by a power loss: look into the store
        return None
    found = read_run(folder / RUN)
    status = found["status"]
    if status not in DONE or not (found.get(ARCHIVED) or _has_model(folder)):
        return None
    before = found.get("rounds")
    if not isinstance(before, int):
        raise UndriftError(f"{folder / RUN} is damaged: its rounds are {before!r}.")
    extended = rounds is not None and before < rounds
    return None if status == FINISHED and extended else (status, found.get("reason"))


def _save_model(run: Loop, path: Path) -> None:
    """Write the final model: a module's weights, or the solution x of an analytic problem."""
    if isinstance(run.losses, ModuleLosses):
        save_weights(run.losses.module_with(run.server.x, run.buffers), path)
        return
    flat = getattr(run.losses, "flat", None)
    if flat is not None:
        save_weights(flat.filled(run.server.x, run.buffers), path)
        return
    with written_whole(path) as partial:
        save_file({"x": run.server.x}, partial)


def _has_model(folder: Path) -> bool:
    """Whether the final model was written; a power loss may leave an empty file."""
    model = folder / MODEL
    return model.is_file() and model.stat().st_size > 0


def commit(run: Loop, store: Store, record: Record) -> None:
    """Write everything that a round changed, in one transaction of the store."""
    states = run.states
    assert isinstance(states, StoredStates)
    store.commit(
        record.round, run.saved(), states.changed(), record.to_json(), run.write_once_parts()
    )
    states.committed()


def restore(run: Loop, store: Store) -> bool:
    """Bring a new loop to the last round of a store; returns whether there was one."""
    round = store.round
    if round is None:
        return False
    device = run.x0.device
    try:
        records = [Record.from_json(line) for line in store.records()]
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, UndriftError):
            raise
        raise UndriftError(
            f"A record in the store {store.folder} is damaged: {first_line(error)}."
        ) from error
    if [record.round for record in records] != list(range(round + 1)):
        raise UndriftError(
            f"The store {store.folder} is damaged: records of some rounds are missing."
        )
    run.restore(lambda name: store.part(name, device), records)
    assert isinstance(run.states, StoredStates)
    run.states.restore_seen(client for record in records for client in record.replied)
    return True
