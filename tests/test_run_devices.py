"""Experiments with devices on the command line: run, interrupt, resume, inspect."""

import json
import signal
import subprocess
import sys
import tomllib

import pytest

from commands import called
from undrift.core.records import Record
from undrift.experiments.building import build_data
from undrift.experiments.experiment import Experiment
from undrift.experiments.fleet_summary import summary

EXPERIMENT = """
engine = "vectorised"  # by a fixed rule: bits are compared
rounds = 6

[data]
source = "synthetic"
clients = 8
most = 60

[model]
name = "logistic"

[local]
lr = 0.02
batch_size = 10
epochs = { amount = "uniform", low = 1, high = 3 }

[devices]
speed = { law = "ladder", slowest = 10, fastest = 40 }
jitter = 0.2
dropout = 0.05

[pace]
kind = "deadline"
seconds = 0.3

[[method]]
name = "FedAvg"

[[method]]
name = "FedAvg"
label = "first"
pace = { kind = "first", replies = 3 }

[[method]]
name = "AsyncFedDR"
smoothness = 1.0
clients = 8
delay = 7
pace = { kind = "asynchronous", max_delay = 7 }

[[method]]
name = "FedBuff"
buffer = 2
pace = { kind = "asynchronous", concurrency = 4 }
"""
LABELS = ("FedAvg", "first", "AsyncFedDR", "FedBuff")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    return tmp_path


def records(folder, label):
    lines = (folder / label / "seed-0" / "records.jsonl").read_text().splitlines()
    found = [Record.from_json(line) for line in lines]
    for record in found:
        record.seconds = 0.0
    return found


class TestCommandLine:
    def test_a_run_with_devices_resumes_after_an_interrupt(self, place):
        done = called("run", "exp.toml", "--out", "whole", cwd=place)
        assert done.returncode == 0, done.stderr
        whole = {label: records(place / "whole", label) for label in LABELS}
        for found in whole.values():
            assert [record.round for record in found] == list(range(7))
            times = [record.virtual_seconds for record in found]
            assert times == sorted(times) and times[-1] > 0
        assert whole["FedAvg"][-1].virtual_seconds <= 6 * 0.3 + 1e-9
        assert sum(record.partial for record in whole["FedAvg"]) > 0
        for record in whole["first"][1:]:
            assert (len(record.cohort), len(record.cohort) - len(record.lost)) == (8, 3)
        assert all(len(record.cohort) == 4 for record in whole["FedBuff"][1:])
        assert max(max(record.staleness, default=0) for record in whole["AsyncFedDR"]) > 0

        start = [sys.executable, "-m", "undrift", "run", "exp.toml", "--out", "out", "--json"]
        for end in (signal.SIGINT, signal.SIGKILL):
            process = subprocess.Popen(
                start, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            label = "first" if end == signal.SIGINT else "FedBuff"
            while json.loads(process.stdout.readline())["label"] != label:
                pass
            process.send_signal(end)
            process.communicate()
        done = called("resume", "out", cwd=place)
        assert done.returncode == 0, done.stderr
        for label in LABELS:
            assert records(place / "out", label) == whole[label]
        page = called("report", "out", "--out", "page.html", cwd=place)
        assert page.returncode == 0, page.stderr

    def test_a_dry_run_forecasts_the_virtual_time(self, place):
        done = called("run", "exp.toml", "--dry-run", cwd=place)
        assert done.returncode == 0, done.stderr
        assert 'law = "ladder"' in done.stdout
        assert "time of a round" in done.stdout
        assert not (place / "runs").exists()

    def test_inspect_describes_the_devices(self, place):
        done = called("inspect", "exp.toml", cwd=place)
        assert done.returncode == 0, done.stderr
        assert "steps a second" in done.stdout
        assert "fastest/slowest 4" in done.stdout.replace("\n", " ")
        assert max(len(line) for line in done.stdout.splitlines()) <= 80
        found = json.loads(called("inspect", "exp.toml", "--json", cwd=place).stdout)["devices"]
        assert (found["speed"]["slowest"], found["speed"]["fastest"]) == (10.0, 40.0)
        assert {*found["rounds"]} == {*LABELS}
        off = called(
            "inspect", "exp.toml", "--set", "devices=none", "--set", "pace=none", cwd=place
        )
        assert off.returncode == 2  # the pace "first" needs devices
        one = Experiment.load(place / "exp.toml", {"pace.seconds": 0.1})
        assert 0 < summary(one, build_data(one)).rounds["FedAvg"] <= 0.1 + 1e-9

    def test_systems_are_listed_shown_and_run(self, place):
        assert "fednova-fixed" in called("list", "systems", cwd=place).stdout
        assert "seconds = 1.0" in called("show", "system", "fednova-fixed", cwd=place).stdout
        text = EXPERIMENT.partition("[devices]")[0].replace('epochs = { amount = "uniform"', "# {")
        (place / "lga.toml").write_text(f'system = "fedlga"\n{text}\n[[method]]\nname = "FedLGA"\n')
        options = ("--set", "objective=clients", "--set", "local.lr=0.001")
        done = called("run", "lga.toml", *options, "--out", "lga", cwd=place)
        assert done.returncode == 0, done.stderr
        assert any(record.partial for record in records(place / "lga", "FedLGA"))
        resolved = tomllib.loads((place / "lga" / "experiment.toml").read_text())
        assert resolved["limit"] == {"share": 0.5, "drop": False}
        assert resolved["local"]["epochs"] == 5
        assert "system" not in resolved
