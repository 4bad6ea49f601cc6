"""Measure the cost of a round of reproductions that were not run, for the page of results.

    python -m tools.round_costs docs feddyn-cifar10 "10 %, IID" FedDyn SCAFFOLD

runs one round of these methods of that part and stores its CPU seconds on one thread in
docs/reproductions/round-costs.json. CPU seconds do not depend on what else the machine does.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tools.pages.reproductions import COSTS, STORED
from undrift.core.records import Record
from undrift.report.recorded_runs import Runs
from undrift.reproduce.lab import Lab
from undrift.reproduce.registry import find
from undrift.runs.driver import SilentObserver
from undrift.runs.experiment_runs import run_experiment
from undrift.runs.folder import read_json, write_json


class Stopwatch(SilentObserver):
    """Notes the CPU seconds between the initial evaluation and the end of the first round."""

    def __init__(self) -> None:
        self.began = 0.0
        self.seconds: dict[str, float] = {}

    def begin(self, label: str, seed: int, round: int) -> None:
        self.began = time.process_time()

    def show(self, label: str, seed: int, record: Record) -> None:
        now = time.process_time()
        if record.round:
            self.seconds[label] = round(now - self.began, 2)
        self.began = now


class Measured(Exception):
    """Ends a reproduction once the wanted runs are measured."""


class MeasuringLab(Lab):
    """Runs one round of some methods of the first cells that have them."""

    def __init__(self, name: str, part: str, methods: Sequence[str], folder: Path):
        super().__init__(find(name), folder, parts=[part])
        self.missing = list(methods)
        self.watch = Stopwatch()

    def run(
        self,
        cell: str,
        settings: Mapping[str, Any] | None = None,
        only: Sequence[str] | None = None,
        file: str | None = None,
        most_seeds: int | None = None,
    ) -> Runs:
        usual = {"rounds": 1, "engine.name": "vectorised", "engine.threads": 1}
        experiment = self._experiment(cell, {**(settings or {}), **usual}, only, file, 1)
        labels = [label for label in experiment.labels if label in self.missing]
        if labels:
            experiment = self._experiment(cell, {**(settings or {}), **usual}, labels, file, 1)
            data = self._data_of(experiment)
            run_experiment(experiment, self.folder / f"cell-{cell}", data, self.watch)
            self.missing = [label for label in self.missing if label not in labels]
        if not self.missing:
            raise Measured
        return Runs([])


def measure(docs: Path, name: str, part: str, methods: Sequence[str]) -> dict[str, float]:
    """Measure one round of each method, and store the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        lab = MeasuringLab(name, part, methods, Path(folder))
        with contextlib.suppress(Measured):
            lab.reproduction.reproduce(lab)
    path = docs / STORED / COSTS
    stored = read_json(path) if path.is_file() else {}
    stored.setdefault(name, {}).setdefault(part, {}).update(lab.watch.seconds)
    write_json(path, stored)
    return lab.watch.seconds


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(measure(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
