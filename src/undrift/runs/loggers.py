"""Loggers copy a run's records to TensorBoard, MLflow or Weights & Biases.

A run does not depend on its loggers: one that fails is switched off with a warning. A resumed run
logs only new rounds. If the process is killed, a logger may miss the last round (Weights & Biases
the last second); `records.jsonl` never does.
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
from undrift.utils.renamed import old_names

MLFLOW_BATCH_PARAMS = 100
"""MLflow's limit on parameters per call."""
MLFLOW_PARAM_CHARACTERS = 500
"""MLflow's limit on the length of a parameter's value."""


@dataclass(frozen=True)
class StartedRun:
    """A run that starts in its folder, or is resumed."""

    label: str
    """the label of its method"""
    seed: int
    settings: Mapping[str, object]
    """the settings of the experiment, or the arguments of the call, as plain values"""
    folder: Path
    """the subfolder of this run"""
    resumed_from: int | None = None
    """the last committed round of a resumed run; None for a new run"""

    @property
    def name(self) -> str:
        """The label and the seed, for display."""
        return f"{self.label}, seed {self.seed}"

    def described(self) -> dict[str, object]:
        """The label, the seed and all settings, with dotted keys."""
        return {"label": self.label, "seed": self.seed, **flattened(self.settings)}


class Logger(ABC):
    """The base class of loggers; a user's own logger is a subclass."""

    @abstractmethod
    def start(self, run: StartedRun) -> None:
        """A run starts, or is resumed."""

    @abstractmethod
    def log(self, record: Record) -> None:
        """A round is committed."""

    @abstractmethod
    def finish(self, status: str) -> None:
        """The run ended, as "finished", "stopped" or "diverged", or was "interrupted"."""


class TensorBoard(Logger):
    """Writes event files to `tensorboard` in the run folder: `tensorboard --logdir DIR`."""

    def __init__(self) -> None:
        self._event = _library("tensorboard.compat.proto.event_pb2", "TensorBoard")
        self._summary = _library("tensorboard.compat.proto.summary_pb2", "TensorBoard")
        self._tensor = _library("tensorboard.compat.proto.tensor_pb2", "TensorBoard")
        self._writers = _library("tensorboard.summary.writer.event_file_writer", "TensorBoard")

    def start(self, run: StartedRun) -> None:
        self._writer = self._writers.EventFileWriter(str(run.folder / "tensorboard"))
        if run.resumed_from is None:
            self._describe(run.described())
        else:
            # A round that was logged but not committed is computed again: this event makes
            # TensorBoard drop what was logged for it and later rounds.
            started = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write(run.resumed_from + 1, session_log=started)
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
        """Write the settings as a table for TensorBoard's page of texts."""
        rows = "\n".join(f"| {key} | {_text(value)} |" for key, value in settings.items())
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
    """Logs to a database `mlflow.db` in the run folder, or to the server of MLFLOW_TRACKING_URI.

    `mlflow ui --backend-store-uri sqlite:///DIR/…/mlflow.db` shows it.
    """

    experiment = "undrift"

    def __init__(self) -> None:
        self._tracking = _library("mlflow.tracking", "MLflow")
        self._entities = _library("mlflow.entities", "MLflow")
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            # mlflow-skinny does not install what its database needs.
            _library("sqlalchemy", "MLflow")
            _library("alembic", "MLflow")

    def start(self, run: StartedRun) -> None:
        for name in ("mlflow.store.db.utils", "alembic"):  # their log lines would break our bars
            logging.getLogger(name).setLevel(logging.WARNING)
        place, where = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not place:
            place = f"sqlite:///{run.folder.absolute() / 'mlflow.db'}"
            where = (run.folder.absolute() / "mlflow").as_uri()
        self._client = self._tracking.MlflowClient(tracking_uri=place)
        known = _read_id(run.folder, "mlflow")
        if known is not None and run.resumed_from is not None:
            self._id = known
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = (
            self._client.create_experiment(self.experiment, artifact_location=where)
            if found is None
            else found.experiment_id
        )
        tags = {"label": run.label, "seed": str(run.seed), "folder": str(run.folder)}
        created = self._client.create_run(experiment, run_name=run.name, tags=tags)
        self._id = created.info.run_id
        _write_id(run.folder, "mlflow", self._id)
        params = [
            self._entities.Param(key, _text(value)[:MLFLOW_PARAM_CHARACTERS])
            for key, value in run.described().items()
        ]
        for first in range(0, len(params), MLFLOW_BATCH_PARAMS):
            batch = params[first : first + MLFLOW_BATCH_PARAMS]
            self._client.log_batch(self._id, params=batch)

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
    """Logs to Weights & Biases, in the project of WANDB_PROJECT (default "undrift").

    It works offline if WANDB_MODE says so or if no API key is configured. Then `wandb sync` sends
    the folder `wandb` of the run folder later (a resumed run has two such folders; use `--append`
    for the second).
    """

    def __init__(self) -> None:
        self._wandb = _library("wandb", "Weights & Biases")

    def start(self, run: StartedRun) -> None:
        known = _read_id(run.folder, "wandb") if run.resumed_from is not None else None
        id = known or uuid.uuid4().hex[:16]
        _write_id(run.folder, "wandb", id)
        mode = os.environ.get("WANDB_MODE")
        if mode is None:
            has_key = self._wandb.login(prompt=False, verify=False)
            mode = "online" if has_key else "offline"
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "undrift"),
            dir=str(run.folder),
            id=id,
            name=run.name,
            config={"label": run.label, "seed": run.seed, **run.settings},
            mode=mode,
            resume="allow" if known and mode == "online" else None,
            reinit="create_new",
            settings=self._settings(),
        )

    def _settings(self) -> Any:
        kind = self._wandb.Settings
        wanted = {
            "console": "off",  # its output would break our bars
            "silent": True,
            "x_disable_stats": True,
            "x_transaction_log_flush_interval": 1.0,  # seconds; a killed process loses no more
        }
        return kind(**{name: value for name, value in wanted.items() if name in kind.model_fields})

    def log(self, record: Record) -> None:
        # Without commit, wandb holds a round back until the next one is logged.
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
    """Wraps a logger so that its errors do not stop the run and no round is logged twice.

    Parameters
    ----------
    logger
        the logger to wrap
    name
        its name in the warning if it fails
    """

    def __init__(self, logger: Logger, name: str):
        self._logger: Logger | None = logger
        self._name = name
        self._last_round = -1

    def start(self, run: StartedRun) -> None:
        if run.resumed_from is not None:
            self._last_round = run.resumed_from
        self._call("start", run)

    def log(self, record: Record) -> None:
        if record.round > self._last_round:
            self._last_round = record.round
            self._call("log", record)

    def finish(self, status: str) -> None:
        self._call("finish", status)

    def _call(self, name: str, *values: object) -> None:
        if self._logger is None:
            return
        try:
            getattr(self._logger, name)(*values)
        except Exception as error:  # a library may raise anything
            self._logger = None
            warnings.warn(
                f"The logger {self._name!r} failed and is switched off: {first_line(error)}.",
                stacklevel=3,
            )


def make_logger(name: str) -> GuardedLogger:
    """A logger by its name in `LOGGERS`; an error if its library is missing."""
    require_choice("A logger", name, LOGGERS)
    return GuardedLogger(LOGGERS[name](), name)


def values_of(record: Record) -> dict[str, float]:
    """The values of a record that are logged: metrics, diagnostics and totals, by name."""
    return {name: float(value) for name, value in record.flat().items() if name != "round"}


def flattened(settings: Mapping[str, object], path: str = "") -> dict[str, object]:
    """Nested tables as one table with dotted keys; tables in a list are numbered from 0."""
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


def _text(value: object) -> str:
    """A string itself, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _library(module: str, name: str) -> Any:
    """Import a module of an optional library; an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UndriftError(
            f"Logging to {name} needs a library that cannot be loaded ({first_line(error)}): "
            f"pip install 'undrift[tracking]'."
        ) from error


def _read_id(folder: Path, name: str) -> str | None:
    """The id that a tracking service gave to the run of a folder, if it was stored."""
    file = folder / f"{name}.id"
    return file.read_text().strip() if file.is_file() else None


def _write_id(folder: Path, name: str, id: str) -> None:
    (folder / f"{name}.id").write_text(f"{id}\n")


__getattr__ = old_names(__name__)
