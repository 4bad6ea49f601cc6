"""Figures 1c, 1d and 4 of FedAvg-nonIID: four ways to sample clients and average their models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from statistics import fmean

from undrift.core.clients import Roster
from undrift.data import synthetic
from undrift.report.recorded_runs import Runs
from undrift.report.tables import OverSeeds
from undrift.reproduce.curves import final, line, method_runs
from undrift.reproduce.fedavg.data_sets import DATA, LEFT_OPEN, SYNTHETIC, selected, settings
from undrift.reproduce.fedavg.second_schemes import Numbers, clients_of, final_objective
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction

ONE, TWO, TRANSFORMED = "scheme I", "scheme II", "transformed II"
ORIGINAL = tuple(f"original {rate:g}" for rate in (0.1, 0.5, 0.9, 1.1, 2, 4, 8))
"""The paper tunes over the first four; the best of them is the largest, so three are added."""
STEPS_AS_PRINTED = ", E counts single steps"
"""Ends the names of parts in which E = 10 means ten steps, and not ten blocks of ten."""
LAST_ROUNDS = 10
"""Final losses are means over these rounds."""
TOLERANCE = 0.1
"""Final losses with a smaller relative difference count as nearly the same."""
SAME_RESULT = 0.03
"""Two implementations with the same cohorts and other batches may differ by this share of F."""
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
    where: str,
    loss: dict[str, float],
    moved: dict[str, float],
    tuned: bool = True,
    shown: str | None = None,
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
    shown
        the losses in one line, by default without their spread over seeds
    """
    shown = shown or ", ".join(f"{scheme} {value:.4g}" for scheme, value in loss.items())
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
    if where.startswith(SYNTHETIC):
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
    notes: list[str] = []
    for where in _selected(lab):
        lab.begin(where)
        rounds, steps = _amount(where)
        rounds = lab.either(rounds, 25)
        given = {
            **settings(where.removesuffix(STEPS_AS_PRINTED)),
            "rounds": rounds,
            "local.steps": lab.either(steps, 10),
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
        if where in SYNTHETIC and not lab.quick:
            claims.append(_second_opinion(lab, where, rounds, best, ends))
        losses = {scheme: end.mean for scheme, end in ends.items()}
        claims += claims_on(where, losses, moved, not lab.quick, _with_spread(ends))
        if best == ORIGINAL[-1]:
            notes.append(
                f"{where}: the original scheme's best rate, {best.removeprefix('original ')}, is "
                "the largest that was tried, so that a larger one may be better still."
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
    return Findings(numbers, claims, panels, notes)


def _with_spread(ends: Mapping[str, OverSeeds]) -> str:
    """Return final losses in one line, with their standard deviation over seeds."""
    return ", ".join(
        f"{scheme} {end.mean:.4g}" + (f" ± {end.std:.2g}" if len(end.values) > 1 else "")
        for scheme, end in ends.items()
    )


def _second_opinion(
    lab: Lab, where: str, rounds: int, best: str, ends: Mapping[str, OverSeeds]
) -> Claim:
    """Compare our final F with a second implementation that has the same cohorts as seed 0."""
    steps = _amount(where)[1]
    rates = {ONE: 0.1, TRANSFORMED: 0.1, "original": float(best.removeprefix("original "))}

    def compute(scheme: str) -> float:
        table = DATA[where]
        data = synthetic(table["alpha"], table["beta"], table["clients"], seed=table["seed"])
        roster = Roster(data.ids, data.train.sizes)
        numbers = Numbers(steps, rounds, settings(where)["local.batch_size"], rates[scheme])
        name = scheme.removeprefix("scheme ")
        return final_objective(name, clients_of(data), roster, numbers, 0, LAST_ROUNDS)

    found = {
        scheme: lab.keep(f"{where}, second implementation, {scheme}", partial(compute, scheme))
        for scheme in rates
    }
    apart = max(abs(value / ends[scheme].values[0] - 1) for scheme, value in found.items())
    shown = ", ".join(f"{scheme} {value:.4g}" for scheme, value in found.items())
    return Claim(
        f"{where}: a second implementation, in NumPy, with the same cohorts ends within "
        f"{100 * SAME_RESULT:g} % of ours.",
        apart <= SAME_RESULT,
        f"{shown}; at most {100 * apart:.2g} % apart",
    )


def _amount(where: str) -> tuple[int, int]:
    """Return the rounds and the local steps in a round of a part."""
    if where.endswith(STEPS_AS_PRINTED):
        return 200, 10
    return (200, 100) if where in SYNTHETIC else (40, 200)


def _selected(lab: Lab) -> list[str]:
    """Return the parts to run in a lab; the quick version has only one unit of E."""
    return selected(lab) if lab.quick else lab.parts


REPRODUCTION = Reproduction(
    name="fedavg-schemes",
    paper="FedAvg",
    shows="Figures 1c, 1d and 4",
    about="Ten of 100 clients take part in a round, sampled and averaged in four ways; the "
    "original way has the best of seven learning rates.",
    cost="40 min with 3 seeds",
    seeds=3,
    reproduce=_reproduce,
    needs=("mnist",),
    left_open=(
        *LEFT_OPEN,
        "The same clients cannot be active under scheme I, which draws by size, and under the "
        "others: these share their cohorts, and scheme I has its own.",
        "The number of rounds is not stated: 40 on MNIST and 200 on the synthetic data.",
        "E = 10 of Figure 4 counts blocks of ten steps in the authors' code and steps in the "
        "text: both are run, with 100 and with 10 steps in a round.",
        "The original scheme's rate is tuned over 0.1, 0.5, 0.9 and 1.1 in the paper; here also "
        "over 2, 4 and 8. A note says where the best rate is the largest of them.",
        "The best rate is that with the lowest F at the end, over the last ten rounds.",
    ),
    quick_is="the synthetic data only, 10 steps, 25 rounds, and "
    "two of the original scheme's seven rates.",
    parts=(*DATA, *(f"{where}{STEPS_AS_PRINTED}" for where in SYNTHETIC)),
    revision=2,
)
