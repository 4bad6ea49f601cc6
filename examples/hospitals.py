"""Makes the three CSV files in examples/hospitals, which two of the examples read.

    python examples/hospitals.py

The patients are made up. Hospitals differ in size, in their patients' age and in how often those
come back; what age, glucose, pressure and the length of the stay do to that is the same for all.
"""

import csv
from pathlib import Path

import numpy as np

HOSPITALS = {"north": (160, 70.0, 0.4), "east": (60, 48.0, -0.6), "south": (110, 58.0, 0.0)}
"""Patients, their mean age, and how readily a hospital takes them in again."""


def make(folder: Path) -> None:
    """Write a file per hospital."""
    folder.mkdir(exist_ok=True)
    for number, (name, (patients, age, offset)) in enumerate(HOSPITALS.items()):
        rng = np.random.default_rng(number)
        years = rng.normal(age, 12, patients).clip(18, 95).round()
        glucose = rng.normal(105 + 0.3 * (years - 55), 25, patients).clip(60, 250).round()
        pressure = rng.normal(128, 15, patients).round()
        days = 1 + rng.poisson(4, patients)
        score = 0.05 * (years - 58) + 0.04 * (glucose - 105) - 0.3 * (days - 5) + offset
        back = (score + rng.logistic(0, 0.5, patients) > 0).astype(int)
        rows = np.stack([years, glucose, pressure, days, back], axis=1).astype(int).tolist()
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([("age", "glucose", "pressure", "days", "readmitted"), *rows])


if __name__ == "__main__":
    make(Path(__file__).parent / "hospitals")
