"""Figure 2 of FedDyn: FedDyn against FedSplit, with all and with a tenth of the devices."""

from __future__ import annotations

from undrift.reproduce.curves import best, line
from undrift.reproduce.feddyn.models_sent import DIGITS, NO_IMAGES
from undrift.reproduce.figure import Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction

SERVER = "test_accuracy"
"""Accuracy of the server's model: the two forms of FedSplit differ in what the server holds."""
TIE = 0.005
"""Closer accuracies are not decided."""
DYN = "FedDyn"
ETAS = ("10", "1")
"""Step sizes η of FedSplit, in the labels of the experiment file."""
EVERYONE, TENTH = "100 %", "10 %"
FORMS = {EVERYONE: ("All",), TENTH: ("All", "Act")}
"""With all devices in a round, All and Act are the same method."""


def better(text: str, one: float, other: float) -> Claim:
    """Claim that one accuracy is above another; undecided if they are too close."""
    holds = None if abs(one - other) < TIE else one > other
    return Claim(text, holds, f"{one:.3f} against {other:.3f}")


def _reproduce(lab: Lab) -> Findings:
    numbers, claims, panels = [], [], []
    for part in lab.parts:
        splits = [f"FedSplit {form}, {eta}" for form in FORMS[part] for eta in ETAS]
        settings = {"sampling": {"kind": "all"}} if part == EVERYONE else {}
        runs = lab.run(part, settings, [DYN, *splits])
        names = {label: label.replace(", ", ", η = ") for label in (DYN, *splits)}
        reached = {label: best(runs, label, SERVER) for label in names}
        numbers += [Number(part, names[label], None, over) for label, over in reached.items()]
        most = max(reached[label].mean for label in splits)
        text = f"{part}: FedDyn does better than every form and η of FedSplit."
        claims.append(better(text, reached[DYN].mean, most))
        for eta in ETAS if part == TENTH else ():
            act, every = (reached[f"FedSplit {form}, {eta}"].mean for form in ("Act", "All"))
            text = f"{part}: FedSplit Act does better than FedSplit All with η = {eta}."
            claims.append(better(text, act, every))
        lines = [line(runs, label, SERVER, name=name) for label, name in names.items()]
        panels.append(Panel(part, "rounds", "test accuracy", lines))
    return Findings(numbers, claims, panels, [NO_IMAGES] if lab.quick else ())


REPRODUCTION = Reproduction(
    name="feddyn-fedsplit",
    paper="FedDyn",
    shows="Figure 2",
    about="FedDyn and FedSplit on CIFAR-10 with 100 devices, all or 10 of them in a round.",
    cost="10 %: about 40 hours, estimated; 100 %: ten times that",
    reproduce=_reproduce,
    needs=("cifar10",),
    parts=(EVERYONE, TENTH),
    left_open=(
        "Split: the paper does not say whether the data are IID; here they are.",
        "FedSplit: the step size η is not printed; here 10, which is 1/α of FedDyn, and 1. On the "
        "digits of the quick version η decides whether Act or All is better.",
        "Model: here the server's, in which the two forms of FedSplit differ.",
        "Rounds: not printed; here 500.",
    ),
    quick={**DIGITS, "data.partition": "iid", "evaluation.models": ["server"], "rounds": 20},
    quick_is="digits of 8 × 8 with a small network in place of CIFAR-10, 20 clients "
    "with 20 or 4 in a round, 20 rounds.",
)
