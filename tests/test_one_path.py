"""One experiment through several interfaces: Python (memory, run folder), a file, a deployment.

Its loss, metric, sampler and learning-rate schedule are the user's own functions and classes.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from commands import called
from undrift.report import read_runs

SITES = ["north", "east", "south", "west"]
PARTS = '''
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud

SITES = ["north", "east", "south", "west"]
WEIGHTS = torch.tensor([1.0, 4.0])


def model():
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(torch.linspace(-1, 1, 6).reshape(2, 3))
        module.bias.zero_()
    return module


def data(site):
    rng = torch.Generator().manual_seed(SITES.index(site))
    x = torch.randn(40, 3, generator=rng) + SITES.index(site) / 2
    y = (x.sum(1) > 1).long()
    return {"train": (x[:30], y[:30]), "test": (x[30:], y[30:])}


def loss(outputs, targets):
    """Divides by the weights of the batch, so it is not a mean of per-sample losses."""
    return F.cross_entropy(outputs, targets, weight=WEIGHTS)


def auc(outputs, targets):
    scores = outputs[:, 1] - outputs[:, 0]
    pairs = scores[targets == 1][:, None] - scores[targets == 0][None, :]
    return (pairs > 0).double().mean() + (pairs == 0).double().mean() / 2


class InTurn(ud.Sampler):
    """K clients per round, in turn."""

    participation = "fixed"

    def __init__(self, K=2):
        self.K = K

    def draw(self, roster, seed, round, among=None):
        there = [k for k in range(len(roster.ids)) if among is None or among[k]]
        first = round * self.K
        return {roster.ids[there[(first + i) % len(there)]]: 1 for i in range(self.K)}


def rate(round):
    return 0.2 / (1 + round)
'''
FILE = """
rounds = 5
loss = "parts.py:loss"

[data]
source = "parts.py:data"
sites = ["north", "east", "south", "west"]

[model]
name = "parts.py:model"

[metrics]
auc = "parts.py:auc"

[local]
lr = "parts.py:rate"
batch_size = 8
epochs = 2
momentum = 0.5

[sampling]
kind = "parts.py:InTurn"
K = 3

[[method]]
name = "SCAFFOLD"

[[method]]
name = "FedDyn"
alpha = 0.5

[engine]
name = "serial"

[evaluation]
models = ["server", "all"]

[target]
test_auc = ["above", 2.0]
"""


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "parts.py").write_text(PARTS)
    (folder / "experiment.toml").write_text(FILE)
    return folder


def arguments(app):
    spec = importlib.util.spec_from_file_location("parts", app / "parts.py")
    parts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(parts)
    own = {site: parts.data(site) for site in SITES}
    data = ud.data.FederatedData.from_clients(
        {site: each["train"] for site, each in own.items()},
        test={site: each["test"] for site, each in own.items()},
    )
    return [ud.SCAFFOLD(), ud.FedDyn(alpha=0.5)], dict(
        model=parts.model(),
        data=data,
        loss=parts.loss,
        metrics={"auc": parts.auc},
        local=ud.SGD(lr=parts.rate, batch_size=8, epochs=2, momentum=0.5),
        cohort=parts.InTurn(3),
        rounds=5,
        engine="serial",
        evaluate=ud.Evaluation(models=("server", "all")),
        target={"test_auc": ("above", 2.0)},
        progress=False,
    )


def without_times(records):
    found = [record.flat() for record in records]
    return [{k: v for k, v in each.items() if k not in ("seconds", "strategy")} for each in found]


def test_memory_folder_and_file_give_the_same_bits(app, tmp_path):
    methods, options = arguments(app)
    memory = ud.compare(methods, **options)
    folder = ud.compare(methods, **options, out=tmp_path / "python")
    run = called("run", "experiment.toml", "--out", str(tmp_path / "file"), cwd=app)
    assert run.returncode == 0, run.stderr
    file = ud.resume(tmp_path / "file", progress=False)
    assert "train_auc" in memory[0].metrics and "test_auc" in memory[0].metrics
    for a, b, c in zip(memory, folder, file, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.x, c.x)
        assert without_times(a.records) == without_times(b.records) == without_times(c.records)
    for written in ("python", "file"):
        runs = read_runs(tmp_path / written)
        assert [run.label for run in runs] == ["SCAFFOLD", "FedDyn"]
        for run, result in zip(runs, memory, strict=True):
            assert without_times(run.records) == without_times(result.records)
        assert runs.targets() == [("test_auc", ("above", 2.0))]
        assert called("report", str(tmp_path / written), cwd=tmp_path).returncode == 0


def test_the_schedule_and_the_sampler_change_the_result(app):
    methods, options = arguments(app)
    own = ud.train(methods[0], **options)
    fixed = ud.train(
        methods[0], **{**options, "local": ud.SGD(lr=0.2, batch_size=8, epochs=2, momentum=0.5)}
    )
    assert not torch.equal(own.x, fixed.x)
    assert [record.cohort for record in own.records[1:3]] == [
        ["east", "north", "south"],
        ["west", "east", "north"],
    ]
    plain = {**options}
    del plain["loss"]
    assert not torch.equal(own.x, ud.train(methods[0], **plain).x)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import undrift as ud
from test_one_path import arguments
from undrift.runs import storage

methods, options = arguments(Path({app!r}))
commit = storage.commit
def deadly(run, store, record):
    commit(run, store, record)
    if record.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)
storage.commit = deadly
ud.train(methods[0], **options, out={out!r})
"""


def test_a_killed_python_run_resumes_to_the_same_bits(app, tmp_path):
    out = tmp_path / "killed"
    tests = str(Path(__file__).parent)
    program = KILLED.format(tests=tests, app=str(app), out=str(out))
    died = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    methods, options = arguments(app)
    assert read_runs(out)[0].done == 1  # killed between the store and the line of round 2
    resumed = ud.resume(out, methods[0], **{k: v for k, v in options.items() if k != "rounds"})
    whole = ud.train(methods[0], **options)
    assert torch.equal(resumed.x, whole.x)
    assert without_times(resumed.records) == without_times(whole.records)
    assert resumed.folder == out / "SCAFFOLD" / "seed-0"
    # An extended run equals a longer run.
    longer = ud.resume(out, methods[0], **{**options, "rounds": 8})
    assert torch.equal(longer.x, ud.train(methods[0], **{**options, "rounds": 8}).x)
    assert tomllib.loads((out / "arguments.toml").read_text())["rounds"] == 8


def test_a_finished_file_run_is_extended_by_the_command(app, tmp_path):
    assert called("run", "experiment.toml", "--out", str(tmp_path / "x"), cwd=app).returncode == 0
    again = called(
        "run", "experiment.toml", "--set", "rounds=7", "--out", str(tmp_path / "x"), cwd=app
    )
    assert again.returncode != 0 and "--rounds 7" in " ".join(again.stderr.split())
    longer = called("resume", str(tmp_path / "x"), "--rounds", "7", cwd=app)
    assert longer.returncode == 0, longer.stderr
    methods, options = arguments(app)
    whole = ud.compare(methods, **{**options, "rounds": 7})
    for result, run in zip(whole, ud.resume(tmp_path / "x", progress=False), strict=True):
        assert torch.equal(result.x, run.x)
    assert tomllib.loads((tmp_path / "x" / "experiment.toml").read_text())["rounds"] == 7
    shorter = called("resume", str(tmp_path / "x"), "--rounds", "3", cwd=app)
    assert "extended, not shortened" in shorter.stderr


def test_other_arguments_raise(app, tmp_path):
    methods, options = arguments(app)
    ud.train(methods[0], **options, out=tmp_path / "x")
    for changed, said in (
        ({"cohort": 2}, "its cohort was"),
        ({"local": ud.GD(lr=0.1, steps=1)}, "its method was"),
        ({"rounds": 4}, "extended, not shortened"),
        ({"model": torch.nn.Linear(3, 2)}, "its model was"),
    ):
        with pytest.raises(ud.UndriftError, match=said):
            ud.resume(tmp_path / "x", methods[0], **{**options, **changed})
    with pytest.raises(ud.UndriftError, match="was written from Python"):
        ud.resume(tmp_path / "x")
    refused = called("resume", str(tmp_path / "x"), cwd=tmp_path)
    assert refused.returncode != 0 and "ud.resume" in refused.stderr
    with pytest.raises(ud.UndriftError, match="loggers need a run folder"):
        ud.train(methods[0], **options, loggers=["tensorboard"])
    with pytest.raises(ud.UndriftError, match="is not a run folder"):
        ud.resume(tmp_path / "nothing", methods[0], **options)


def test_local_work_per_method(app):
    methods, options = arguments(app)
    local = options.pop("local")
    other = ud.SGD(lr=0.05, batch_size=8, epochs=1)
    both = ud.compare(methods, local={"SCAFFOLD": local, "FedDyn": other}, **options)
    assert torch.equal(both["SCAFFOLD"].x, ud.train(methods[0], local=local, **options).x)
    assert torch.equal(both["FedDyn"].x, ud.train(methods[1], local=other, **options).x)
    with pytest.raises(ud.UndriftError, match="local has no entry for 'FedDyn'"):
        ud.compare(methods, local={"SCAFFOLD": local}, **options)
    with pytest.raises(ud.UndriftError, match="A label of local"):
        ud.compare(methods, local={"SCAFOLD": local, "FedDyn": local}, **options)


@pytest.mark.deploy
def test_a_local_deployment_gives_the_same_metrics(app, tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed")
    simulated = called("run", "experiment.toml", "--out", str(tmp_path / "file"), cwd=app)
    assert simulated.returncode == 0, simulated.stderr
    deployed = subprocess.run(
        [
            sys.executable,
            "-m",
            "undrift",
            "deploy",
            "local",
            str(app),
            "--out",
            str(tmp_path / "d"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert deployed.returncode == 0, deployed.stderr
    ours, theirs = read_runs(tmp_path / "file"), read_runs(tmp_path / "d")
    for a, b in zip(ours, theirs, strict=True):
        assert [r.cohort for r in a.records] == [r.cohort for r in b.records]
        assert a.metrics.keys() - {"objective"} <= b.metrics.keys() | {"objective"}
        for name in ("train_loss", "train_accuracy", "test_accuracy"):
            assert a.metrics[name] == pytest.approx(b.metrics[name], rel=1e-4, abs=1e-5), name
    for label in ("SCAFFOLD", "FedDyn"):
        a = load_file(tmp_path / "file" / label / "seed-0" / "model.safetensors")
        b = load_file(tmp_path / "d" / label / "seed-0" / "model.safetensors")
        for name, value in a.items():
            torch.testing.assert_close(value, b[name], rtol=1e-5, atol=1e-6)
