"""Rounds until a test accuracy, which FedLGA's figures and tables compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from undrift.report.recorded_runs import Runs
from undrift.report.tables import OverSeeds
from undrift.reproduce.curves import cost, line, method_runs
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Number

METHODS = ("FedLGA", "FedDyn", "SCAFFOLD", "FedProx", "FedNova", "FedAvg")
"""In the published order of reaching the target on Fashion-MNIST."""
ACCURACY = "test_accuracy"
WINDOW_ROUNDS = 5
"""The accuracy is averaged over these rounds: it jumps with the classes of each cohort."""

Rounds = Mapping[str, OverSeeds]
"""Rounds to the target, by method."""


def to_target(
    runs: Runs, labels: Sequence[str], target: float, window: int = WINDOW_ROUNDS
) -> Rounds:
    """Return the rounds until the mean of the last few test accuracies reaches the target."""
    found = {}
    for label in labels:
        over = cost(runs, label, ACCURACY, target, smooth=window)
        values = [
            # A run that diverged before it reached the target counts with all its planned rounds.
            run.rounds if run.status == "diverged" and value >= run.done else value
            for run, value in zip(method_runs(runs, label).runs, over.values, strict=True)
        ]
        found[label] = OverSeeds(tuple(values), over.missed)
    return found


def diverged(where: str, runs: Runs, labels: Sequence[str]) -> list[str]:
    """Return a sentence for every method that diverged, with its rounds."""
    found = []
    for label in labels:
        at = [run.done for run in method_runs(runs, label).runs if run.status == "diverged"]
        if at:
            rounds = ", ".join(map(str, at))
            found.append(
                f"{where}: {label} diverged with {len(at)} of "
                f"{len(method_runs(runs, label).runs)} seeds, after round {rounds}."
            )
    return found


def numbers(
    where: str, runs: Runs, labels: Sequence[str], target: float, published: Mapping[str, float]
) -> list[Number]:
    """Return rounds to the target next to the published ones, and those of the raw accuracy."""
    smooth = to_target(runs, labels, target)
    raw = to_target(runs, labels, target, window=1)
    return [Number(where, label, published.get(label), smooth[label]) for label in labels] + [
        Number(f"{where}, first crossing", label, None, raw[label]) for label in labels
    ]


def before(one: OverSeeds, other: OverSeeds) -> bool:
    """Whether one method is faster: in the mean over seeds, and slower in none of them."""
    never_later = all(a <= b for a, b in zip(one.values, other.values, strict=True))
    return never_later and one.mean < other.mean


def reached(rounds: Rounds) -> bool:
    """Whether any of the methods reached the target."""
    return any(over.missed < len(over.values) for over in rounds.values())


def is_first(rounds: Rounds, ours: str, others: Sequence[str]) -> bool:
    """Whether a method is faster than all of the others."""
    return all(before(rounds[ours], rounds[other]) for other in others if other != ours)


def is_published_order(rounds: Rounds, ours: str = "FedLGA") -> bool:
    """Whether a variant of FedLGA is first, and the others follow in the published order."""
    order = [rounds[label].mean for label in METHODS[1:]]
    first = is_first(rounds, ours, METHODS[1:])
    return first and all(a <= b for a, b in pairwise(order))


def first_claim(where: str, rounds: Rounds) -> Claim:
    """Claim that FedLGA reaches the target before all other methods."""
    return Claim(
        f"{where}: FedLGA is the first at the target.",
        is_first(rounds, "FedLGA", list(rounds)) if reached(rounds) else None,
        shown(rounds),
    )


def order_claim(where: str, rounds: Rounds) -> Claim:
    """Claim that all six methods come in the published order."""
    return Claim(
        f"{where}: FedLGA first, then {', '.join(METHODS[1:])}, in this order.",
        is_published_order(rounds) if reached(rounds) else None,
        shown(rounds),
    )


def rising_claim(text: str, values: Mapping[str, OverSeeds], falls: bool = False) -> Claim:
    """Claim that a number rises (or falls) along a sweep, in the mean over seeds."""
    means = [over.mean for over in values.values()]
    steps = [b <= a if falls else b >= a for a, b in pairwise(means)]
    moves = means[-1] < means[0] if falls else means[-1] > means[0]
    decided = all(map(math.isfinite, means)) and reached(values)
    return Claim(text, all(steps) and moves if decided else None, shown(values))


def shown(values: Mapping[str, OverSeeds]) -> str:
    """Return the means in one line: "FedLGA 27, FedAvg > 60"."""
    return ", ".join(
        f"{name} {'> ' if over.missed else ''}{over.mean:.3g}" for name, over in values.items()
    )


def panel(title: str, runs: Runs, labels: Sequence[str], target: float) -> Panel:
    """Return the panel of test accuracy against rounds, averaged over a few rounds."""
    return Panel(
        title,
        "rounds",
        f"test accuracy, mean of {WINDOW_ROUNDS}",
        [line(runs, label, ACCURACY, smooth=WINDOW_ROUNDS) for label in labels],
        marks=[(f"{100 * target:g} %", target)],
    )
