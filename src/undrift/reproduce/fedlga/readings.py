"""Readings of FedLGA: what its text leaves open about the correction, filled in in several ways."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from undrift.report.recorded_runs import Runs
from undrift.reproduce.curves import labels, method_runs
from undrift.reproduce.fedlga.calibration import FIFTH, IMAGES, TARGET
from undrift.reproduce.fedlga.rounds import (
    METHODS,
    Rounds,
    before,
    diverged,
    is_first,
    is_published_order,
    numbers,
    panel,
    reached,
    shown,
    to_target,
)
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab

RATES = {0.001: 40, 0.01: 40, 0.03: 30, 0.1: 25}
"""Rounds at each learning rate, with a fifth of the images."""
DEFAULT_RATE = 0.03
STEP_RATES = {0.005: 40, 0.01: 40, 0.03: 40}
"""Rounds at each learning rate, when an epoch is a single step."""


def readings(lab: Lab) -> Findings:
    """Compare seven readings of FedLGA with the other methods, over learning rates."""
    rates = lab.either(RATES, {0.2: 15})
    usual = lab.either(DEFAULT_RATE, 0.2)
    where = "" if lab.quick else f"{FIFTH}, "
    return _over_rates(lab, "readings", rates, usual, where, lab.either(IMAGES[FIFTH], {}))


def single_steps(lab: Lab) -> Findings:
    """Read an epoch of Algorithm 1, which sums one gradient for each e, as a single step."""
    rates = lab.either(STEP_RATES, {0.2: 15})
    one = {"local.steps": 5, "limit.longest": 4}
    usual = next(iter(rates))
    return _over_rates(lab, "single steps", rates, usual, "single steps, ", one)


def _over_rates(
    lab: Lab,
    cell: str,
    rates: Mapping[float, int],
    usual: float,
    where: str,
    settings: Mapping[str, Any],
) -> Findings:
    """Run every method at every rate, and compare them at a common rate and each at its best."""
    by_rate: dict[float, Rounds] = {}
    found: list[Number] = []
    panels: list[Panel] = []
    squares: list[str] = []
    gone: list[str] = []
    for rate, most in rates.items():
        runs = lab.run(f"{cell} {rate:g}", {**settings, "local.lr": rate, "rounds": most})
        every = labels(runs)
        by_rate[rate] = to_target(runs, every, TARGET)
        here = f"{where}rate {rate:g}"
        found += numbers(here, runs, every, TARGET, {})
        panels.append(panel(here, runs, every, TARGET))
        gone += diverged(here, runs, every)
        squares.append(f"{_square(runs, rate):.2g} at rate {rate:g}")
    # The rate with the fewest rounds; rates at which a seed misses the target come last.
    chosen = {
        label: min(rates, key=lambda rate: (by_rate[rate][label].missed, by_rate[rate][label].mean))
        for label in every
    }
    tuned = {label: by_rate[rate][label] for label, rate in chosen.items()}
    found += [
        Number(f"{where}at its best rate, {chosen[label]:g}", label, None, tuned[label])
        for label in every
    ]
    settings_of = {f"rate {rate:g}": rounds for rate, rounds in by_rate.items()}
    claims = _readings_claims(where, tuned, by_rate[usual], usual, settings_of)
    note = (
        "With g the mean gradient, FedLGA as written multiplies a slow client's move Δ by "
        "1 − |g|²(1 − ⟨ŵ − x, Δ⟩/|Δ|²): it shortens the move, and turns it round where |g|² is "
        f"large. {where}|g|² in the median round: {', '.join(squares)}."
    )
    return Findings(found, claims, panels, [note, *gone])


def _square(runs: Runs, rate: float) -> float:
    """Return |g|² in the median round of FedLGA, with g = mean move / (rate · steps)."""
    diagnostics = [
        r.diagnostics for run in method_runs(runs, "FedLGA").runs for r in run.records[1:]
    ]
    return median((d["moved"] / (rate * d["tau_eff"])) ** 2 for d in diagnostics)


def _readings_claims(
    where: str, tuned: Rounds, at_usual: Rounds, usual: float, settings: Mapping[str, Rounds]
) -> list[Claim]:
    """Return claims about whether any variant does what the paper says of FedLGA."""
    readings = [label for label in tuned if label.startswith("FedLGA")]
    everywhere = {**settings, "best rates": tuned}
    published = [
        f"{reading} ({where})"
        for where, rounds in everywhere.items()
        for reading in readings
        if is_published_order(rounds, reading)
    ]

    def first(rounds: Rounds) -> bool | None:
        found = any(is_first(rounds, reading, METHODS[1:]) for reading in readings)
        return found if reached(rounds) else None

    return [
        Claim(
            f"{where}FedLGA as written is before FedAvg, each at its best rate.",
            before(tuned["FedLGA"], tuned["FedAvg"]) if reached(tuned) else None,
            shown({label: tuned[label] for label in ("FedLGA", "FedAvg")}),
        ),
        Claim(
            f"{where}some reading of FedLGA is before the five others, each at its best rate.",
            first(tuned),
            shown(tuned),
        ),
        Claim(
            f"{where}some reading of FedLGA is before the five others, all at {usual:g}.",
            first(at_usual),
            shown(at_usual),
        ),
        Claim(
            f"{where}some reading is first at some rate, and the others follow as published.",
            bool(published) if any(map(reached, everywhere.values())) else None,
            ", ".join(published) or f"none of {len(readings)} readings: {', '.join(everywhere)}",
        ),
    ]
