"""Run folders of an earlier version resume and report.

The fixture was written by version 0.1.0 before the package was divided into folders: SCAFFOLD had
finished its six rounds, and the process was killed after round 3 of FedBuff.
"""

import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from undrift.report import read_runs

FIXTURE = Path(__file__).with_name("fixtures") / "run_of_0.1.0.tar.xz"


@pytest.fixture
def old(tmp_path):
    with tarfile.open(FIXTURE) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_killed_run_of_an_earlier_version_resumes(old):
    assert [run.done for run in read_runs(old / "run")] == [6, 3]
    before = load_file(old / "run/SCAFFOLD/seed-0/model.safetensors")
    found = ud.resume(old / "run", progress=False)
    assert [result.records[-1].round for result in found] == [6, 6]
    for label in found.labels:
        expected = load_file(old / "expected" / f"{label}.safetensors")
        model = load_file(old / f"run/{label}/seed-0/model.safetensors")
        for name, value in expected.items():
            torch.testing.assert_close(model[name], value, rtol=1e-5, atol=1e-7)
    assert torch.equal(
        load_file(old / "run/SCAFFOLD/seed-0/model.safetensors")["1.weight"], before["1.weight"]
    )
    assert [run.status for run in read_runs(old / "run")] == ["finished", "finished"]


def test_a_finished_run_of_an_earlier_version_is_extended(old, tmp_path):
    found = ud.resume(old / "run", rounds=8, progress=False)
    assert [result.records[-1].round for result in found] == [8, 8]
    shutil.copy(old / "tiny.toml", tmp_path / "again.toml")
    from undrift.experiments.experiment import Experiment
    from undrift.runs.experiment_runs import run_experiment

    longer = Experiment.load(tmp_path / "again.toml", {"rounds": 8})
    outcomes = run_experiment(longer, tmp_path / "whole")
    for result, outcome in zip(found, outcomes, strict=True):
        assert outcome.run is not None
        torch.testing.assert_close(result.x, outcome.run.server.x, rtol=1e-5, atol=1e-7)
