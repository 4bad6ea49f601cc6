"""A private simulation that is killed at any moment and resumed has the same bits."""

import signal
import subprocess
import sys
import time

from undrift.experiments.experiment import Experiment
from undrift.runs.experiment_runs import run_experiment
from undrift.runs.records_file import read_records

EXPERIMENT = """
rounds = 25
objective = "clients"
data = {source = "synthetic", clients = 12}
model = {name = "logistic"}
local = {lr = 0.05, batch_size = 10, steps = 4}
sampling = {kind = "bernoulli", cohort = 0.5}
engine = {name = "serial"}

[privacy]
noise = 1.0
epsilon = 30.0
adaptive_clip = {initial = 0.05}
noisy_metrics = {noise = 4.0, every = 5}

[[method]]
name = "SCAFFOLD"
"""
KEPT = ("round", "metrics", "privacy", "cohort", "bytes_up")


def result(folder):
    own = folder / "SCAFFOLD" / "seed-0"
    records = read_records(own / "records.jsonl")
    rows = [tuple(str(getattr(record, name)) for name in KEPT) for record in records]
    return (own / "model.safetensors").read_bytes(), rows


def test_killed_anywhere_and_resumed_gives_the_same_bits(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    run_experiment(Experiment.load(file), tmp_path / "whole")
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "undrift", "run", str(file), "--out", str(folder), "--json"]
    for pause in (0.0, 0.4):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdout.readline()  # the first record: from here on, any moment will do
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        command = [sys.executable, "-m", "undrift", "resume", str(folder), "--json"]
    subprocess.run(command, check=True, capture_output=True)
    assert result(folder) == result(tmp_path / "whole")
