"""CIFAR-10 and CIFAR-100 in FedLGA's figures and tables: rounds to a test accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from undrift.report.tables import OverSeeds
from undrift.reproduce.curves import best, line
from undrift.reproduce.fedlga.rounds import (
    ACCURACY,
    METHODS,
    WINDOW_ROUNDS,
    first_claim,
    numbers,
    order_claim,
    panel,
    rising_claim,
    shown,
    to_target,
)
from undrift.reproduce.figure import Line, Panel
from undrift.reproduce.findings import Claim, Findings, Number
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction


@dataclass(frozen=True)
class PublishedResults:
    """A data set of the paper, and the numbers printed for it.

    Parameters
    ----------
    source
        name of the data set
    classes
        P, the classes of every client; `quick_classes` in the quick version, which has ten classes
    target
        the test accuracy to reach
    rounds
        rounds in Figure 2
    published
        rounds to the target (Table V)
    top
        best accuracy (Figure 4), if the text gives it
    by_tau
        FedLGA's rounds by τ_max (Table V)
    by_cohort
        FedLGA's rounds by K, if the text gives them
    """

    source: str
    classes: int
    quick_classes: int
    target: float
    rounds: int
    published: Mapping[str, float]
    top: Mapping[str, float]
    by_tau: Mapping[int, float]
    by_cohort: Mapping[int, float]


# In the order of METHODS.
BOTH = {
    "cifar10": PublishedResults(
        "cifar10",
        classes=2,
        quick_classes=2,
        target=0.55,
        rounds=600,
        published=dict(zip(METHODS, (220, 254, 278, 293, 334, 350), strict=True)),
        top=dict(zip(METHODS, (0.6444, 0.640, 0.637, 0.606, 0.589, 0.587), strict=True)),
        by_tau={1: 109, 2: 157, 3: 186, 4: 220},
        by_cohort={10: 220},
    ),
    "cifar100": PublishedResults(
        "cifar100",
        classes=20,
        quick_classes=4,
        target=0.40,
        rounds=500,
        published=dict(zip(METHODS, (145, 162, 185, 213, 269, 277), strict=True)),
        top={},
        by_tau={1: 122, 2: 126, 3: 140, 4: 145},
        by_cohort={10: 145, 25: 78},
    ),
}


def _reproduce(lab: Lab) -> Findings:
    found = Findings([], [], [], [])
    for part in lab.parts:
        images = BOTH[part.split()[0]]
        more = STUDIES[part.partition(" ")[2]](lab, images)
        found = Findings(
            [*found.numbers, *more.numbers],
            [*found.claims, *more.claims],
            [*found.panels, *more.panels],
        )
    notes = ["This quick run uses scikit-learn's digits and an MLP instead of CIFAR."] * lab.quick
    return Findings(found.numbers, found.claims, found.panels, notes)


def _name(lab: Lab, images: PublishedResults) -> str:
    """Return the name of the data."""
    return lab.either(images.source, f"digits for {images.source}")


def _settings(lab: Lab, images: PublishedResults) -> dict[str, object]:
    """Return the keys of the experiment file for a data set."""
    if lab.quick:
        return {"data.partition.k": images.quick_classes, "rounds": 15}
    return {
        "data.source": images.source,
        "data.partition.k": images.classes,
        "rounds": images.rounds,
    }


def _methods(lab: Lab, images: PublishedResults) -> Findings:
    """Reproduce Table V and Figures 2 and 4: the six methods."""
    runs = lab.run(images.source, _settings(lab, images), METHODS)
    rounds = to_target(runs, METHODS, images.target)
    top = {label: best(runs, label, ACCURACY) for label in METHODS}
    name = _name(lab, images)
    where = f"{name}, {100 * images.target:g} %"
    published, published_top = ({}, {}) if lab.quick else (images.published, images.top)
    return Findings(
        numbers(where, runs, METHODS, images.target, published)
        + [
            Number(f"{name}, best accuracy", label, published_top.get(label), top[label])
            for label in METHODS
        ],
        [
            first_claim(where, rounds),
            order_claim(f"{where}, after FedLGA", rounds),
            Claim(
                f"{name}: FedLGA has the best accuracy of all.",
                all(top["FedLGA"].mean > top[other].mean for other in METHODS[1:]),
                shown(top),
            ),
        ],
        [panel(where, runs, METHODS, images.target)],
    )


def _tau(lab: Lab, images: PublishedResults) -> Findings:
    """Reproduce Table V: FedLGA by τ_max."""
    return _sweep(lab, images, "τ_max", "limit.longest", lab.either((1, 2, 3, 4), (1, 4)))


def _clients(lab: Lab, images: PublishedResults) -> Findings:
    """Reproduce Figure 7: FedLGA with N clients."""
    return _sweep(lab, images, "N", "data.clients", lab.either((30, 50, 100), (15, 40)))


def _cohort(lab: Lab, images: PublishedResults) -> Findings:
    """Reproduce Figure 8: FedLGA with cohorts of K clients."""
    return _sweep(lab, images, "K", "sampling.cohort", lab.either((5, 10, 25), (4, 12)))


def _sweep(
    lab: Lab, images: PublishedResults, symbol: str, key: str, values: tuple[int, ...]
) -> Findings:
    """Run FedLGA for each value of a key of the experiment file."""
    printed = {"τ_max": images.by_tau, "K": images.by_cohort}.get(symbol, {})
    rounds: dict[str, OverSeeds] = {}
    found: list[Number] = []
    lines: list[Line] = []
    on = _name(lab, images)
    for value in values:
        name = f"{symbol} = {value}"
        settings = {**_settings(lab, images), key: value}
        runs = lab.run(f"{images.source} {symbol} {value}", settings, ["FedLGA"])
        rounds[name] = to_target(runs, ["FedLGA"], images.target)["FedLGA"]
        published = None if lab.quick else printed.get(value)
        found.append(Number(f"{on}, {name}", "FedLGA", published, rounds[name]))
        lines.append(line(runs, "FedLGA", ACCURACY, name=name, smooth=WINDOW_ROUNDS))
    falls = symbol != "τ_max"
    claim = rising_claim(
        f"{on}: FedLGA needs {'fewer' if falls else 'more'} rounds the larger {symbol} is.",
        rounds,
        falls,
    )
    title = f"{on}: FedLGA by {symbol}"
    return Findings(
        found, [claim], [Panel(title, "rounds", f"test accuracy, mean of {WINDOW_ROUNDS}", lines)]
    )


STUDIES = {"": _methods, "tau": _tau, "clients": _clients, "cohort": _cohort}

REPRODUCTION = Reproduction(
    name="fedlga-cifar",
    paper="FedLGA",
    shows="Table V, Figures 2b, 2c, 4, 7 and 8, CIFAR-10 and CIFAR-100",
    about="50 clients with 2 of 10 or 20 of 100 classes each, half of every cohort slow, train a "
    "ResNet. Measured: rounds to 55 % or 40 % test accuracy.",
    cost="about 1500 hours for the six methods and 2700 for the sweeps, estimated: it needs a GPU",
    reproduce=_reproduce,
    needs=("cifar10", "cifar100"),
    left_open=(
        "The learning rates and FedDyn's α are not printed: here 0.01 for both. The global rate "
        "η_g is 1.",
        "The paper does not say which ResNet: here ResNet-18 for 32 × 32 images with GroupNorm. "
        "Images are not enlarged to 224 × 224, which would cost fifty times as much.",
        "The paper does not say when a fluctuating accuracy has reached the target: here when the "
        "mean of the last five rounds has; the first crossing is listed, too.",
        "The gradient in FedLGA's correction is not uploaded: it is the client's mean gradient, "
        "−Δ/(η·steps).",
        "The paper prints best accuracies on CIFAR-10 as differences: those of the other methods "
        "are computed from them.",
    ),
    quick={
        "data.source": "digits",
        "data.augment": [],
        "data.clients": 20,
        "model": {"name": "mlp", "hidden": [32]},
        "local.lr": 0.2,
        "local.batch_size": 40,
    },
    quick_is="a stand-in: scikit-learn's digits among 20 clients (2 classes each, or 4 for "
    "CIFAR-100) and a 64-32-10 network, 15 rounds, and two values in each sweep.",
    parts=tuple(f"{source}{' ' * bool(study)}{study}" for source in BOTH for study in STUDIES),
)
