"""A fake of `undrift run` and `undrift resume` for tests of sweeps: it only writes a run's files.

    stand_in.py COUNTS run FILE --out DIR --quiet
    stand_in.py COUNTS resume DIR --quiet

Every execution is a line in COUNTS. The accuracy is best at lr = 0.1 and alpha = 0.01; a rate above
1 diverges; lr = 0.5 fails; COUNTS.delay holds the seconds that a round takes.
"""

import json
import math
import re
import sys
import time
import tomllib
from pathlib import Path

from filelock import FileLock


def main(counts, command, first, *rest):
    folder = Path(rest[1]) if command == "run" else Path(first)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock", timeout=0), Path(counts).open("a") as lines:
        if command == "run":
            (folder / "experiment.toml").write_text(Path(first).read_text())
        experiment = tomllib.loads((folder / "experiment.toml").read_text())
        (table,) = experiment["method"]
        local = experiment["local"] | table.get("local", {})
        lines.write(f"{command} {folder.name} {table['label']} lr={local['lr']}\n")
        lines.flush()
        if local["lr"] == 0.5:
            sys.exit("error: lr = 0.5 is not liked.")
        for seed in experiment["seeds"]:
            one(experiment, table, local, seed, folder, Path(f"{counts}.delay"))


def one(experiment, table, local, seed, folder, delay):
    own = folder / re.sub(r"[^A-Za-z0-9.-]+", "-", table["label"]) / f"seed-{seed}"
    own.mkdir(parents=True, exist_ok=True)
    about = {"label": table["label"], "seed": seed, "status": "running", "reason": None}
    (own / "run.json").write_text(json.dumps(about))
    off = abs(math.log10(local["lr"]) + 1) + abs(math.log10(table.get("alpha", 0.01)) + 2) / 2
    written = (own / "records.jsonl").read_text().splitlines() if folder_has(own) else []
    status = "finished"
    with (own / "records.jsonl").open("a") as records:
        for round in range(len(written), experiment["rounds"] + 1):
            time.sleep(float(delay.read_text()) if delay.exists() else 0)
            accuracy = round / experiment["rounds"] * (0.9 - 0.1 * off) + 0.001 * seed
            metrics = {
                "validation_accuracy": accuracy,
                "validation_loss": 1 - accuracy,
                "test_accuracy": 1 - accuracy,  # choosing by it would choose the worst
            }
            records.write(json.dumps({"round": round, "metrics": metrics}) + "\n")
            records.flush()
            if local["lr"] > 1:
                status = "diverged"
                break
            target = experiment.get("target", {}).get("validation_accuracy")
            if target is not None and accuracy >= target:
                status = "stopped"
                break
    reason = "every reply was unusable" if status == "diverged" else None
    (own / "run.json").write_text(json.dumps(about | {"status": status, "reason": reason}))


def folder_has(own):
    return (own / "records.jsonl").exists()


if __name__ == "__main__":
    main(*sys.argv[1:])
