"""Loggers, read back with the libraries' own readers."""

import builtins
import math
import os
import struct
import subprocess
import sys
import time

import pytest

from undrift.core.records import Record
from undrift.runs.loggers import (
    LOGGERS,
    GuardedLogger,
    Logger,
    StartedRun,
    flattened,
    make_logger,
    values_of,
)
from undrift.utils.errors import UndriftError

SETTINGS = {"local": {"lr": 0.1}, "method": [{"name": "FedDyn", "alpha": 0.01}], "rounds": 3}


def record(round, loss=None):
    return Record(
        round,
        metrics={"train_loss": 1.0 / (round + 1) if loss is None else loss, "cohort/loss": 2.0},
        diagnostics={"drift": 0.5},
        cohort=[1, 2],
        bytes_down={"x": 40, "h": 2},
        gradients=7,
    )


def resumed_run(name, folder):
    """Rounds 0 to 2, an interruption, and rounds 2 (again) to 4."""
    first = make_logger(name)
    first.start(StartedRun("FedDyn .01", 3, SETTINGS, folder, None))
    for round in (0, 1, 2):
        first.log(record(round))
    first.finish("interrupted")
    second = make_logger(name)
    second.start(StartedRun("FedDyn .01", 3, SETTINGS, folder, 2))
    for round in (2, 3, 4):
        second.log(record(round))
    second.finish("finished")


LOSSES = [(round, pytest.approx(1.0 / (round + 1))) for round in range(5)]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    resumed_run("tensorboard", tmp_path)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in found.Scalars("train_loss")] == LOSSES
    assert [e.value for e in found.Scalars("bytes_down")] == [42.0] * 5
    assert {"cohort/loss", "drift", "gradients"} <= set(found.Tags()["scalars"])
    assert "round" not in found.Tags()["scalars"]
    (text,) = found.Tensors("settings/text_summary")
    assert b"| local.lr | 0.1 |" in text.tensor_proto.string_val[0]
    assert b"| method.0.alpha | 0.01 |" in text.tensor_proto.string_val[0]


def test_tensorboard_drops_a_round_that_was_logged_but_not_committed(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    killed = make_logger("tensorboard")
    killed.start(StartedRun("a", 0, {}, tmp_path, None))
    for round in (0, 1, 2):
        killed.log(record(round))  # flushed after every round
    again = make_logger("tensorboard")
    again.start(StartedRun("a", 0, {}, tmp_path, 1))
    again.log(record(2))
    again.finish("finished")
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in found.Scalars("train_loss")] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside mlflow
@pytest.mark.parametrize("place", ["folder", "server"])
def test_mlflow(tmp_path, monkeypatch, place):
    for library in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from mlflow.tracking import MlflowClient

    own = f"sqlite:///{tmp_path}/mlflow.db"
    if place == "server":
        own = f"sqlite:///{tmp_path}/elsewhere.db"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", own)
    else:
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    resumed_run("mlflow", tmp_path)
    assert (tmp_path / "mlflow.db").exists() == (place == "folder")
    client = MlflowClient(tracking_uri=own)
    (run,) = client.search_runs([client.get_experiment_by_name("undrift").experiment_id])
    assert run.info.run_name == "FedDyn .01, seed 3"
    assert run.info.status == "FINISHED" and run.data.tags["status"] == "finished"
    assert run.data.params["method.0.alpha"] == "0.01" and run.data.params["seed"] == "3"
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in history] == LOSSES
    assert {m.value for m in client.get_metric_history(run.info.run_id, "cohort/loss")} == {2.0}


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    resumed_run("wandb", tmp_path)
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    id = (tmp_path / "wandb.id").read_text().strip()
    assert [file.name for file in files] == [f"run-{id}.wandb"] * 2  # one run, started twice
    history, configs = [], []
    for file in files:
        for found in wandb_closed(file):
            if found.HasField("history"):
                items = {
                    (i.key or "/".join(i.nested_key)): i.value_json for i in found.history.item
                }
                history.append((int(items["_step"]), float(items["train_loss"])))
                assert float(items["bytes_down"]) == 42
            if found.HasField("run"):
                configs.append({i.key: i.value_json for i in found.run.config.update})
    assert sorted(history) == LOSSES
    assert configs[0]["local"] == '{"lr":0.1}' and configs[0]["seed"] == "3"


def test_wandb_keeps_what_a_killed_process_logged(tmp_path):
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from undrift.core.records import Record\n"
        "from undrift.runs.loggers import StartedRun, make_logger\n"
        "logger = make_logger('wandb')\n"
        "logger.start(StartedRun('a', 0, {}, Path(sys.argv[1])))\n"
        "for round in range(3):\n"
        "    logger.log(Record(round, metrics={'train_loss': 1.0}))\n"
        "time.sleep(2.5)\n"
        "import os; os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "WANDB_MODE": "offline"}, check=False)
    assert done.returncode == -9
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert sum(found.HasField("history") for found in wandb_records(file)) == 3


def wandb_closed(file, seconds=30):
    """The records of a file once it is complete: its writer is a separate process."""
    end = time.monotonic() + seconds
    while not any(found.HasField("exit") for found in wandb_records(file)):
        assert time.monotonic() < end, f"{file} was not closed"
        time.sleep(0.05)
    return wandb_records(file)


def wandb_records(file):
    """The records of an offline file: protobuf messages in the log format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record as Message

    content, at, parts = file.read_bytes(), 7, []
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of the block
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last fragment of one
            yield Message.FromString(b"".join(parts))
            parts = []


@pytest.mark.parametrize("name", LOGGERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_values_that_are_not_finite_are_logged(tmp_path, monkeypatch, name):
    pytest.importorskip({"mlflow": "sqlalchemy"}.get(name, name), reason=f"{name} is not installed")
    pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logger = make_logger(name)
    logger.start(StartedRun("a", 0, {}, tmp_path, None))
    logger.log(record(0, math.nan))
    logger.log(record(1, math.inf))
    logger.finish("diverged")
    assert logger._logger is not None  # not switched off


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_library_is_named(monkeypatch, name):
    missing = {"wandb": "wandb", "mlflow": "mlflow", "tensorboard": "tensorboard"}[name]
    for module in [m for m in sys.modules if m.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, module)
    real = builtins.__import__

    def absent(module, *rest, **named):
        if module.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {missing!r}")
        return real(module, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setattr("undrift.runs.loggers.import_module", absent)
    with pytest.raises(UndriftError, match=r"pip install 'undrift\[tracking\]'\.$"):
        make_logger(name)


def test_an_unknown_logger_is_refused_with_a_suggestion():
    with pytest.raises(UndriftError, match="did you mean 'tensorboard'"):
        make_logger("tensorbord")


class Failing(Logger):
    def __init__(self, when):
        self.when, self.told = when, []

    def start(self, begun):
        self._tell("start")

    def log(self, record):
        self._tell(record.round)

    def finish(self, status):
        self._tell(status)

    def _tell(self, what):
        self.told.append(what)
        if what == self.when:
            raise ConnectionError("the server is away\nand more")


@pytest.mark.parametrize(
    ("when", "told"),
    [("start", 1), (1, 3), ("finished", 5), ("never", 5)],
)
def test_a_failing_logger_is_switched_off_with_one_warning(tmp_path, recwarn, when, told):
    failing = Failing(when)
    logger = GuardedLogger(failing, "mine")
    logger.start(StartedRun("a", 0, {}, tmp_path, None))
    for round in (0, 1, 2):
        logger.log(record(round))
    logger.finish("finished")
    assert len(failing.told) == told
    said = [str(each.message) for each in recwarn]
    sentence = "The logger 'mine' failed and is switched off: ConnectionError: the server is away."
    assert said == ([] if when == "never" else [sentence])


def test_every_round_is_logged_once(tmp_path):
    told = Failing("never")
    logger = GuardedLogger(told, "mine")
    logger.start(StartedRun("a", 0, {}, tmp_path, 3))
    for round in (2, 3, 4, 4, 5):
        logger.log(record(round))
    assert told.told == ["start", 4, 5]


def test_nested_settings_get_dotted_keys():
    assert flattened(SETTINGS) == {
        "local.lr": 0.1,
        "method.0.name": "FedDyn",
        "method.0.alpha": 0.01,
        "rounds": 3,
    }
    assert flattened({"hidden": [200, 100], "none": []}) == {"hidden": [200, 100], "none": []}


def test_totals_are_logged():
    values = values_of(record(1))
    assert values["bytes_down"] == 42 and values["clients"] == 2 and "round" not in values
