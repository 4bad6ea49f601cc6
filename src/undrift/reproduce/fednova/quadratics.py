"""Figure 2 of FedNova: quadratics on which unequal numbers of local steps bias methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from undrift.api import compare
from undrift.local.amounts import NormalAmount
from undrift.local.schedules import Milestones
from undrift.local.solvers import GD, Amount
from undrift.methods import VRLSGD, FedAvg, FedNova, FedProx, Method
from undrift.reproduce.figure import Panel, line_over_seeds
from undrift.reproduce.findings import Claim, Findings, Number, over_seeds
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction
from undrift.theory import fixed_points
from undrift.theory.quadratics import distances
from undrift.utils.keys import generator

MU = 1.0
METHODS: Mapping[str, Method] = {
    "FedAvg": FedAvg(),
    "FedProx": FedProx(mu=MU),
    "VRL-SGD": VRLSGD(),
    "FedNova": FedNova(),
}
EQUAL, FIXED, RANDOM = "equal τ", "fixed τ_i", "random τ_i(t)"
STEPS: Mapping[str, Amount] = {
    EQUAL: 30,
    FIXED: NormalAmount(30, 20, low=1, high=96, per="client"),
    RANDOM: NormalAmount(30, 20, low=1, high=96, per="round"),
}
RATES = (0.05, 0.01, 0.002)
DIMENSION, SPREAD = 10, 0.1  # e_i ~ N(0, 0.01·I)
FAR_BELOW_RATIO = 100.0
"""A gap is far below another if it is this many times smaller."""
MAX_SHARE = 0.05
"""How far from its closed form a run may end, relative to the closed form's distance from x*."""
DIVERGED_RATIO = 1e6
"""A run diverges if its gap exceeds its first gap by this factor."""


@dataclass(frozen=True)
class RunSize:
    """The size of a run: number of clients, and the rounds at which each rate ends."""

    clients: int
    ends: tuple[int, int, int]


FULL = RunSize(clients=30, ends=(600, 900, 1200))
QUICK = RunSize(clients=6, ends=(20, 50, 120))


def points(size: RunSize, seed: int) -> Tensor:
    """Return the e_i, the minima of the clients."""
    drawn = generator(seed, "points").standard_normal((size.clients, DIMENSION))
    return torch.as_tensor(SPREAD * drawn)


def simulate(size: RunSize, setting: str, label: str, seed: int) -> dict[str, Any]:
    """Return F − F* of every round, and the model when each rate ends; fewer if it diverged."""
    models: list[list[float]] = []

    def note(run: Any, record: Any) -> None:
        if record.round in size.ends:
            models.append(run.server.x.tolist())

    result = compare(
        {label: METHODS[label]},
        problem=distances(points(size, seed)),
        local=GD(lr=Milestones(RATES[0], size.ends[:2], gamma=0.2), steps=STEPS[setting]),
        rounds=size.ends[-1],
        objective="clients",
        seed=seed,
        engine="serial",
        callbacks=[note],
        progress=False,
    )[label]
    # ∇F(x) = x − x*, so that F − F* = ½|∇F|² without cancellation.
    gaps = [g**2 / 2 for g in result.history("gradient_norm")[1]]
    return {"gaps": gaps, "models": models, "diverged": result.run.diverged}


def _reproduce(lab: Lab) -> Findings:
    size = lab.either(FULL, QUICK)
    runs = {
        setting: {
            label: [
                lab.keep(
                    f"{setting} {label} seed {seed}",
                    partial(simulate, size, setting, label, seed),
                )
                for seed in lab.seeds
            ]
            for label in METHODS
        }
        for setting in lab.parts
    }
    numbers, claims = [], []
    for setting, of in runs.items():
        numbers += [
            Number(f"{setting}, last F − F*", label, None, over_seeds(*map(last, each)), 3)
            for label, each in of.items()
        ]
        claims += CLAIMS[setting](size, of)
    panels = [_panel(setting, of) for setting, of in runs.items()]
    notes = [before_the_decays(size, runs[FIXED])] if FIXED in runs else []
    return Findings(numbers, claims, panels, notes)


Outcomes = Mapping[str, Sequence[dict[str, Any]]]
"""The stored runs of a setting, a list over seeds for each method."""


def last(run: Mapping[str, Any], rounds: int = 20) -> float:
    """Return the mean of the last gaps, which fluctuate with random τ; infinity if it diverged."""
    gaps = run["gaps"]
    grew = run["diverged"] or not math.isfinite(gaps[-1]) or gaps[-1] > DIVERGED_RATIO * gaps[0]
    return math.inf if grew else fmean(gaps[-rounds:])


def far_below(setting: str, of: Outcomes) -> Claim:
    """Claim that FedNova ends far below FedAvg and FedProx, with every seed."""
    ours = of["FedNova"]
    factors = {
        label: [last(theirs) / last(run) for theirs, run in zip(of[label], ours, strict=True)]
        for label in ("FedAvg", "FedProx")
    }
    return Claim(
        f"{setting}: after both decays FedNova is at least {FAR_BELOW_RATIO:g} times nearer to the "
        "optimal value than FedAvg and FedProx.",
        all(factor >= FAR_BELOW_RATIO for each in factors.values() for factor in each),
        ", ".join(f"{label} {min(each):.3g} times above" for label, each in factors.items()),
    )


def before_the_decays(size: RunSize, of: Outcomes) -> str:
    """Return a note about the gaps at the end of the first rate, where FedNova is still biased."""
    shown = ", ".join(
        f"{label} {fmean(run['gaps'][size.ends[0]] for run in each):.2g}"
        for label, each in of.items()
    )
    return (
        f"FedNova's bias vanishes with η, FedAvg's does not: with {FIXED}, F − F* at the end of "
        f"the first rate, η = {RATES[0]:g}, is {shown}."
    )


def _when_equal(size: RunSize, of: Outcomes) -> list[Claim]:
    apart = max(
        abs(a - b)
        for theirs, ours in zip(of["FedAvg"], of["FedNova"], strict=True)
        for a, b in zip(theirs["gaps"], ours["gaps"], strict=True)
    )
    ends = {label: max(map(last, each)) for label, each in of.items()}
    small = {label: min(_rounds_to(run, 1e-10) for run in each) for label, each in of.items()}
    return [
        Claim(
            f"{EQUAL}: FedNova is FedAvg.",
            apart < 1e-12,
            f"F − F* differs by {apart:.1g} at most",
        ),
        Claim(
            f"{EQUAL}: all methods reach the optimum.",
            all(end < 1e-15 for end in ends.values()),
            "last F − F*: " + ", ".join(f"{label} {end:.1g}" for label, end in ends.items()),
        ),
        Claim(
            f"{EQUAL}: FedProx is slower than FedAvg.",
            small["FedProx"] > small["FedAvg"],
            f"below 1e-10 after {small['FedProx']:g} rounds, against {small['FedAvg']:g}",
        ),
    ]


def _rounds_to(run: Mapping[str, Any], value: float) -> float:
    return next((t for t, gap in enumerate(run["gaps"]) if gap <= value), math.inf)


def _rounds_to_growth(run: Mapping[str, Any]) -> float:
    gaps = run["gaps"]
    return next((t for t, gap in enumerate(gaps) if not gap <= DIVERGED_RATIO * gaps[0]), math.inf)


def _when_fixed(size: RunSize, of: Outcomes) -> list[Claim]:
    ends = {label: fmean(map(last, each)) for label, each in of.items()}
    ratios = [last(p) / last(a) for p, a in zip(of["FedProx"], of["FedAvg"], strict=True)]
    return [
        far_below(FIXED, of),
        Claim(
            f"{FIXED}: FedProx ends somewhat nearer to the optimum than FedAvg.",
            all(ratio < 1 for ratio in ratios),
            f"F − F* is {max(ratios):.2f} of FedAvg's",
        ),
        Claim(
            f"{FIXED}: VRL-SGD, though it corrects for unequal data, does not reach the optimum.",
            ends["VRL-SGD"] >= FAR_BELOW_RATIO * ends["FedNova"],
            f"F − F* is {ends['VRL-SGD']:.2g}, FedNova's {ends['FedNova']:.2g}",
        ),
        closed_forms(size, of),
        lemma1(size, of),
    ]


def _steps(size: RunSize, seed: int) -> list[int]:
    """Return the τ_i of the clients, the same in all rounds."""
    amount = STEPS[FIXED]
    assert isinstance(amount, NormalAmount)
    return [amount.of(client, 0, seed) for client in range(size.clients)]


def closed_forms(size: RunSize, of: Outcomes) -> Claim:
    """Claim that runs end at the closed form of the last rate."""
    away: dict[str, float] = {}
    for label in ("FedAvg", "FedProx", "FedNova"):
        for seed, run in enumerate(of[label]):
            e, tau = points(size, seed), torch.tensor(_steps(size, seed), dtype=torch.float64)
            omega = 1 / tau if label == "FedNova" else torch.ones_like(tau)
            mu = MU if label == "FedProx" else 0.0
            limit = fixed_points.spherical(e, omega, RATES[-1], tau, mu)
            missed = torch.tensor(run["models"][-1]) - limit
            share = float(missed.norm() / (limit - e.mean(0)).norm())
            away[label] = max(share, away.get(label, 0.0))
    return Claim(
        f"{FIXED}: at the last rate each method ends at its closed form, "
        "Σ ω_i c_i e_i / Σ ω_i c_i with c_i = 1 − (1 − η(1 + μ))^τ_i.",
        all(share < MAX_SHARE for share in away.values()),
        "distance from it, relative to its distance from the optimum: "
        + ", ".join(f"{label} {share:.1g}" for label, share in away.items()),
    )


def lemma1(size: RunSize, of: Outcomes) -> Claim:
    """Claim that FedAvg tends to the point weighted by τ_i as the rate falls."""
    shares = []
    for seed, run in enumerate(of["FedAvg"]):
        e = points(size, seed)
        q = torch.full((size.clients,), 1 / size.clients, dtype=torch.float64)
        goal = fixed_points.lemma1(e, q, _steps(size, seed))
        own = (goal - e.mean(0)).norm()
        shares.append([float((torch.tensor(x) - goal).norm() / own) for x in run["models"]])
    falls = all(a > b > c for a, b, c in shares)
    return Claim(
        f"{FIXED}: as η falls FedAvg tends to the point of Lemma 1, Σ τ_i e_i / Σ τ_i.",
        falls and all(each[-1] < 0.1 for each in shares),
        "distance from it, relative to its distance from the optimum: "
        + ", ".join(
            f"{fmean(each):.2g} at η = {rate:g}"
            for rate, each in zip(RATES, zip(*shares, strict=True), strict=True)
        ),
    )


def _when_random(size: RunSize, of: Outcomes) -> list[Claim]:
    rounds = [_rounds_to_growth(run) for run in of["VRL-SGD"]]
    return [
        far_below(RANDOM, of),
        Claim(
            f"{RANDOM}: VRL-SGD diverges.",
            all(math.isinf(last(run)) for run in of["VRL-SGD"]),
            f"F − F* is {DIVERGED_RATIO:.0e} times its first value after {max(rounds):g} rounds",
        ),
    ]


CLAIMS = {EQUAL: _when_equal, FIXED: _when_fixed, RANDOM: _when_random}


def _panel(setting: str, of: Outcomes) -> Panel:
    lines = []
    for label, each in of.items():
        # Draw a run that diverged only until its gap leaves the panel.
        shortest = int(min(min(len(run["gaps"]), _rounds_to_growth(run)) for run in each))
        columns = list(zip(*(run["gaps"][:shortest] for run in each), strict=True))
        lines.append(line_over_seeds(label, range(shortest), columns))
    floor = 1e-18 if setting == EQUAL else 1e-9
    return Panel(setting, "rounds", "F − F*", lines, log_y=True, y_limits=(floor, 1.0))


REPRODUCTION = Reproduction(
    name="fednova-quadratics",
    paper="FedNova",
    shows="Figure 2, and Lemma 1",
    about="30 clients with f_i = ½|x − e_i|² do gradient descent: equal numbers of steps, fixed "
    "unequal numbers, and numbers drawn anew in every round.",
    cost="12 min",
    reproduce=_reproduce,
    left_open=(
        f"The dimension is not printed: here {DIMENSION}.",
        "The distribution of the τ_i in [1, 96] with mean 30 is not printed: here N(30, 20²), "
        "rounded and clipped to [1, 96].",
        "The last round is not printed: here 1200, so that the third rate has 300 rounds.",
        "The starting point is not printed: here zero.",
    ),
    quick_is="6 clients and 120 rounds, with decays at 20 and 50.",
    parts=tuple(STEPS),
)
