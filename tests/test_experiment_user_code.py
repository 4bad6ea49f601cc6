"""Experiment files that name the user's own losses, metrics, weights, samplers and other parts."""

import tomllib

import numpy as np
import pytest
import torch
from torch import nn

import undrift as ud
from deployments import InProcess, app
from experiments import tables
from undrift.core.sampling import Sampler
from undrift.deploy.agreement import facts, first_difference
from undrift.deploy.server import serve
from undrift.experiments.building import build_data, build_losses, build_model
from undrift.experiments.experiment import Experiment
from undrift.nets.weights import load_weights, save_weights
from undrift.report.recorded_runs import read_runs
from undrift.runs.experiment_runs import run_experiment
from undrift.runs.sweeps.sweep import run_sweep
from undrift.utils.errors import UndriftError

CODE = """
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from undrift import Sampler, Schedule
from undrift.data import Augmentation

number = 3


def focal(outputs, targets, gamma=2.0):
    p = F.softmax(outputs, 1).gather(1, targets[:, None])[:, 0]
    return (-((1 - p) ** gamma) * p.log()).mean()


class Smooth(nn.Module):
    def __init__(self, smoothing: float = 0.1):
        super().__init__()
        self.inner = nn.CrossEntropyLoss(label_smoothing=smoothing)

    def forward(self, outputs, targets):
        return self.inner(outputs, targets)


def made():
    return nn.CrossEntropyLoss()


def smooth_step(model, batch, smoothing: float = 0.1):
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets, label_smoothing=smoothing)


def one_argument(outputs):
    return outputs.sum()


def top(outputs, targets, k: int = 2):
    return (outputs.topk(k, 1).indices == targets[:, None]).any(1).double().mean()


@dataclass(frozen=True)
class Turns(Sampler):
    size: int = 2
    participation = "uniform"

    def draw(self, roster, seed, round, among=None):
        ids = list(roster.ids)
        return {ids[(round + k) % len(ids)]: 1 for k in range(self.size)}


class Nothing(Sampler):
    def draw(self, roster, seed, round, among=None):
        return {}


@dataclass(frozen=True)
class Halving(Schedule):
    lr: float
    every: int = 2

    def at(self, round):
        return self.lr * 0.5 ** (round // self.every)


def decay(round, first=0.1):
    return first / (1 + round)


def negative(round):
    return -1.0


@dataclass(frozen=True)
class Noise(Augmentation):
    std: float = 0.1

    def draw(self, samples, rng):
        return torch.from_numpy(rng.standard_normal(samples))

    def apply(self, x, drawn):
        return x + self.std * drawn.to(x).view(-1, *[1] * (x.ndim - 1))


def in_turn(targets, clients, rng, first=0):
    return [np.arange(first + k, len(targets), clients) for k in range(clients)]


def twice(targets, clients, rng):
    return [[0, 1]] * clients
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def small(**changes):
    return {
        "rounds": 2,
        "data": {"source": "synthetic", "clients": 4, "most": 30},
        "model": {"name": "logistic"},
        "local": {"lr": 0.1, "batch_size": 10, "steps": 2},
        "method": [{"name": "FedAvg"}],
        "engine": {"name": "serial"},
        **changes,
    }


def read(folder, settings=None, **changes):
    return Experiment.from_dict(small(**changes), settings, folder=folder)


def refusal(folder, settings=None, **changes):
    with pytest.raises(UndriftError) as caught:
        read(folder, settings, **changes)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def again(experiment, folder):
    """The experiment after the way to a file in another folder and back."""
    (folder / "elsewhere").mkdir(exist_ok=True)
    experiment.write(folder / "elsewhere" / "e.toml")
    found = Experiment.load(folder / "elsewhere" / "e.toml")
    assert found.resolved() == experiment.resolved()
    return found


class TestStep:
    @pytest.mark.parametrize("smoothing", [None, 0.3])
    def test_trains_as_the_loss_that_it_computes(self, folder, smoothing):
        step = "mine.py:smooth_step"
        step = step if smoothing is None else {"name": step, "smoothing": smoothing}
        found = again(read(folder, step=step), folder)
        assert found.step == {
            "name": f"{folder}/mine.py:smooth_step",
            "smoothing": smoothing or 0.1,
        }
        data = build_data(found)
        result = ud.train(
            ud.FedAvg(),
            model=build_model(found, data, 0),
            data=data,
            loss=nn.CrossEntropyLoss(label_smoothing=smoothing or 0.1),
            local=found.local_of("FedAvg"),
            rounds=2,
            engine="serial",
        )
        run_experiment(found, folder / "run", data)
        mine = read_runs(folder / "run")[0].records[-1].metrics["train_loss"]
        assert mine == pytest.approx(result.records[-1].metrics["train_loss"], rel=1e-5)

    def test_is_refused_if_it_is_none(self, folder):
        assert "(model, batch)" in refusal(folder, step="mine.py:one_argument")
        other = read(folder, step="mine.py:smooth_step", loss="mine.py:focal")
        with pytest.raises(UndriftError, match="either a loss"):
            build_losses(other, build_data(other), 0)


class TestLoss:
    @pytest.mark.parametrize(
        ("loss", "wanted"),
        [
            ("mine.py:focal", lambda o, t: ud_focal(o, t, 2.0)),
            ({"name": "mine.py:focal", "gamma": 1.0}, lambda o, t: ud_focal(o, t, 1.0)),
            ("mine.py:Smooth", nn.CrossEntropyLoss(label_smoothing=0.1)),
            (
                {"name": "mine.py:Smooth", "smoothing": 0.3},
                nn.CrossEntropyLoss(label_smoothing=0.3),
            ),
            ("mine.py:made", nn.CrossEntropyLoss()),
            ("torch.nn:CrossEntropyLoss", nn.CrossEntropyLoss()),
            ({"name": "torch.nn:MultiMarginLoss", "margin": 0.5}, nn.MultiMarginLoss(margin=0.5)),
            ("torch.nn.functional:cross_entropy", nn.functional.cross_entropy),
        ],
    )
    def test_is_the_one_that_train_takes(self, folder, loss, wanted):
        found = again(read(folder, loss=loss), folder)
        data = build_data(found)
        losses = build_losses(found, data, 0)
        result = ud.train(
            ud.FedAvg(),
            model=build_model(found, data, 0),
            data=data,
            loss=wanted,
            local=found.local_of("FedAvg"),
            rounds=2,
            engine="serial",
            progress=False,
        )
        mine = run_experiment(found, folder / "run", data)
        records = read_runs(folder / "run")[0].records
        assert mine[0].status == "finished"
        assert [r.metrics for r in records] == [r.metrics for r in result.records]
        assert losses.dimension == 610

    def test_paths_are_written_in_full_and_defaults_too(self, folder):
        found = read(folder, loss="mine.py:focal")
        assert found.loss == {"name": f"{folder}/mine.py:focal", "gamma": 2.0}
        assert read(folder, loss="mine.py:made").loss == f"{folder}/mine.py:made"
        assert read(folder, loss="none").loss is None

    def test_settings_and_sweeps_reach_its_parameters(self, folder):
        changed = read(folder, {"loss.gamma": 5.0}, loss="mine.py:focal")
        assert changed.loss["gamma"] == 5.0
        assert read(folder, {"loss": "mine.py:made"}).loss.endswith("mine.py:made")
        said = refusal(folder, loss="mine.py:focal", sweep={"loss.gama": [1.0]})
        assert said.startswith("sweep.loss.gama: ")

    @pytest.mark.parametrize(
        ("loss", "start", "words"),
        [
            (3, "loss: ", "file.py:function"),
            ("focal", "loss: ", "file.py:function"),
            ("mine.py:nothing", "loss: ", "has no 'nothing'"),
            ("mine.py:number", "loss: ", "callable as (outputs, targets)"),
            ("mine.py:one_argument", "loss: ", "a function of (outputs, targets)"),
            ("no.py:loss", "loss: ", "There is no file"),
            ({"name": "mine.py:focal", "gama": 1}, "loss.gama: ", "did you mean 'gamma'?"),
            ({"name": "mine.py:Smooth", "smoothing": "x"}, "loss.smoothing: ", "a number"),
            ({"gamma": 1}, "loss.name: ", "file.py:function"),
            ({"name": "mine.py:number", "x": 1}, "loss.x: ", "takes no parameters"),
        ],
    )
    def test_is_refused_with_a_sentence(self, folder, loss, start, words):
        said = refusal(folder, loss=loss)
        assert said.startswith(start), said
        assert words in said


def ud_focal(outputs, targets, gamma):
    p = nn.functional.softmax(outputs, 1).gather(1, targets[:, None])[:, 0]
    return (-((1 - p) ** gamma) * p.log()).mean()


class TestMetrics:
    def test_are_in_the_records_and_can_be_targets(self, folder):
        metrics = {"top2": "mine.py:top", "all": {"name": "mine.py:top", "k": 10}}
        target = {"test_all": ["above", 0.99]}
        found = again(read(folder, metrics=metrics, target=target), folder)
        assert found.metrics["top2"] == {"name": f"{folder}/mine.py:top", "k": 2}
        (outcome,) = run_experiment(found, folder / "run")
        assert outcome.status == "stopped"
        assert outcome.reason == "test_all reached 0.99"
        (run,) = read_runs(folder / "run")
        measured = run.records[-1].metrics
        assert measured["train_all"] == 1.0
        assert 0.0 <= measured["test_top2"] <= 1.0

    @pytest.mark.parametrize(
        ("changes", "start", "words"),
        [
            ({"metrics": "mine.py:top"}, "metrics", "a table such as"),
            ({"metrics": {"a": 1}}, "metrics.a: ", "file.py:function"),
            ({"metrics": {"a b": "mine.py:top"}}, "metrics.a b: ", "letters, digits and _"),
            ({"metrics": {"accuracy": "mine.py:top"}}, "metrics.accuracy: ", "another name"),
            (
                {"metrics": {"a": "mine.py:top"}, "target": {"test_a": 1}},
                "target.test_a",
                '"above"',
            ),
            ({"target": {"test_a": ["above", 1]}}, "target.test_a", "one of"),
            ({"metrics": {"a": {"name": "mine.py:top", "k": "x"}}}, "metrics.a.k", "whole number"),
        ],
    )
    def test_are_refused_with_a_sentence(self, folder, changes, start, words):
        said = refusal(folder, **changes)
        assert said.startswith(start), said
        assert words in said

    def test_settings_reach_their_parameters(self, folder):
        found = read(folder, {"metrics.a.k": 3}, metrics={"a": "mine.py:top"})
        assert found.metrics["a"]["k"] == 3


class TestWeights:
    @pytest.fixture
    def pretrained(self, folder):
        found = read(folder)
        run_experiment(found, folder / "runs" / "pretrain")
        return folder / "runs" / "pretrain" / "FedAvg" / "seed-0" / "model.safetensors"

    def test_a_file_or_the_folder_of_a_run(self, folder, pretrained):
        for weights in (
            "runs/pretrain/FedAvg/seed-0/model.safetensors",
            "runs/pretrain/FedAvg/seed-0",
            "runs/pretrain/FedAvg",
            "runs/pretrain",
            str(pretrained),
        ):
            found = again(read(folder, weights=weights), folder)
            assert found.weights == str(pretrained)
        data = build_data(found)
        x = build_losses(found, data, 0).initial()
        wanted = build_losses(read(folder), data, 0).flat.module
        assert not torch.equal(x, build_losses(read(folder), data, 0).initial())
        load_weights(wanted, pretrained)
        assert torch.equal(x, torch.cat([p.detach().flatten() for p in wanted.parameters()]))

    def test_several_runs_are_listed(self, folder):
        run_experiment(read(folder, seeds=[0, 1]), folder / "runs")
        said = refusal(folder, weights="runs")
        assert said.startswith("weights: ")
        assert "FedAvg/seed-0, FedAvg/seed-1" in said

    def test_are_refused_with_a_sentence(self, folder):
        (folder / "empty").mkdir()
        assert "no file of initial weights" in refusal(folder, weights="nothing.safetensors")
        assert "has no model.safetensors" in refusal(folder, weights="empty")
        assert "not a safetensors file" in refusal(folder, weights="mine.py")
        assert refusal(folder, weights=3).startswith("weights is 3")
        save_weights(nn.Linear(2, 2), folder / "other.safetensors")
        found = read(folder, weights="other.safetensors")
        with pytest.raises(UndriftError, match=r"^weights: .*other\.safetensors"):
            build_losses(found, build_data(found), 0)

    def test_can_be_swept_and_paths_are_seen_from_the_file(self, folder, pretrained, monkeypatch):
        (folder / "e.toml").write_text(
            'rounds = 1\n[data]\nsource = "synthetic"\nclients = 3\nmost = 30\nvalidation = 0.2\n'
            '[model]\nname = "logistic"\n[local]\nlr = 0.1\n[[method]]\nname = "FedAvg"\n'
            '[sweep]\nweights = ["none", "runs/pretrain"]\n'
        )
        monkeypatch.chdir(folder.parent)
        found = run_sweep(folder / "e.toml", folder / "swept", progress=False)
        assert {v.status for v in found.verdicts["FedAvg"]} == {"finished"}
        chosen = tomllib.loads((folder / "swept" / "best.toml").read_text())
        assert chosen.get("weights", str(pretrained)) == str(pretrained)


class TestParts:
    def test_a_sampler(self, folder):
        found = again(read(folder, sampling={"kind": "mine.py:Turns", "size": 3}), folder)
        assert found.resolved()["sampling"] == {"kind": f"{folder}/mine.py:Turns", "size": 3}
        sampler = found.cohort()
        assert isinstance(sampler, Sampler)
        assert sampler.size == 3
        run_experiment(found, folder / "run")
        (run,) = read_runs(folder / "run")
        assert [len(record.cohort) for record in run.records[1:]] == [3, 3]
        assert read(folder, sampling={"kind": "mine.py:Turns"}).cohort().size == 2
        changed = read(folder, {"sampling.size": 1}, sampling={"kind": "mine.py:Turns"})
        assert changed.cohort().size == 1

    @pytest.mark.parametrize(
        ("sampling", "start", "words"),
        [
            ({"kind": "mine.py:Turns", "sise": 1}, "sampling.sise", "did you mean 'size'?"),
            ({"kind": "mine.py:Turns", "cohort": 1}, "sampling.cohort", "'size'"),
            ({"kind": "mine.py:Nothing"}, "sampling.kind", "participation"),
            ({"kind": "mine.py:focal"}, "sampling", "outputs"),
            ({"kind": "mine.py:number"}, "sampling.kind", "Sampler"),
            ({"kind": "uniform", "cohort": 2, "size": 2}, "sampling.size", "one of"),
        ],
    )
    def test_a_sampler_is_refused(self, folder, sampling, start, words):
        said = refusal(folder, sampling=sampling)
        assert said.startswith(start), said
        assert words in said

    @pytest.mark.parametrize(
        ("lr", "rates"),
        [
            ("mine.py:decay", [0.1, 0.05]),
            ({"schedule": "mine.py:decay", "first": 0.4}, [0.4, 0.2]),
            ({"schedule": "mine.py:Halving", "lr": 0.2, "every": 1}, [0.2, 0.1]),
        ],
    )
    def test_a_schedule(self, folder, lr, rates):
        local = {"lr": lr, "batch_size": 10, "steps": 2}
        found = again(read(folder, local=local), folder)
        assert [found.local_of("FedAvg").rate(t) for t in (0, 1)] == rates
        assert found.resolved()["local"]["lr"]["schedule"].startswith(f"{folder}/mine.py:")
        own = [{"name": "FedAvg", "local": {"lr": lr}}, {"name": "FedProx"}]
        found = again(read(folder, method=own), folder)
        assert [found.local_of("FedAvg").rate(t) for t in (0, 1)] == rates
        assert found.local_of("FedProx").rate(1) == 0.1
        assert run_experiment(found, folder / "run")[0].status == "finished"

    def test_a_schedule_is_refused(self, folder):
        said = refusal(folder, local={"lr": "mine.py:negative"})
        assert said.startswith("local.lr.schedule: ")
        assert "above 0" in said
        said = refusal(folder, local={"lr": {"schedule": "mine.py:Halving"}})
        assert said.startswith("local.lr.lr: Halving needs its parameter")
        said = refusal(folder, sweep={"local.lr": ["mine.py:negative"]})
        assert said.startswith("sweep.local.lr: ")

    @pytest.mark.parametrize(
        ("augment", "std"), [("mine.py:Noise", 0.1), ({"name": "mine.py:Noise", "std": 0.5}, 0.5)]
    )
    def test_an_augmentation(self, folder, augment, std):
        data = small()["data"] | {"augment": [augment]}
        found = again(read(folder, data=data), folder)
        (own,) = build_data(found).augmentations
        assert own.std == std
        assert run_experiment(found, folder / "run")[0].status == "finished"

    def test_an_augmentation_in_a_table_or_refused(self, folder):
        data = small()["data"]
        table = {"name": "crop", "padding": 2}
        assert read(folder, data=data | {"augment": [table]}).data.augment == [table]
        said = refusal(folder, data=data | {"augment": ["mine.py:focal"]})
        assert said.startswith("data.augment: ")
        said = refusal(folder, data=data | {"augment": [{"name": "crop", "pading": 2}]})
        assert "did you mean 'padding'?" in said

    @pytest.mark.parametrize(
        ("partition", "first"),
        [("mine.py:in_turn", 0), ({"kind": "mine.py:in_turn", "first": 4}, 4)],
    )
    def test_a_partition(self, folder, partition, first):
        pytest.importorskip("sklearn")
        data = {"source": "digits", "clients": 4, "partition": partition}
        found = again(read(folder, data=data), folder)
        assert found.resolved()["data"]["partition"]["first"] == first
        wanted = [*range(first, 1000, 4)]
        train = build_data(found).train
        assert np.isin(train.rows[: train.sizes[0]][:20], wanted).all()
        changed = read(folder, {"data.partition.first": 8}, data=data)
        assert changed.resolved()["data"]["partition"]["first"] == 8

    def test_a_partition_is_refused(self, folder):
        pytest.importorskip("sklearn")
        data = {"source": "digits", "clients": 4, "partition": "mine.py:twice"}
        found = read(folder, data=data)
        with pytest.raises(UndriftError, match=r"^data: The partition .* to more than one client"):
            build_data(found)
        said = refusal(folder, data=data | {"partition": "mine.py:one_argument"})
        assert said.startswith("data.partition.kind: one_argument must be a function of (targets,")


class TestDeployment:
    def test_server_and_sites_use_the_same_loss_metrics_and_weights(self, tmp_path):
        top = (
            'loss = "site.py:loss"\nweights = "first.safetensors"\n'
            'metrics.right = "site.py:right"\n'
        )
        code = (
            "\n\ndef loss(outputs, targets):\n    return nn.functional.cross_entropy(outputs, "
            "targets)\n\n\ndef right(outputs, targets):\n    return (outputs.argmax(1) == targets)"
            ".double().mean()\n"
        )
        files = []
        for place in ("server", "sites"):
            file = app(tmp_path / place, text=top)
            (file.parent / "site.py").write_text((file.parent / "site.py").read_text() + code)
            torch.manual_seed(7)
            net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
            save_weights(net, file.parent / "first.safetensors")
            files.append(file)
        server, sites = (Experiment.load(file) for file in files)
        assert first_difference(facts(sites), facts(server)) is None
        outcomes = serve(server, tmp_path / "run", InProcess(files[1], tmp_path / "state"))
        assert [outcome.status for outcome in outcomes] == ["finished"]
        (run,) = read_runs(tmp_path / "run")
        last = run.records[-1].metrics
        assert last["test_right"] == pytest.approx(last["test_accuracy"])

        save_weights(
            nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
            files[1].parent / "first.safetensors",
        )
        said = first_difference(facts(Experiment.load(files[1])), facts(server))
        assert said.startswith("weights is ")
        other = sites.with_settings({"loss": "torch.nn:CrossEntropyLoss"})
        assert first_difference(facts(other), facts(server)).startswith("loss is ")


def test_an_experiment_without_any_of_it_is_written_as_before():
    found = Experiment.from_dict(tables()).resolved()
    assert "loss" not in found
    assert "step" not in found
    assert "weights" not in found
    assert "metrics" not in found
