"""A deployment computes what a simulation computes, and takes in nothing that is not right."""

import json

import pytest
import torch
from safetensors.torch import load_file

from commands import called
from deploying import METHODS, Here, app
from undrift.deploy.server import serve
from undrift.runs.experiment import Experiment

ASYNCHRONOUS = {"FedAsync": "", "FedBuff": "buffer = 2", "AsyncFedDR": "eta = 0.5\nalpha = 0.1"}


def simulated(file, out, **settings):
    from undrift.runs.planning import run_experiment

    run_experiment(Experiment.load(file, settings), out)


def deployed(file, out, post=None, **settings):
    post = post or Here(file, out.parent / "state")
    return serve(Experiment.load(file, settings), out, post)


def model(out, label, seed=3):
    return load_file(out / label / f"seed-{seed}" / "model.safetensors")


def records(out, label="FedAvg", seed=3):
    lines = (out / label / f"seed-{seed}" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_same(one, other, label, tolerance=1e-6):
    mine, theirs = model(one, label), model(other, label)
    for name, value in mine.items():
        assert torch.allclose(value, theirs[name], atol=tolerance, rtol=0), (label, name)


@pytest.mark.parametrize("objective", ["samples", "clients"])
def test_every_method_computes_what_it_computes_in_simulation(tmp_path, objective):
    labels = [*METHODS, "FedProx", "FedPD", "FedSplit", "VRLSGD", "FedAvgMin", "DistributedSGD"]
    if objective == "samples":
        labels = [label for label in METHODS if label != "FedLGA"]
    file = app(tmp_path / "app", labels, text=f'objective = "{objective}"\n')
    simulated(file, tmp_path / "simulated")
    deployed(file, tmp_path / "deployed")
    for label in labels:
        assert_same(tmp_path / "simulated", tmp_path / "deployed", label)
        here, there = records(tmp_path / "simulated", label), records(tmp_path / "deployed", label)
        for mine, other in zip(here, there, strict=True):
            assert mine["metrics"] == pytest.approx(other["metrics"], rel=1e-4)
            assert mine["diagnostics"] == pytest.approx(other["diagnostics"], rel=1e-3)
            for field in ("cohort", "steps", "gradients", "bytes_up", "bytes_down", "rejected"):
                assert mine[field] == other[field], field
    assert called("report", str(tmp_path / "deployed"), cwd=tmp_path).returncode == 0
