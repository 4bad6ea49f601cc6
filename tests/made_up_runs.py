"""Run folders with made-up records, for the tests of the report."""

import csv
import io
import json
import math
import re

import numpy as np

from undrift.core.records import Record

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20"><circle r="9" cx="20"/></svg>'
P = 1000  # parameters of the model
# Rounds in which a method's loss falls by e, and the vectors it sends down and up.
METHODS = {"FedAvg": (30, 1, 1), "SCAFFOLD": (12, 2, 2), "FedDyn": (9, 1, 1)}


def records(rng, rounds, speed, down=1, up=1, clients=100, cohort=10, every=1, clock=True):
    """Return made-up records: losses fall, accuracies rise, with noise."""
    found = []
    for t in range(rounds + 1):
        record = Record(round=t)
        if t % every == 0 or t == rounds:
            loss = 2.3 * math.exp(-t / speed) + 0.1 + 0.01 * rng.random()
            accuracy = 0.95 - 0.85 * math.exp(-t / speed) + 0.01 * rng.random()
            record.metrics = {
                "train_loss": loss,
                "objective": loss + 0.001,
                "test_loss": loss * 1.1,
                "test_accuracy": accuracy,
                "test_client_accuracy_worst_tenth": accuracy - 0.1,
            }
        if t:
            record.cohort = rng.choice(clients, cohort, replace=False).tolist()
            record.diagnostics = {
                "step": 3 / (t + 2) + 0.02 * rng.random(),
                "moved": 4 / (t + 2) + 0.1,
                "drift": 2 / (t + 2) + 0.1 * rng.random() + 0.05,
                "tau_eff": 20 + rng.random(),
                "chi_square": 0.2 * rng.random() + 1e-3,
            }
            record.bytes_down = {"x": 4 * P * cohort} | ({"c": 4 * P * cohort} if down > 1 else {})
            record.bytes_up = {"moved": 4 * P * cohort * up}
            record.steps = 50 * cohort
            record.gradients = 500 * cohort + int(rng.integers(100))
            record.virtual_seconds = 2.0 * t if clock else 0.0
            record.seconds = 0.1 + 0.05 * rng.random()
        found.append(record)
    return found


def write_run(folder, label, seed, lines, status="finished", reason=None, name=None, rounds=None):
    place = folder / re.sub(r"[^A-Za-z0-9.-]+", "-", label) / f"seed-{seed}"
    place.mkdir(parents=True)
    state = {
        "label": label,
        "method": f"{name or label}()",
        "name": name or label,
        "paper": "a paper",
        "seed": seed,
        "rounds": rounds or lines[-1].round,
        "status": status,
        "reason": reason,
        "parameters": P,
    }
    (place / "run.json").write_text(json.dumps(state))
    (place / "records.jsonl").write_text("".join(r.to_json() + "\n" for r in lines))
    return place


def write_folder(folder, labels=METHODS, name="made-up", target=None, clients=100):
    folder.mkdir(parents=True)
    toml = [f"name = {json.dumps(name)}", "rounds = 60"]
    toml += ["[target]", *(f"{k} = {v}" for k, v in target.items())] if target else []
    for label in labels:
        toml += ["[[method]]", f"label = {json.dumps(label)}"]
    (folder / "experiment.toml").write_text("\n".join(toml) + "\n")
    (folder / "about.json").write_text(json.dumps({"undrift": "0.1.0", "python": "3.11"}))
    spread = {"mean": 5.0, "std": 1.0, "min": 2.0, "median": 5.0, "max": 9.0}
    data = {"name": "made up", "clients": clients, "samples": {"train": 500}, "sizes": spread}
    (folder / "data.json").write_text(json.dumps(data))
    (folder / "data.svg").write_text(SVG)
    return folder


def csv_rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def make(folder, methods=METHODS, seeds=(0, 1, 2), rounds=60, target=None, **options):
    """Write a run folder of every method and seed; methods of one seed have the same cohorts."""
    write_folder(folder, methods, target=target)
    for label, (speed, down, up) in methods.items():
        for seed in seeds:
            rng = np.random.default_rng(seed)
            lines = records(rng, rounds, speed, down, up, **options)
            write_run(folder, label, seed, lines)
    return folder


def by_hand(folder, label, level):
    """Return rounds, bytes and whether the level was reached, per seed, from the files alone."""
    found = []
    for path in sorted((folder / label).glob("seed-*/records.jsonl")):
        sent = 0
        for line in path.read_text().splitlines():
            row = json.loads(line)
            sent += sum(row["bytes_down"].values()) + sum(row["bytes_up"].values())
            if row["metrics"].get("test_accuracy", 0) >= level:
                found.append((row["round"], sent, True))
                break
        else:
            found.append((row["round"], sent, False))
    return found


EVIL = "</script><b>\"'&amp;{{css}}"


def evil(tmp_path):
    folder = write_folder(tmp_path / "run", [EVIL], name=EVIL)
    lines = records(np.random.default_rng(0), 5, 5)
    for record in lines:
        record.metrics[f"x{EVIL}"] = 1.0
        record.diagnostics[f"y{EVIL}"] = 1.0
        record.rejected = [(EVIL, EVIL)]
    write_run(folder, EVIL, 0, lines, "stopped", EVIL)
    (folder / "about.json").write_text(json.dumps({EVIL: EVIL}))
    (folder / "data.json").write_text(json.dumps({"name": EVIL, "clients": 100, "notes": [EVIL]}))
    (folder / "data.svg").write_text(SVG.replace("<circle", "<script>alert(1)</script><circle"))
    return folder


def ten_methods(folder):
    """Write a folder of ten methods with a thousand rounds."""
    methods = {f"Method {k}": (20 + 30 * k, 1 + k % 2, 1 + k % 2) for k in range(10)}
    return make(folder, methods, seeds=(0,), rounds=1000)
