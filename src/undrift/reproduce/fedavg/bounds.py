"""Theorems 1 to 4 of FedAvg-nonIID: the measured error next to the bounds.

On clouds of points (`point_clouds`) the bounds are tight. On different logistic regressions,
regularised so that every loss is strongly convex, only the decay with T is compared.
All constants of the theorems are computed from the data; none is estimated from the runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch

from undrift.api import train
from undrift.core.evaluation import Evaluation
from undrift.core.losses import Losses
from undrift.core.sampling import Sampler, Uniform, Weighted
from undrift.local.schedules import Theorem1
from undrift.local.solvers import GD, SGD, Local
from undrift.methods import FedAvg
from undrift.reproduce.fedavg.point_clouds import MU as MU_POINTS
from undrift.reproduce.fedavg.point_clouds import PointClouds, noise_only, sampling_only
from undrift.reproduce.fedavg.point_clouds import constants as constants_of_points
from undrift.reproduce.figure import Line, Panel
from undrift.reproduce.findings import Claim, Findings, Number, over_seeds
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction
from undrift.theory import LogisticRegression, bounds, heterogeneity
from undrift.utils.keys import generator

N, SAMPLES, FEATURES, CLASSES = 10, 40, 5, 3
MU, E, K, BATCH = 0.1, 5, 4, 4
"""The weight decay, which equals μ; the local steps, the cohort size and the batch size."""
SCHEMES: Mapping[
    str, tuple[FedAvg, Sampler | None, Callable[[bounds.Constants], bounds.Bounds]]
] = {
    "full": (FedAvg("full"), None, bounds.full),
    "scheme I": (FedAvg("I"), Weighted(K), partial(bounds.scheme_one, cohort=K)),
    "scheme II": (FedAvg("II"), Uniform(K), partial(bounds.scheme_two, cohort=K)),
}
"""Theorems 1, 2 and 3: the method, the sampling of clients, and the bound."""


def samples() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return inputs with a different mean for each client, and labels by different rules."""
    rng = generator(0, "clients with logistic regressions")
    inputs, labels = [], []
    for _ in range(N):
        drawn = torch.from_numpy(rng.standard_normal((SAMPLES, FEATURES)) + rng.standard_normal())
        rule = torch.from_numpy(rng.standard_normal((FEATURES, CLASSES)))
        inputs.append(drawn / FEATURES**0.5)
        labels.append((drawn @ rule).argmax(1))
    return inputs, labels


INPUTS, LABELS = samples()
PROBLEM = LogisticRegression(INPUTS, LABELS, CLASSES, MU)
WEIGHTS = PROBLEM.weights("clients")
OPTIMUM = PROBLEM.optimum(WEIGHTS)
BEST = PROBLEM.evaluate(OPTIMUM, WEIGHTS, {})["train_loss"]


def constants() -> bounds.Constants:
    """Return the constants of the theorems, computed from the data.

    The gradient of a sample's cross-entropy is at most √2|u|, with u the input extended by a one.
    Therefore no iterate leaves |w| ≤ √2·max|u|/μ, no stochastic gradient exceeds G = 2√2·max|u|,
    and the gradient of a batch varies with σ_k² ≤ 2·max|u|²/batch.
    """
    largest = math.sqrt(1 + max(float(u.square().sum(1).max()) for u in INPUTS))
    minima = torch.tensor(
        [PROBLEM.value(k, PROBLEM.local_optimum(k)) for k in range(N)], dtype=torch.float64
    )
    return bounds.Constants(
        L=PROBLEM.smoothness(),
        mu=MU,
        E=E,
        q=WEIGHTS,
        sigma=torch.full((N,), largest * math.sqrt(2 / BATCH), dtype=torch.float64),
        G=2 * math.sqrt(2) * largest,
        Gamma=heterogeneity.gamma(PROBLEM, WEIGHTS, BEST, minima),
        distance=float(OPTIMUM.norm()),
    )


@dataclass(frozen=True)
class Tight:
    """A problem on which one term of a theorem's bound is nearly attained.

    Parameters
    ----------
    theorem
        the theorem, and the term
    problem
        the clients, who start at the optimum and do one step a round
    method, cohort
        the scheme, and the number of clients in a round (None: all)
    sampler
        how they are drawn
    bound
        the theorem
    most
        the bound is claimed to be at most this many times the error
    """

    theorem: str
    problem: PointClouds
    method: FedAvg
    cohort: int | None
    sampler: Sampler | None
    bound: Callable[[bounds.Constants], bounds.Bounds]
    most: float


FEW = 2
TIGHT = (
    Tight("Theorem 1, noise", noise_only(), FedAvg("full"), None, None, bounds.full, 4),
    Tight(
        "Theorem 2, sampling by scheme I",
        sampling_only(),
        FedAvg("I"),
        FEW,
        Weighted(FEW),
        partial(bounds.scheme_one, cohort=FEW),
        40,
    ),
    Tight(
        "Theorem 3, sampling by scheme II",
        sampling_only(),
        FedAvg("II"),
        FEW,
        Uniform(FEW),
        partial(bounds.scheme_two, cohort=FEW),
        40,
    ),
)


def tight_errors(case: Tight, rounds: int, seed: int) -> dict[str, Any]:
    """Return F(w_T) − F* of one run with single points as batches."""
    local = SGD(lr=Theorem1(MU_POINTS, MU_POINTS, 1), batch_size=1, steps=1, fresh_batches=True)
    return errors(case.problem, 0.0, case.method, case.sampler, local, rounds, seed)


def one_step(case: Tight, error: float, steps: int) -> tuple[float, float]:
    """Return E|w_1 − w*|² and Lemma 1's bound η_0²(B + C) on it, which is attained by noise."""
    stated = case.bound(constants_of_points(case.problem, case.cohort, steps))
    return 2 * error / MU_POINTS, stated.learning_rate(0) ** 2 * (stated.B + stated.C)


def errors(
    problem: Losses,
    least: float,
    method: FedAvg,
    cohort: Sampler | None,
    local: Local,
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """Return F(w_T) − F* of one run, by rounds; `least` is F*."""
    result = train(
        method,
        problem=problem,
        local=local,
        rounds=rounds,
        cohort=cohort,
        objective="clients",
        seed=seed,
        evaluate=Evaluation(every=max(1, rounds // 50)),
        progress=False,
    )
    at, values = result.history("train_loss")
    return {"rounds": at, "error": [value - least for value in values]}


def growth(scaled: Sequence[float]) -> tuple[float, float]:
    """Return the means over the second and the last quarter of (γ + T)·error.

    If the error decays as O(1/T), the last quarter is no larger.
    """
    quarter = len(scaled) // 4
    return fmean(scaled[quarter : 2 * quarter]), fmean(scaled[-quarter:])


def _reproduce(lab: Lab) -> Findings:
    rounds, repeats = lab.either((400, 10), (40, 2))
    parts = [_tight(lab, case, lab.either(200, 50), lab.either(40, 10)) for case in TIGHT]
    parts += [_decay(lab, scheme, rounds, repeats) for scheme in SCHEMES]
    parts.append(_fixed_rate(lab))
    return Findings(
        [number for found in parts for number in found.numbers],
        [claim for found in parts for claim in found.claims],
        [panel for found in parts for panel in found.panels],
    )


def _tight(lab: Lab, case: Tight, rounds: int, repeats: int) -> Findings:
    """Compare the error with a bound that it nearly attains."""
    runs = [
        lab.keep(f"{case.theorem}, seed {seed}", partial(tight_errors, case, rounds, seed))
        for seed in range(repeats)
    ]
    steps, mean = runs[0]["rounds"], mean_error(runs)
    stated = case.bound(constants_of_points(case.problem, case.cohort, rounds))
    above = [stated.bound(T) for T in steps]
    first = lab.keep(
        f"{case.theorem}, one step",
        lambda: fmean(tight_errors(case, 1, seed)["error"][-1] for seed in range(repeats)),
    )
    reached, lemma = one_step(case, first, rounds)
    late = slice(len(mean) // 2, None)  # a mean over rounds, as single ones scatter
    ratio = 1 / fmean(e / bound for e, bound in zip(mean[late], above[late], strict=True))
    return Findings(
        [
            Number(f"{case.theorem}, T = {steps[-1]}", what, None, over_seeds(value))
            for what, value in (("mean F(w_T) − F*", mean[-1]), ("the bound", above[-1]))
        ],
        [
            Claim(
                f"{case.theorem}: the mean error is below the bound at every T, and the bound is "
                f"at most {case.most:g} times the error in the second half of the run.",
                all(e <= bound for e, bound in zip(mean, above, strict=True))
                and ratio <= case.most,
                f"the bound is {ratio:.3g} times the error there",
            ),
            Claim(
                f"{case.theorem}: one step from the optimum obeys the step of the proof, "
                "E|w₁ − w*|² ≤ η₀²(B + C).",
                reached <= 1.1 * lemma,  # a mean over few runs scatters by a few percent
                f"{reached:.3g} against {lemma:.3g}, {reached / lemma:.2g} of it",
            ),
        ],
        [_panel(case.theorem, steps, mean, above)],
    )


def mean_error(runs: Sequence[dict[str, Any]]) -> list[float]:
    """Return the mean error over runs, by rounds."""
    return [fmean(each) for each in zip(*(run["error"] for run in runs), strict=True)]


def _decay(lab: Lab, scheme: str, rounds: int, repeats: int) -> Findings:
    """Measure how the error decays on logistic regressions that differ between clients."""
    few = repeats < 10  # with sampled clients, two runs are too few to see a trend
    assumed = constants()
    decaying = SGD(lr=Theorem1(MU, assumed.L, E), batch_size=BATCH, steps=E, fresh_batches=True)
    method, cohort, theorem = SCHEMES[scheme]
    runs = [
        lab.keep(
            f"{scheme}, seed {seed}",
            partial(errors, PROBLEM, BEST, method, cohort, decaying, rounds, seed),
        )
        for seed in range(repeats)
    ]
    steps, mean = [E * at for at in runs[0]["rounds"]], mean_error(runs)
    stated = theorem(assumed)
    early, late = growth([(stated.gamma + T) * e for T, e in zip(steps, mean, strict=True)])
    where = f"logistic regressions, {scheme}"
    return Findings(
        [
            Number(f"{where}, T = {steps[-1]}", what, None, over_seeds(value))
            for what, value in (
                ("mean F(w_T) − F*", mean[-1]),
                ("the bound", stated.bound(steps[-1])),
            )
        ],
        [
            Claim(
                f"{where}: the error decays at least as 1/T.",
                None if few and scheme != "full" else late <= 1.1 * early,
                f"(γ + T)·error is {early:.3g} in the second quarter of the run and {late:.3g} in "
                f"the last, in the mean over {repeats} runs",
            )
        ],
        [_panel(where, steps, mean, [stated.bound(T) for T in steps])],
    )


def _panel(title: str, steps: Sequence[int], mean: list[float], above: list[float]) -> Panel:
    lines = [Line("mean over seeds", steps, mean), Line("bound", steps, above)]
    return Panel(title, "T, steps of SGD", "F(w_T) − F*", lines, log_y=True)


def _fixed_rate(lab: Lab) -> Findings:
    """Show Theorem 4: with a fixed rate and E > 1 the optimum is missed."""
    rate, rounds = 1 / constants().L, lab.either(600, 100)
    fixed = {
        steps: lab.keep(
            f"fixed rate, {steps} steps",
            partial(
                errors, PROBLEM, BEST, FedAvg("full"), None, GD(lr=rate, steps=steps), rounds, 0
            ),
        )
        for steps in (1, E)
    }
    stalled, middle = fixed[E]["error"][-1], fixed[E]["error"][len(fixed[E]["error"]) // 2]
    claim = Claim(
        "With a fixed rate, full gradients and E > 1 it misses the optimum (Theorem 4).",
        stalled > 100 * abs(fixed[1]["error"][-1]) and math.isclose(stalled, middle, rel_tol=0.01),
        f"F − F* is {stalled:.3g} at the end and {middle:.3g} halfway for E = {E}, and "
        f"{fixed[1]['error'][-1]:.3g} at the end for E = 1",
    )
    lines = [Line(f"E = {steps}", run["rounds"], run["error"]) for steps, run in fixed.items()]
    panel = Panel("fixed rate 1/L, full gradients", "rounds", "F − F*", lines, log_y=True)
    return Findings([], [claim], [panel])


REPRODUCTION = Reproduction(
    name="fedavg-bounds",
    paper="FedAvg",
    shows="Theorems 1 to 4",
    about="The mean error of FedAvg next to the theorems' bounds, every constant of which is "
    "computed from the data: on clouds of points, where the bounds are within a small factor of "
    "the error, and on logistic regressions that differ between clients, where they are loose.",
    cost="3 min",
    reproduce=_reproduce,
    left_open=(
        "The paper does not compare its bounds with measurements: the problems are ours. On the "
        "clouds of points κ = 1, E = 1 and the start is the optimum, so that one term of the "
        "bound is all there is: a term that is dropped would be noticed.",
        "For E > 1 the term 8(E − 1)²G² dominates every bound, by far more than the drift of any "
        "problem here: on the logistic regressions only the decay with T is claimed.",
        "The printed bound holds for γ = 8κ; where E is larger than that its last term is "
        "(μγ/4)|w_0 − w*|², from the same proof.",
        "The means are over 40 runs on the clouds of points and ten on the logistic regressions, "
        "whatever the number of seeds.",
    ),
    quick_is="two runs of 40 rounds for each theorem instead of ten of 400.",
    revision=2,
)
