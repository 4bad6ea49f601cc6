"""FedLGA's sweeps on Fashion-MNIST: τ_max, the share of slow clients, E, N and K."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undrift.report.tables import OverSeeds
from undrift.reproduce.curves import best, line
from undrift.reproduce.fedlga.calibration import FIFTH, FULL, TARGET, images_of
from undrift.reproduce.fedlga.rounds import (
    ACCURACY,
    METHODS,
    Rounds,
    diverged,
    first_claim,
    numbers,
    rising_claim,
    to_target,
)
from undrift.reproduce.figure import Line, Panel, line_over_seeds
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab

BY_TAU = {1: 29, 2: 41, 3: 54, 4: 60}
"""FedLGA's rounds by τ_max (Table V)."""
BY_EPOCHS = {5: {"FedLGA": 60, "FedAvg": 116}, 8: {"FedLGA": 52, "FedAvg": 104}}
FEW = ("FedLGA", "FedAvg")
"""Methods of the quick version's sweeps: the paper's first and last."""


def by_tau(lab: Lab) -> Findings:
    """Reproduce Table V: FedLGA with τ_max from 0.2E, where no client is slow, to 0.8E."""
    rounds: dict[str, OverSeeds] = {}
    found: list[Number] = []
    lines: list[Line] = []
    for tau in lab.either((1, 2, 3, 4), (1, 4)):
        name = f"{tau / 5:g}E"
        settings = {"limit.longest": tau, "rounds": lab.either(70, 15)}
        runs = lab.run(f"tau {tau}", {**images_of(lab, FULL), **settings}, ["FedLGA"])
        rounds[name] = to_target(runs, ["FedLGA"], TARGET)["FedLGA"]
        printed = None if lab.quick else BY_TAU[tau]
        found.append(Number(f"τ_max = {name}", "FedLGA", printed, rounds[name]))
        lines.append(line(runs, "FedLGA", ACCURACY, name=f"τ_max = {name}", smooth=5))
    return Findings(
        found,
        [rising_claim("FedLGA needs more rounds the larger τ_max is.", rounds)],
        [Panel("FedLGA by τ_max", "rounds", "test accuracy, mean of 5", lines)],
        ["With τ_max = 0.2E = 1 every client does all E epochs, so that FedLGA is FedAvg."],
    )


def by_share(lab: Lab) -> Findings:
    """Reproduce Figure 6: the share ρ of slow clients."""
    shares = lab.either((0.1, 0.5, 0.9), (0.1, 0.9))
    methods = lab.either(METHODS, FEW)
    rounds_of = {}
    gone: list[str] = []
    for share in shares:
        settings = {"limit.share": share, "rounds": lab.either(70, 15)}
        runs = lab.run(f"share {share:g}", {**images_of(lab, FIFTH), **settings}, methods)
        gone += diverged(f"ρ = {share:g}", runs, methods)
        rounds_of[share] = to_target(runs, methods, TARGET)
    found = _sweep("ρ", rounds_of, {})
    claims = [
        rising_claim(
            f"{label} needs more rounds the more clients are slow.",
            {f"ρ = {share:g}": rounds[label] for share, rounds in rounds_of.items()},
        )
        for label in ("FedLGA", "FedAvg")
    ]
    return Findings(found.numbers, [*found.claims, *claims], found.panels, gone)


def by_epochs(lab: Lab) -> Findings:
    """Reproduce Figure 5: the expected number E of local epochs, with τ_max = E − 1."""
    epochs = lab.either((2, 5, 8), (2, 6))
    methods = lab.either(METHODS, FEW)
    rounds_of = {}
    gone: list[str] = []
    for number in epochs:
        settings = {
            "local.epochs": number,
            "limit.longest": number - 1,
            "rounds": lab.either(70, 15),
            **images_of(lab, FIFTH),
        }
        runs = lab.run(f"epochs {number}", settings, methods)
        gone += diverged(f"E = {number}", runs, methods)
        rounds_of[number] = to_target(runs, methods, TARGET)
    found = _sweep("E", rounds_of, {} if lab.quick else BY_EPOCHS)
    fewer = rising_claim(
        "FedLGA needs fewer rounds the more local epochs there are.",
        {f"E = {number}": rounds["FedLGA"] for number, rounds in rounds_of.items()},
        falls=True,
    )
    return Findings(found.numbers, [*found.claims, fewer], found.panels, gone)


def _sweep(
    symbol: str,
    by_value: Mapping[Any, Rounds],
    published: Mapping[Any, Mapping[str, float]],
) -> Findings:
    """Return rounds to the target against a parameter, for all methods."""
    found = [
        Number(f"{symbol} = {value:g}", label, published.get(value, {}).get(label), over)
        for value, rounds in by_value.items()
        for label, over in rounds.items()
    ]
    claims = [first_claim(f"{symbol} = {value:g}", rounds) for value, rounds in by_value.items()]
    lines = [_line(label, by_value) for label in next(iter(by_value.values()))]
    return Findings(found, claims, [Panel(f"Rounds to 65 % by {symbol}", symbol, "rounds", lines)])


def _line(label: str, by_value: Mapping[Any, Rounds]) -> Line:
    """Return a method's rounds against the parameter, with the deviation over seeds."""
    values = [rounds[label].values for rounds in by_value.values()]
    return line_over_seeds(label, list(by_value), values, marker="o")


def by_clients(lab: Lab) -> Findings:
    """Reproduce Figures 7 and 8: FedLGA with N clients, and with cohorts of K clients."""
    sweeps = {
        "N": ("data.clients", lab.either((30, 50, 100), (15, 40))),
        "K": ("sampling.cohort", lab.either((5, 10, 25), (4, 12))),
    }
    found: list[Number] = []
    claims: list[Claim] = []
    panels: list[Panel] = []
    gone: list[str] = []
    for symbol, (key, values) in sweeps.items():
        top: dict[str, OverSeeds] = {}
        lines: list[Line] = []
        for value in values:
            name = f"{symbol} = {value}"
            settings = {**images_of(lab, FIFTH), key: value, "rounds": lab.either(200, 15)}
            runs = lab.run(f"{symbol} {value}", settings, ["FedLGA"])
            gone += diverged(name, runs, ["FedLGA"])
            top[name] = best(runs, "FedLGA", ACCURACY)
            found += [
                Number(f"best accuracy, {name}", "FedLGA", None, top[name]),
                *numbers(name, runs, ["FedLGA"], TARGET, {}),
            ]
            lines.append(line(runs, "FedLGA", ACCURACY, name=name, smooth=5))
        claims.append(rising_claim(f"FedLGA's best accuracy rises with {symbol}.", top))
        panels.append(Panel(f"FedLGA by {symbol}", "rounds", "test accuracy, mean of 5", lines))
    return Findings(found, claims, panels, gone)
