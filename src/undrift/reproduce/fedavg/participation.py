"""Figures 1b and 3 of FedAvg-nonIID: the cohort size matters little."""

from __future__ import annotations

from undrift.reproduce.curves import final, line
from undrift.reproduce.fedavg.data_sets import DATA, LEFT_OPEN, SYNTHETIC, selected, settings
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction

COHORTS = (10, 30, 50, 70, 100)
LAST_ROUNDS = 10
"""Final losses are means over these rounds, about as many as the figures zoom into."""
TOLERANCE = 0.1
"""Final losses with a smaller relative difference count as the same."""


def little_effect(losses: dict[int, float]) -> bool:
    """Whether every K ends within `TOLERANCE` of the largest K, above or below."""
    most = losses[max(losses)]
    return all(abs(loss - most) <= TOLERANCE * most for loss in losses.values())


def _reproduce(lab: Lab) -> Findings:
    numbers: list[Number] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    for where in selected(lab):
        lab.begin(where)
        rounds = lab.either(80 if where in SYNTHETIC else 40, 25)
        runs = {
            K: lab.run(
                f"{where}, K = {K}",
                {**settings(where), "rounds": rounds, "sampling.cohort": K},
            )
            for K in lab.either(COHORTS, (10, 30, 100))
        }
        ends = {K: final(each, "FedAvg", "objective", LAST_ROUNDS) for K, each in runs.items()}
        losses = {K: end.mean for K, end in ends.items()}
        numbers += [
            Number(f"{where}, {rounds} rounds", f"F, K = {K}", None, end) for K, end in ends.items()
        ]
        shown = ", ".join(f"{loss:.4g} for K = {K}" for K, loss in losses.items())
        claims += [
            Claim(
                f"{where}: K has little effect; every K ends within 10 % of the largest.",
                little_effect(losses),
                f"F over the last {LAST_ROUNDS} rounds: {shown}",
            ),
            Claim(
                f"{where}: the largest K ends slightly better than the smallest.",
                losses[max(losses)] <= losses[min(losses)],
                f"{losses[max(losses)]:.4g} against {losses[min(losses)]:.4g}",
            ),
        ]
        panels.append(
            Panel(
                where,
                "rounds",
                "F",
                [line(each, "FedAvg", "objective", name=f"K = {K}") for K, each in runs.items()],
            )
        )
    return Findings(numbers, claims, panels)


REPRODUCTION = Reproduction(
    name="fedavg-participation",
    paper="FedAvg",
    shows="Figures 1b and 3",
    about="K of 100 clients, drawn by their sizes, train a logistic regression for 50 steps a "
    "round on four data sets.",
    cost="6 min",
    reproduce=_reproduce,
    needs=("mnist",),
    left_open=(
        *LEFT_OPEN,
        "The figures have 80 rounds; on MNIST the rate has fallen enough after 40, where we stop.",
    ),
    quick={"local.steps": 10},
    quick_is="the synthetic data only, 10 steps, 25 rounds and three K.",
    parts=tuple(DATA),
    revision=2,
)
