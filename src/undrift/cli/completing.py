"""What the shell offers when a word is completed.

It must answer at once, so nothing here reads torch. The words are therefore written down once more;
a test compares them with what there is.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

WORDS: dict[str, tuple[str, ...]] = {
    "methods": (
        *("DistributedSGD", "FedAvg", "FedProx", "SCAFFOLD", "VRLSGD", "FedNova", "FedAvgMin"),
        *("FedDyn", "FedPD", "FedSplit", "FedDR", "FedLGA", "AsyncFedDR", "FedAsync", "FedBuff"),
    ),
    "data": (
        *("synthetic", "feddyn-synthetic", "digits", "mnist", "fashion-mnist", "emnist"),
        *("emnist-l", "femnist", "cifar10", "cifar100", "shakespeare"),
    ),
    "models": ("logistic", "mlp", "cifar_cnn", "pfl_cnn", "vgg11", "resnet18", "char_lstm"),
    "partitions": ("iid", "dirichlet", "dirichlet-per-class", "classes", "natural"),
    "sizes": ("balanced", "lognormal", "power-law"),
    "samplers": ("all", "uniform", "weighted", "bernoulli", "fixed"),
    "solvers": ("SGD", "GD", "Exact"),
    "amounts": ("uniform", "normal"),
    "schedules": ("Constant", "Inverse", "Exponential", "Milestones", "Theorem1"),
    "servers": ("Plain", "Momentum", "Adam", "Yogi", "Adagrad"),
    "regularizers": ("L1", "L2", "Box"),
    "staleness": ("Constant", "Polynomial", "Hinge"),
    "augmentations": ("crop", "flip"),
    "systems": (
        *("fedavg-first", "fednova-fixed", "fednova-random", "fednova-epochs"),
        *("fednova-synthetic", "feddyn", "feddr-async", "fedlga"),
    ),
    "devices": ("drawn", "classes", "file"),
    "laws": ("same", "ladder", "between", "lognormal", "normal"),
    "availabilities": ("always", "duty"),
    "paces": ("all", "deadline", "first", "asynchronous"),
}
"""What `undrift list` names, by group."""
IRREGULAR = {"sizes": "sizes", "staleness": "staleness", "availability": "availabilities"}
KINDS = {
    **{each.removesuffix("s"): each for each in WORDS if each not in IRREGULAR.values()},
    **IRREGULAR,
}
"""The words of `undrift show`, with the group each belongs to."""
REPRODUCTIONS = (
    *("fedavg-tridiagonal", "fedavg-local-steps", "fedavg-participation", "fedavg-schemes"),
    *("fedavg-bounds", "fednova-quadratics", "fednova-prox-tradeoff", "fednova-synthetic"),
    *("fednova-cifar10", "feddyn-synthetic", "feddyn-mnist", "feddyn-cifar10", "feddyn-cifar100"),
    *("feddyn-emnist", "feddyn-shakespeare", "feddyn-alpha", "feddyn-fedsplit", "feddr-synthetic"),
    *("feddr-l1", "feddr-async", "feddr-femnist", "fedlga-fmnist", "fedlga-cifar"),
)
WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6")
ENGINES = ("auto", "vectorised", "serial", "ray")


def words(*known: Iterable[str]) -> Callable[[str], list[str]]:
    """Completes one of the words."""

    def complete(incomplete: str) -> list[str]:
        return [word for several in known for word in several if word.startswith(incomplete)]

    return complete


def experiments(incomplete: str) -> list[str]:
    """Completes an experiment file."""
    found = [path for path in _near(incomplete) if path.suffix == ".toml"]
    return [str(path) for path in found if "[[method" in _text(path)]


def run_folders(incomplete: str) -> list[str]:
    """Completes a run folder."""
    return [str(path) for path in _near(incomplete) if (path / "about.json").is_file()]


def apps(incomplete: str) -> list[str]:
    """Completes a folder that can be deployed."""
    both = ("experiment.toml", "site.py")
    found = _near(incomplete)
    return [str(path) for path in found if all((path / name).is_file() for name in both)]


def sources(incomplete: str) -> list[str]:
    """Completes a data set, an experiment file or a folder of client files."""
    files = (".csv", ".npz", ".parquet")
    folders = {str(path.parent) for path in _near(incomplete) if path.suffix in files}
    folders.discard(".")
    return [*words(WORDS["data"])(incomplete), *experiments(incomplete), *sorted(folders)]


def methods(incomplete: str) -> list[str]:
    """Completes a method of ours, or a file that may have one."""
    own = [f"{path}:" for path in _near(incomplete) if path.suffix == ".py"]
    return [*words(WORDS["methods"])(incomplete), *own]


def names(ctx: click.Context, incomplete: str) -> list[str]:
    """Completes the name of a part whose kind was given before."""
    kind = ctx.params.get("kind", "")
    return words(WORDS.get(KINDS.get(kind, kind), ()))(incomplete)


def labels(ctx: click.Context, incomplete: str) -> list[str]:
    """Completes the label of a method of the experiment that was given before."""
    try:
        # With an option that still waits for its value, click leaves the arguments aside.
        given = ctx.params.get("experiment") or ctx.args[0]
        found = tomllib.loads(_text(Path(given)))
        several = [method.get("label", method["name"]) for method in found["method"]]
    except (LookupError, TypeError, AttributeError, ValueError):
        return []  # a file with mistakes is a matter for the command itself
    return [str(label) for label in several if str(label).startswith(incomplete)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


DEPTH, MOST = 3, 2000
"""How far down paths are looked for, and how many are looked at: the shell waits."""


def _near(incomplete: str) -> Iterator[Path]:
    """Paths that begin as given, those in folders below too."""
    looked = 0
    waiting = [(Path(incomplete).parent if "/" in incomplete else Path(), 1)]
    if incomplete.endswith("/"):
        waiting = [(Path(incomplete), 1)]
    while waiting:
        folder, depth = waiting.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            looked += 1
            path = folder / entry.name
            begins = str(path).startswith(incomplete) or incomplete.startswith(f"{path}/")
            if looked > MOST or entry.name.startswith((".", "__")) or not begins:
                continue
            yield path
            if entry.is_dir() and depth < DEPTH:
                waiting.append((path, depth + 1))
