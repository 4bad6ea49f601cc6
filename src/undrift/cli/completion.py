"""Shell completion of arguments and options.

The shell waits for the answer, so this module must not import torch. It therefore repeats the names
of methods, data sets and so on; a test compares them with the originals.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import typer

NAMES: dict[str, tuple[str, ...]] = {
    "methods": (
        *("DistributedSGD", "FedAvg", "FedProx", "SCAFFOLD", "VRLSGD", "FedNova", "FedAvgMin"),
        *("FedDyn", "FedPD", "FedSplit", "FedDR", "FedADMM", "FedVARP", "MIFA", "Scaffnew"),
        *("FedCM", "FedACG", "FedExP", "MimeLite", "FedSAM", "FedSpeed", "FedLGA", "Ditto"),
        *("PFedMe", "AsyncFedDR", "FedAsync", "FedBuff"),
    ),
    "data": (
        *("synthetic", "feddyn-synthetic", "digits", "mnist", "fashion-mnist", "emnist"),
        *("emnist-l", "femnist", "cifar10", "cifar100", "shakespeare"),
    ),
    "compressors": ("top-k", "random-k", "qsgd", "sign"),
    "statistics": ("median", "trimmed-mean", "geometric-median", "krum", "multi-krum"),
    "attacks": ("sign-flip", "gaussian", "a-little", "label-flip"),
    "metrics": ("auc", "f1", "balanced_accuracy", "perplexity", "dice"),
    "models": (
        *("logistic", "mlp", "cifar_cnn", "lenet", "pfl_cnn", "vgg11", "resnet18", "char_lstm"),
    ),
    "partitions": ("iid", "dirichlet", "dirichlet-per-class", "classes", "natural"),
    "sizes": ("balanced", "lognormal", "power-law", "dirichlet"),
    "samplers": ("all", "uniform", "weighted", "bernoulli", "fixed"),
    "solvers": ("SGD", "GD", "Adam", "AdamW", "TorchOptimizer", "Exact"),
    "amounts": ("uniform", "normal"),
    "schedules": (
        "Constant",
        "Inverse",
        "Exponential",
        "Milestones",
        "Cosine",
        "WarmUp",
        "Theorem1",
    ),
    "servers": ("Plain", "Momentum", "Adam", "Yogi", "Adagrad"),
    "regularizers": ("L1", "L2", "Box"),
    "staleness": ("Constant", "Polynomial", "Hinge"),
    "augmentations": ("crop", "reflected-crop", "flip"),
    "systems": (
        *("fedavg-first", "fednova-fixed", "fednova-random", "fednova-epochs"),
        *("fednova-synthetic", "feddyn", "feddr-async", "fedlga"),
    ),
    "devices": ("drawn", "classes", "file"),
    "laws": ("same", "ladder", "between", "lognormal", "normal"),
    "availabilities": ("always", "duty"),
    "paces": ("all", "deadline", "first", "asynchronous"),
    "privacy": ("gaussian", "adaptive_clip", "noisy_metrics"),
}
"""The names that `undrift list` prints, by group."""
IRREGULAR = {"sizes": "sizes", "staleness": "staleness", "availability": "availabilities"}
KINDS = {
    **{each.removesuffix("s"): each for each in NAMES if each not in IRREGULAR.values()},
    **IRREGULAR,
}
"""The kinds that `undrift show` takes (singular), with their group of `NAMES` (plural)."""
REPRODUCTIONS = (
    *("fedavg-tridiagonal", "fedavg-local-steps", "fedavg-participation", "fedavg-schemes"),
    *("fedavg-bounds", "fednova-quadratics", "fednova-prox-tradeoff", "fednova-synthetic"),
    *("fednova-cifar10", "feddyn-synthetic", "feddyn-mnist", "feddyn-cifar10", "feddyn-cifar100"),
    *("feddyn-emnist", "feddyn-shakespeare", "feddyn-alpha", "feddyn-fedsplit", "feddr-synthetic"),
    *("feddr-l1", "feddr-async", "feddr-femnist", "fedlga-fmnist", "fedlga-cifar", "niid-cifar10"),
)
WORKLOADS = (*(f"W{number}" for number in range(1, 11)), *(f"X{number}" for number in range(1, 6)))
ENGINES = ("auto", "tuned", "vectorised", "serial", "ray")


def choices(*groups: Iterable[str]) -> Callable[[str], list[str]]:
    """A completer for one of the given words."""

    def complete(incomplete: str) -> list[str]:
        return [word for group in groups for word in group if word.startswith(incomplete)]

    return complete


def experiments(incomplete: str) -> list[str]:
    """Complete the path of an experiment file."""
    found = [path for path in _paths(incomplete) if path.suffix == ".toml"]
    return [str(path) for path in found if "[[method" in _text(path)]


def run_folders(incomplete: str) -> list[str]:
    """Complete the path of a run folder."""
    return [str(path) for path in _paths(incomplete) if (path / "about.json").is_file()]


def apps(incomplete: str) -> list[str]:
    """Complete the path of an app folder for `undrift deploy`."""
    files = ("experiment.toml", "site.py")
    found = _paths(incomplete)
    return [str(path) for path in found if all((path / name).is_file() for name in files)]


def sources(incomplete: str) -> list[str]:
    """Complete a data set, an experiment file or a folder of client files."""
    files = (".csv", ".npz", ".parquet")
    folders = {str(path.parent) for path in _paths(incomplete) if path.suffix in files}
    folders.discard(".")
    return [*choices(NAMES["data"])(incomplete), *experiments(incomplete), *sorted(folders)]


def methods(incomplete: str) -> list[str]:
    """Complete the name of a method, or a Python file that may define one."""
    own = [f"{path}:" for path in _paths(incomplete) if path.suffix == ".py"]
    return [*choices(NAMES["methods"])(incomplete), *own]


def names_of_kind(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a name of the kind that was typed before it."""
    kind = ctx.params.get("kind", "")
    return choices(NAMES.get(KINDS.get(kind, kind), ()))(incomplete)


def labels(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the label of a method in the experiment file that was typed before it."""
    try:
        # While an option lacks its value, click leaves arguments unparsed in ctx.args.
        given = ctx.params.get("experiment") or ctx.args[0]
        found = tomllib.loads(_text(Path(given)))
        found_labels = [method.get("label", method["name"]) for method in found["method"]]
    except (LookupError, TypeError, AttributeError, ValueError):
        return []  # no file, or one with mistakes: the command itself will report them
    return [str(label) for label in found_labels if str(label).startswith(incomplete)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


MAX_DEPTH, MAX_PATHS = 3, 2000
"""Limits of the search for paths, which keep it fast: the shell waits."""


def _paths(incomplete: str) -> Iterator[Path]:
    """Paths that start with `incomplete`, also in subfolders, breadth first."""
    visited = 0
    queue = [(Path(incomplete).parent if "/" in incomplete else Path(), 1)]
    if incomplete.endswith("/"):
        queue = [(Path(incomplete), 1)]
    while queue:
        folder, depth = queue.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            visited += 1
            path = folder / entry.name
            matches = str(path).startswith(incomplete) or incomplete.startswith(f"{path}/")
            if visited > MAX_PATHS or entry.name.startswith((".", "__")) or not matches:
                continue
            yield path
            if entry.is_dir() and depth < MAX_DEPTH:
                queue.append((path, depth + 1))
