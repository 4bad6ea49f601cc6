"""The learning rate of FedLGA's study of Fashion-MNIST, which the paper does not print.

At a rate of 0.01 every method needs far fewer rounds than the paper's 60 to 116. So the rate is
calibrated on a published number that does not involve FedLGA's correction: with τ_max = 0.2E no
client is slow, all methods of the family are FedAvg, and 65 % take 29 rounds.
"""

from __future__ import annotations

from typing import Any

from undrift.report.tables import OverSeeds
from undrift.reproduce.fedlga.rounds import shown, to_target
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab

TARGET = 0.65
WITHOUT_SLOW = 29
"""FedLGA's published rounds with τ_max = 0.2E, where every client finishes (Table V)."""
FULL, FIFTH = "all images", "a fifth of the images"
IMAGES: dict[str, dict[str, Any]] = {
    FULL: {},
    FIFTH: {
        "data.partition": {
            "kind": "classes",
            "k": 2,
            "sizes": {"kind": "balanced", "samples": 240},
        }
    },
}
"""Settings of the parts that have all images, and of those with 240 per client to save time."""
RATES = {FULL: (0.001, 0.002, 0.003, 0.005), FIFTH: (0.005, 0.01, 0.015, 0.02)}
ROUNDS = 60
QUICK_RATE = 0.2


def images_of(lab: Lab, images: str) -> dict[str, Any]:
    """Return the settings of the images and the calibrated rate; in a quick run its own rate."""
    if lab.quick:
        return {"local.lr": QUICK_RATE}
    return {**IMAGES[images], "local.lr": rate_of(calibrated(lab, images))}


def calibrated(lab: Lab, images: str) -> dict[float, OverSeeds]:
    """Return FedAvg's rounds to the target without slow clients, by learning rate."""
    found = {}
    for rate in lab.either(RATES[images], (QUICK_RATE,)):
        settings = {**lab.either(IMAGES[images], {}), "local.lr": rate, "limit.longest": 1}
        runs = lab.run(
            f"calibration, {images}, {rate:g}",
            {**settings, "rounds": lab.either(ROUNDS, 15)},
            ["FedAvg"],
            most_seeds=1,
        )
        found[rate] = to_target(runs, ["FedAvg"], TARGET)["FedAvg"]
    return found


def rate_of(rounds: dict[float, OverSeeds]) -> float:
    """Return the rate whose rounds are nearest to the published ones, by their ratio."""
    reached = {rate: over.mean for rate, over in rounds.items() if not over.missed}
    return min(
        reached or {rate: over.mean for rate, over in rounds.items()},
        key=lambda rate: abs(reached.get(rate, ROUNDS) / WITHOUT_SLOW - 1),
    )


def calibration(lab: Lab) -> Findings:
    """Find the rate at which FedAvg without slow clients takes as long as published."""
    numbers: list[Number] = []
    claims: list[Claim] = []
    for images in lab.either((FULL, FIFTH), (FULL,)):
        rounds = calibrated(lab, images)
        rate = rate_of(rounds)
        numbers += [
            Number(
                f"{images}, no slow clients, rounds to 65 %",
                f"FedAvg, rate {each:g}{', chosen' if each == rate else ''}",
                None if lab.quick else WITHOUT_SLOW,
                over,
            )
            for each, over in rounds.items()
        ]
        if not lab.quick:
            shape = {f"rate {each:g}": over for each, over in rounds.items()}
            near = abs(rounds[rate].mean / WITHOUT_SLOW - 1) <= 0.25 and not rounds[rate].missed
            claims.append(
                Claim(
                    f"{images}: at some rate FedAvg without slow clients takes {WITHOUT_SLOW} "
                    "rounds, to a quarter.",
                    near,
                    f"{shown(shape)}; the other parts use {rate:g}",
                )
            )
    return Findings(numbers, claims)
