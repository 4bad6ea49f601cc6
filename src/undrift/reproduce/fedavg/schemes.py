"""Figures 1c, 1d and 4 of FedAvg-nonIID: four ways to sample clients and average their models."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean

from undrift.report.recorded_runs import Runs
from undrift.reproduce.curves import final, line, method_runs
from undrift.reproduce.fedavg.data_sets import DATA, LEFT_OPEN, SYNTHETIC, selected, settings
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction

ONE, TWO, TRANSFORMED = "scheme I", "scheme II", "transformed II"
ORIGINAL = tuple(f"original {rate}" for rate in (0.1, 0.5, 0.9, 1.1))
LAST_ROUNDS = 10
"""Final losses are means over these rounds."""
TOLERANCE = 0.1
"""Final losses with a smaller relative difference count as nearly the same."""
UNSTABLE_RATIO = 3.0
"""A scheme is unstable if its loss changes this many times as much per round as scheme I's."""


def mean_change(runs: Runs, label: str) -> float:
    """Return the mean change of F from round to round over the second half of the run.

    Infinity for a run that diverged.
    """
    moves = []
    for run in method_runs(runs, label).runs:
        if run.status == "diverged":
            return math.inf
        values = [r.metrics["objective"] for r in run.records][len(run.records) // 2 :]
        moves.append(fmean(abs(after - before) for before, after in pairwise(values)))
    return fmean(moves)


def claims_on(
    where: str, loss: dict[str, float], moved: dict[str, float], tuned: bool = True
) -> list[Claim]:
    """Return the paper's claims for a data set, which depend on whether client sizes are equal.

    Parameters
    ----------
    loss
        final F of each scheme; of the original scheme, with its best rate
    moved
        `mean_change` of each scheme
    tuned
        whether all rates of the original scheme were tried
    """
    shown = ", ".join(f"{scheme} {value:.4g}" for scheme, value in loss.items())
    one, two, other, original = loss[ONE], loss[TWO], loss[TRANSFORMED], loss["original"]
    if where == "MNIST balanced":
        return [
            Claim(
                f"{where}: schemes I and II end nearly the same, within 10 %.",
                abs(one - two) <= TOLERANCE * one,
                shown,
            ),
            Claim(f"{where}: both end below the tuned original.", max(one, two) < original, shown),
            Claim(
                f"{where}: scheme II and transformed scheme II coincide.",
                math.isclose(two, other, rel_tol=1e-4),
                f"{two:.6g} and {other:.6g}",
            ),
        ]
    second = []
    if where in SYNTHETIC:
        rest = [value for scheme, value in loss.items() if scheme != ONE]
        holds = original == min(rest) if tuned else None
        second = [Claim(f"{where}: the tuned original ends second.", holds, shown)]
    jumps = ", ".join(f"{scheme} {value:.3g}" for scheme, value in moved.items())
    return [
        Claim(f"{where}: scheme I ends lowest.", one == min(loss.values()), shown),
        Claim(
            f"{where}: scheme II is unstable; F moves 3 times as much per round as with scheme I.",
            moved[TWO] >= UNSTABLE_RATIO * moved[ONE],
            f"mean change of F per round: {jumps}",
        ),
        Claim(
            f"{where}: transformed scheme II is stable, and slower than scheme I.",
            moved[TRANSFORMED] < UNSTABLE_RATIO * moved[ONE] and one < other,
            f"mean change of F per round: {jumps}; F: {shown}",
        ),
        *second,
    ]


def _reproduce(lab: Lab) -> Findings:
    numbers: list[Number] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    for where in selected(lab):
        rounds = lab.either(100 if where in SYNTHETIC else 40, 25)
        given = {
            **settings(where),
            "rounds": rounds,
            "local.steps": lab.either(100 if where in SYNTHETIC else 200, 10),
        }
        tried = lab.either(ORIGINAL, ORIGINAL[1:3])
        by_size = lab.run(
            f"{where}, by size", {**given, "sampling": {"kind": "weighted", "cohort": 10}}, [ONE]
        )
        uniform = lab.run(f"{where}, uniformly", given, [TWO, TRANSFORMED, *tried])
        best = min(tried, key=lambda label: final(uniform, label, "objective", LAST_ROUNDS).mean)
        runs = {
            ONE: (by_size, ONE),
            TWO: (uniform, TWO),
            TRANSFORMED: (uniform, TRANSFORMED),
            "original": (uniform, best),
        }
        ends = {scheme: final(*each, "objective", LAST_ROUNDS) for scheme, each in runs.items()}
        moved = {scheme: mean_change(*each) for scheme, each in runs.items()}
        numbers += [
            Number(
                f"{where}, {rounds} rounds",
                f"F, {best if scheme == 'original' else scheme}",
                None,
                end,
            )
            for scheme, end in ends.items()
        ]
        claims += claims_on(
            where, {scheme: end.mean for scheme, end in ends.items()}, moved, not lab.quick
        )
        panels.append(
            Panel(
                where,
                "rounds",
                "F",
                [line(*each, "objective", name=scheme) for scheme, each in runs.items()],
                y_limits=(0.0, 3.0),
            )
        )
    return Findings(numbers, claims, panels)


REPRODUCTION = Reproduction(
    name="fedavg-schemes",
    paper="FedAvg",
    shows="Figures 1c, 1d and 4",
    about="Ten of 100 clients take part in a round, sampled and averaged in four ways; the "
    "original way has the best of four learning rates.",
    cost="10 min",
    reproduce=_reproduce,
    needs=("mnist",),
    left_open=(
        *LEFT_OPEN,
        "The same clients cannot be active under scheme I, which draws by size, and under the "
        "others: these share their cohorts, and scheme I has its own.",
        "The number of rounds is not stated: 40 on MNIST and 100 on the synthetic data.",
        "The best rate is that with the lowest F at the end, over the last ten rounds.",
    ),
    quick_is="the synthetic data only, 10 steps, 25 rounds, and "
    "two of the original scheme's four rates.",
    parts=tuple(DATA),
)
