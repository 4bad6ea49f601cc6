"""Makes the CSV files of the three clinics, each the patients of one clinic.

    python examples/clinics/files.py

The patients are made up. About one in ten comes back within a month; many values are missing, and
the clinics have different departments.
"""

import csv
from pathlib import Path

import numpy as np

CLINICS = {
    "north": (420, "cardiology surgery"),
    "east": (300, "surgery geriatrics"),
    "south": (360, "cardiology geriatrics oncology"),
}
"""Patients and departments of each clinic."""
COLUMNS = ("patient", "admitted", "department", "age", "glucose", "pressure", "readmitted")


def make(folder: Path) -> None:
    """Write a file per clinic."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, (patients, departments)) in enumerate(CLINICS.items()):
        rng = np.random.default_rng(number)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for patient in range(patients):
                department = str(rng.choice(departments.split()))
                age, glucose = rng.normal(62, 14), rng.normal(108, 22)
                score = 0.06 * (age - 62) + 0.04 * (glucose - 108) + (department == "geriatrics")
                back = int(score + rng.logistic(0, 0.7) > 2.6)
                day = np.datetime64("2024-01-01") + int(rng.integers(0, 365))
                pressure = round(rng.normal(130, 15)) if rng.random() < 0.8 else ""
                seen = round(glucose) if rng.random() < 0.7 else "NA"
                row = (f"{name}-{patient:04d}", day, department, round(age), seen, pressure, back)
                writer.writerow(row)


if __name__ == "__main__":
    make(Path(__file__).parent / "patients")
