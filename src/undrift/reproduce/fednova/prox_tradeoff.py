"""Figure 4 of FedNova: what FedProx's proximal term gains, and what it costs."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from statistics import fmean

import numpy as np
import torch

from undrift.local.amounts import NormalAmount
from undrift.reproduce.figure import Line, Panel, line_over_seeds
from undrift.reproduce.findings import Claim, Findings, Number, over_seeds
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction
from undrift.theory.consistency import relative_variance, slowdown, weight_bias
from undrift.utils.keys import generator

CLIENTS, MEAN = 30, 20
READINGS = {
    "variance 20": NormalAmount(MEAN, math.sqrt(20)),
    "standard deviation 20": NormalAmount(MEAN, 20),
}
"""The two meanings of N(20, 20): Figure 2 of the paper gives the variance."""
CURVES = {
    "weight bias": weight_bias,
    "slowdown": slowdown,
    "relative variance": relative_variance,
}
ALPHAS = np.linspace(0, 1, 41).tolist()


def curves(amount: NormalAmount, draws: int) -> dict[str, list[list[float]]]:
    """Return each quantity against α, one list per draw of the τ_i, and the mean τ."""
    p = torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64)
    found: dict[str, list[list[float]]] = {name: [] for name in (*CURVES, "mean τ")}
    for draw in range(draws):
        rng = generator(draw, "local steps")
        tau = [amount.drawn(rng) for _ in range(CLIENTS)]
        for name, curve in CURVES.items():
            found[name].append([curve(alpha, tau, p) for alpha in ALPHAS])
        found["mean τ"].append([fmean(tau)])
    return found


def _reproduce(lab: Lab) -> Findings:
    draws = lab.either(25, 2)
    readings = {
        reading: lab.keep(reading, partial(curves, amount, draws))
        for reading, amount in READINGS.items()
    }
    numbers: list[Number] = []
    claims: list[Claim] = []
    for reading, found in readings.items():
        for name in CURVES:
            for alpha, at in ((0, 0), (1, -1)):
                values = [each[at] for each in found[name]]
                numbers.append(Number(f"{reading}, α = {alpha}", name, None, over_seeds(*values)))
        claims += claims_of(reading, found)
    panels = [
        Panel(
            name,
            "α = ημ",
            name,
            [_line(reading, found[name]) for reading, found in readings.items()],
            # The bias differs by a factor of fifty between the two meanings, and ends at zero.
            log_y=name == "weight bias",
            y_limits=(1e-6, 10.0) if name == "weight bias" else None,
        )
        for name in CURVES
    ]
    return Findings(numbers, claims, panels)


def claims_of(reading: str, found: dict[str, list[list[float]]]) -> list[Claim]:
    """Return the claims of section 4.2 about the curves, judged on every draw."""
    bias, slow, variance = (found[name] for name in CURVES)
    ends = [abs(each[-1] / mean[0] - 1) for each, mean in zip(slow, found["mean τ"], strict=True)]
    lowest = [min(each) for each in variance]
    return [
        Claim(
            f"{reading}: a larger α brings the weights nearer to p, and α = 1 makes them equal.",
            all(_falls(each) and each[-1] < 1e-12 for each in bias),
            f"χ² from {_mean_at(bias, 0):.3g} to {_mean_at(bias, -1):.1g}",
        ),
        Claim(
            f"{reading}: a larger α slows down, from 1 at α = 0 to the mean τ at α = 1.",
            all(_falls([-v for v in each]) and abs(each[0] - 1) < 1e-9 for each in slow)
            and max(ends) < 1e-9,
            f"τ̄/τ_eff from {_mean_at(slow, 0):.3g} to {_mean_at(slow, -1):.3g}",
        ),
        Claim(
            f"{reading}: the relative variance is lower in between than at either end.",
            all(low < min(each[0], each[-1]) for low, each in zip(lowest, variance, strict=True)),
            f"{_mean_at(variance, 0):.3g} at α = 0, {fmean(lowest):.3g} at the lowest, "
            f"{_mean_at(variance, -1):.3g} at α = 1",
        ),
    ]


def _falls(values: list[float]) -> bool:
    """Whether the values never rise, except by rounding errors."""
    return all(b <= a + 1e-12 for a, b in pairwise(values))


def _mean_at(each: list[list[float]], place: int) -> float:
    return fmean(values[place] for values in each)


def _line(reading: str, each: list[list[float]]) -> Line:
    return line_over_seeds(reading, ALPHAS, list(zip(*each, strict=True)))


REPRODUCTION = Reproduction(
    name="fednova-prox-tradeoff",
    paper="FedNova",
    shows="Figure 4",
    about="How α = ημ of FedProx changes the bias of its weights, its speed and its variance: "
    "formulas of Theorems 1 and 2 for 30 clients with p_i = 1/30.",
    cost="2 min",
    reproduce=_reproduce,
    left_open=(
        "τ_i ~ N(20, 20) may state the variance or the standard deviation: the figure shows both.",
        "Numbers of steps are integers of at least 1: normal numbers are rounded, and raised to 1.",
        "The paper does not say how often the τ_i were drawn: here 25 times, with mean and range.",
    ),
    quick_is="2 draws of the τ_i instead of 25.",
)
