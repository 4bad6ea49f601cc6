"""Loggers: a run's records in TensorBoard, MLflow or Weights & Biases, besides `records.jsonl`.

A logger is a copy for looking at: a run neither depends on it nor ends with it. One that fails is
switched off with a warning; after a resume the rounds that were committed before are left out. A
killed process may leave the last round out of a logger (of Weights & Biases, the last second), but
never out of `records.jsonl`.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from undrift.core.records import Record
from undrift.runs.folder import DONE
from undrift.utils.errors import UndriftError, first_line, require_choice


@dataclass(frozen=True)
class StartedRun:
    """A run that begins in its folder, or goes on."""

    label: str
    seed: int
    settings: Mapping[str, object]
    folder: Path
    resumed_from: int | None = None
    """the last round before it goes on"""

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.label}, seed {self.seed}"

    def described(self) -> dict[str, object]:
        """All settings, in one table."""
        return {"label": self.label, "seed": self.seed, **flattened(self.settings)}


class Logger(ABC):
    """What is told of a run while it goes on."""

    @abstractmethod
    def start(self, begun: StartedRun) -> None:
        """A run begins, or goes on."""

    @abstractmethod
    def log(self, record: Record) -> None:
        """A round is done and committed."""

    @abstractmethod
    def finish(self, status: str) -> None:
        """The run ended, as "finished", "stopped" or "diverged", or was "interrupted"."""


class TensorBoard(Logger):
    """Event files in the run folder's `tensorboard`: look with `tensorboard --logdir DIR`."""

    def __init__(self) -> None:
        self._event = _library("tensorboard.compat.proto.event_pb2", "TensorBoard")
        self._summary = _library("tensorboard.compat.proto.summary_pb2", "TensorBoard")
        self._tensor = _library("tensorboard.compat.proto.tensor_pb2", "TensorBoard")
        self._writers = _library("tensorboard.summary.writer.event_file_writer", "TensorBoard")

    def start(self, begun: StartedRun) -> None:
        self._writer = self._writers.EventFileWriter(str(begun.folder / "tensorboard"))
        if begun.resumed_from is None:
            self._describe(begun.described())
        else:
            # A round that was logged but not committed is done again: TensorBoard drops the first.
            started = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write(begun.resumed_from + 1, session_log=started)
        self._writer.flush()

    def log(self, record: Record) -> None:
        values = [
            self._summary.Summary.Value(tag=name, simple_value=value)
            for name, value in values_of(record).items()
        ]
        self._write(record.round, summary=self._summary.Summary(value=values))
        self._writer.flush()

    def finish(self, status: str) -> None:
        self._writer.close()

    def _describe(self, settings: Mapping[str, object]) -> None:
        """The settings, as a table on the page of texts."""
        rows = "\n".join(f"| {key} | {_word(value)} |" for key, value in settings.items())
        text = f"| setting | value |\n|---|---|\n{rows}".encode()
        metadata = self._summary.SummaryMetadata(
            plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text")
        )
        value = self._summary.Summary.Value(
            tag="settings/text_summary",
            metadata=metadata,
            tensor=self._tensor.TensorProto(dtype="DT_STRING", string_val=[text]),
        )
        self._write(0, summary=self._summary.Summary(value=[value]))

    def _write(self, step: int, **content: Any) -> None:
        event = self._event.Event(wall_time=time.time(), step=step, **content)
        self._writer.add_event(event)


class MLflow(Logger):
    """A database `mlflow.db` in the run folder, or the server of MLFLOW_TRACKING_URI.

    Look with `mlflow ui --backend-store-uri sqlite:///DIR/…/mlflow.db`.
    """

    experiment = "undrift"

    def __init__(self) -> None:
        self._tracking = _library("mlflow.tracking", "MLflow")
        self._entities = _library("mlflow.entities", "MLflow")
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            # mlflow-skinny comes without what its own database needs.
            _library("sqlalchemy", "MLflow")
            _library("alembic", "MLflow")

    def start(self, begun: StartedRun) -> None:
        for name in ("mlflow.store.db.utils", "alembic"):  # lines of theirs would break our bars
            logging.getLogger(name).setLevel(logging.WARNING)
        place, where = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not place:
            place = f"sqlite:///{begun.folder.absolute() / 'mlflow.db'}"
            where = (begun.folder.absolute() / "mlflow").as_uri()
        self._client = self._tracking.MlflowClient(tracking_uri=place)
        known = _read_id(begun.folder, "mlflow")
        if known is not None and begun.resumed_from is not None:
            self._id = known
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = (
            self._client.create_experiment(self.experiment, artifact_location=where)
            if found is None
            else found.experiment_id
        )
        tags = {"label": begun.label, "seed": str(begun.seed), "folder": str(begun.folder)}
        run = self._client.create_run(experiment, run_name=begun.name, tags=tags)
        self._id = run.info.run_id
        _write_id(begun.folder, "mlflow", self._id)
        params = [
            self._entities.Param(key, _word(value)[:500])
            for key, value in begun.described().items()
        ]
        for some in range(0, len(params), 100):  # what one call may hold
            self._client.log_batch(self._id, params=params[some : some + 100])

    def log(self, record: Record) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(name, value, now, record.round)
            for name, value in values_of(record).items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, status: str) -> None:
        self._client.set_tag(self._id, "status", status)
        ending = {"diverged": "FAILED", "interrupted": "KILLED"}.get(status, "FINISHED")
        self._client.set_terminated(self._id, ending)


class WeightsAndBiases(Logger):
    """A run of Weights & Biases, in the project of WANDB_PROJECT (default "undrift").

    Offline, where WANDB_MODE says so or no key is known: then `wandb` in the run folder holds what
    `wandb sync` sends later (a resumed run has two such folders, the second for `--append`).
    """

    def __init__(self) -> None:
        self._wandb = _library("wandb", "Weights & Biases")

    def start(self, begun: StartedRun) -> None:
        known = _read_id(begun.folder, "wandb") if begun.resumed_from is not None else None
        id = known or uuid.uuid4().hex[:16]
        _write_id(begun.folder, "wandb", id)
        mode = os.environ.get("WANDB_MODE")
        if mode is None:
            known_to = self._wandb.login(prompt=False, verify=False)
            mode = "online" if known_to else "offline"
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "undrift"),
            dir=str(begun.folder),
            id=id,
            name=begun.name,
            config={"label": begun.label, "seed": begun.seed, **begun.settings},
            mode=mode,
            resume="allow" if known and mode == "online" else None,
            reinit="create_new",
            settings=self._settings(),
        )

    def _settings(self) -> Any:
        kind = self._wandb.Settings
        wanted = {
            "console": "off",  # its lines would break our bars
            "silent": True,
            "x_disable_stats": True,
            "x_transaction_log_flush_interval": 1.0,  # seconds that a killed process loses
        }
        return kind(**{name: value for name, value in wanted.items() if name in kind.model_fields})

    def log(self, record: Record) -> None:
        # Otherwise it would hold the round back until the next one comes.
        self._run.log(values_of(record), step=record.round, commit=True)

    def finish(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status not in DONE or status == "diverged"))


LOGGERS: dict[str, type[Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class GuardedLogger(Logger):
    """A logger that cannot harm the run, and is not told of a round twice.

    Parameters
    ----------
    logger
        the one that is told
    name
        what it is called when it fails
    """

    def __init__(self, logger: Logger, name: str):
        self._logger: Logger | None = logger
        self._name = name
        self._last = -1

    def start(self, begun: StartedRun) -> None:
        if begun.resumed_from is not None:
            self._last = begun.resumed_from
        self._tell("start", begun)

    def log(self, record: Record) -> None:
        if record.round > self._last:
            self._last = record.round
            self._tell("log", record)

    def finish(self, status: str) -> None:
        self._tell("finish", status)

    def _tell(self, what: str, *values: object) -> None:
        if self._logger is None:
            return
        try:
            getattr(self._logger, what)(*values)
        except Exception as error:  # whatever a library raises, the run goes on
            self._logger = None
            warnings.warn(
                f"The logger {self._name!r} is switched off, since it failed: {first_line(error)}.",
                stacklevel=3,
            )


def make_logger(name: str) -> GuardedLogger:
    """The logger of a name of `LOGGERS`; a missing library is refused with a sentence."""
    require_choice("A logger", name, LOGGERS)
    return GuardedLogger(LOGGERS[name](), name)


def values_of(record: Record) -> dict[str, float]:
    """What is logged of a round: metrics, diagnostics and totals, by name."""
    return {name: float(value) for name, value in record.flat().items() if name != "round"}


def flattened(settings: Mapping[str, object], path: str = "") -> dict[str, object]:
    """Nested tables as dotted paths; the tables of a list are numbered."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        name = f"{path}{key}"
        if isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            value = {str(number): each for number, each in enumerate(value)}
        if isinstance(value, Mapping):
            found |= flattened(value, f"{name}.")
        else:
            found[name] = value
    return found


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _library(module: str, name: str) -> Any:
    """A module of an optional library."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UndriftError(
            f"Logging to {name} needs a library that cannot be loaded ({first_line(error)}): "
            f"pip install 'undrift[tracking]'."
        ) from error


def _read_id(folder: Path, name: str) -> str | None:
    file = folder / f"{name}.id"
    return file.read_text().strip() if file.is_file() else None


def _write_id(folder: Path, name: str, id: str) -> None:
    (folder / f"{name}.id").write_text(f"{id}\n")
