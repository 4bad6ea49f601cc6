"""Run folders written from Python: mistakes, changed code, Ctrl-C, loggers, odd folders."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

import undrift as ud
from commands import called, command
from undrift.report import read_runs
from undrift.runs.loggers import Logger

DATA = ud.data.synthetic(1, 1, clients=5, seed=0, most=30)
OTHER = ud.data.synthetic(1, 1, clients=5, seed=1, most=30)


def options(**changed):
    found = dict(
        model=ud.models.logistic(60, 10),
        data=DATA,
        local=ud.SGD(lr=0.05, batch_size=10, epochs=1),
        rounds=3,
        engine="serial",
        progress=False,
    )
    return found | changed


def test_a_mistake_does_not_claim_the_folder(tmp_path):
    with pytest.raises(ud.UndriftError, match="every client takes part"):
        ud.train(ud.FedSplit(), **options(cohort=3), out=tmp_path / "x")
    ud.train(ud.FedSplit(), **options(), out=tmp_path / "x")
    assert read_runs(tmp_path / "x")[0].done == 3


def test_a_refused_extension_changes_nothing(tmp_path):
    first = ud.train(ud.FedAvg(), **options(), out=tmp_path)
    with pytest.raises(ud.UndriftError, match="belongs to another run"):
        ud.resume(tmp_path, ud.FedAvg(), **options(rounds=9, data=OTHER))
    again = ud.train(ud.FedAvg(), **options(), out=tmp_path)
    assert torch.equal(first.x, again.x)


def weighted(w):
    return lambda outputs, targets: w * torch.nn.functional.cross_entropy(outputs, targets)


class Some(ud.Sampler):
    participation = "fixed"

    def __init__(self, K):
        self.K = K

    def draw(self, roster, seed, round, among=None):
        return dict.fromkeys(roster.ids[: self.K], 1)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("loss", weighted(1.0), weighted(2.0)),
        (
            "loss",
            torch.nn.CrossEntropyLoss(weight=torch.ones(10)),
            torch.nn.CrossEntropyLoss(weight=2 * torch.arange(10.0)),
        ),
        ("cohort", Some(2), Some(3)),
        (
            "local",
            ud.SGD(lr=lambda round: 0.1, batch_size=10, epochs=1),
            ud.SGD(lr=lambda round: 0.2, batch_size=10, epochs=1),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The loss is not a mean")
def test_code_and_weights_that_differ_are_refused(name, before, after, tmp_path):
    ud.train(ud.FedAvg("original"), **options(**{name: before}), out=tmp_path)
    with pytest.raises(ud.UndriftError, match="has other runs"):
        ud.resume(tmp_path, ud.FedAvg("original"), **options(**{name: after}, rounds=4))
    longer = ud.resume(tmp_path, ud.FedAvg("original"), **options(**{name: before}, rounds=4))
    assert longer.records[-1].round == 4


def test_defaults_that_are_spelled_out_are_the_same_arguments(tmp_path):
    ud.train(ud.FedAvg(), **options(), out=tmp_path)
    explicit = options(objective="samples", target={}, metrics={})
    assert ud.resume(tmp_path, ud.FedAvg(), **explicit).records[-1].round == 3


def test_a_file_whose_code_was_edited_warns(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch.nn import functional as F\ndef loss(o, t):\n    return F.cross_entropy(o, t)\n"
    )
    (tmp_path / "e.toml").write_text(
        'rounds = 2\nloss = "mine.py:loss"\n[data]\nsource = "synthetic"\nclients = 4\nmost = 20\n'
        '[model]\nname = "logistic"\n[local]\nlr = 0.1\nepochs = 1\n[[method]]\nname = "FedAvg"\n'
        '[engine]\nname = "serial"\n'
    )
    assert called("run", "e.toml", "--out", "x", cwd=tmp_path).returncode == 0
    assert "was edited" not in called("resume", "x", "--rounds", "3", cwd=tmp_path).stderr
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("return", "return 5 *"))
    changed = command("resume", "x", "--rounds", "4", cwd=tmp_path)
    assert changed.returncode == 0
    assert "was edited since the runs of x began" in " ".join(changed.stderr.split())


INTERRUPTED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import undrift as ud
from test_python_folders import options

def stop(run, record):
    if record.round == {at}:
        os.kill(os.getpid(), signal.SIGINT)

ud.compare([ud.FedAvg(), ud.FedDyn(0.5)], **options(callbacks=[stop]), out={out!r})
print("went on")
"""


@pytest.mark.parametrize("at", [1, 3])
def test_ctrl_c_ends_the_script_and_loses_nothing(at, tmp_path):
    program = INTERRUPTED.format(tests=os.path.dirname(__file__), out=str(tmp_path / "x"), at=at)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert "went on" not in ended.stdout
    assert ended.returncode == -signal.SIGINT, ended.stderr
    methods = [ud.FedAvg(), ud.FedDyn(0.5)]
    resumed, whole = (
        ud.resume(tmp_path / "x", methods, **options()),
        ud.compare(methods, **options()),
    )
    for a, b in zip(resumed, whole, strict=True):
        assert torch.equal(a.x, b.x)


class Broken(Logger):
    def start(self, begun):
        pass

    def log(self, record):
        raise RuntimeError("no connection")

    def finish(self, status):
        pass


def test_loggers_of_your_own_do_not_end_a_run(tmp_path):
    with pytest.warns(UserWarning, match="no connection"):
        ud.train(ud.FedAvg(), **options(), out=tmp_path, loggers=[Broken()])
    assert read_runs(tmp_path)[0].status == "finished"
    for wrong in ([3], "tensorboard"):
        with pytest.raises(ud.UndriftError, match="loggers must be a list"):
            ud.train(ud.FedAvg(), **options(), out=tmp_path / "y", loggers=wrong)


def test_labels_that_name_one_folder_are_refused(tmp_path):
    with pytest.raises(ud.UndriftError, match="name the same folder"):
        ud.compare({"a b": ud.FedAvg(), "a-b": ud.FedDyn(1.0)}, **options(), out=tmp_path)
    with pytest.raises(ud.UndriftError, match="must be a text"):
        ud.compare({1: ud.FedAvg()}, **options(), out=tmp_path)


def test_odd_folders_get_a_sentence(tmp_path):
    (tmp_path / "FedAvg").write_text("a file")
    with pytest.raises(ud.UndriftError, match="cannot be created"):
        ud.train(ud.FedAvg(), **options(), out=tmp_path)
    (tmp_path / "FedAvg").unlink()
    ud.train(ud.FedAvg(), **options(), out=tmp_path)
    path = tmp_path / "FedAvg" / "seed-0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rounds": "abc"}))
    with pytest.raises(ud.UndriftError, match=r"run.json is damaged"):
        ud.train(ud.FedAvg(), **options(), out=tmp_path)
    (tmp_path / "arguments.toml").write_text('rounds = "abc"\n')
    with pytest.raises(ud.UndriftError, match=r"arguments.toml is damaged"):
        ud.resume(tmp_path, ud.FedAvg(), **{k: v for k, v in options().items() if k != "rounds"})


def test_weights_from_the_folder_of_another_run(tmp_path):
    first = ud.train(ud.FedAvg(), **options(), out=tmp_path / "x")
    for place in (tmp_path / "x", first.folder, first.folder / "model.safetensors"):
        warm = ud.train(ud.FedAvg(), **options(rounds=1), weights=place)
        assert warm.records[0].metrics == first.records[-1].metrics
    with pytest.raises(ud.UndriftError, match="There is no file of initial weights"):
        ud.train(ud.FedAvg(), **options(), weights=tmp_path / "nothing")
