"""The data and the model that the words of `undrift inspect` stand for."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from undrift.data import SOURCES, FederatedData
from undrift.data.partitions import as_partition
from undrift.nets.models import MODELS, fitting
from undrift.utils.errors import UndriftError, require, require_choice


def sources() -> list[tuple[str, str]]:
    """Every source, and what it is."""
    return [(name, (source.__doc__ or "").partition("\n")[0]) for name, source in SOURCES.items()]


def chosen_data(
    source: str,
    seed: int,
    settings: dict[str, Any],
    partition: str | None = None,
    sizes: str | None = None,
    clients: int | None = None,
) -> FederatedData:
    """The data of a named source, or of a folder of client files."""
    options: dict[str, Any] = {} if clients is None else {"clients": clients}
    known = source.replace("_", "-") if source.replace("_", "-") in SOURCES else source
    if known not in SOURCES and Path(source).is_dir():
        given = {"partition": partition, "sizes": sizes, "clients": clients}
        for name in [name for name, value in given.items() if value is not None]:
            raise UndriftError(f"The files of a folder are the clients, so --{name} means nothing.")
        takes = inspect.signature(FederatedData.from_folder).parameters
        for name in settings:
            require_choice("A parameter of a folder", name, takes)
        return FederatedData.from_folder(source, **settings)
    if known not in SOURCES and not get_close_matches(source, SOURCES, n=1):
        raise UndriftError(
            f"There is no folder {source}, and no data set of that name: undrift inspect --list "
            f"names them."
        )
    require_choice("The data set", known, SOURCES)
    build = SOURCES[known]
    takes = inspect.signature(build).parameters
    if partition is not None:
        options["partition"] = as_partition(partition, sizes)
    require(
        sizes is None or partition is not None, "--sizes belongs to a --partition: give that too."
    )
    require(
        "partition" in takes or "partition" not in options,
        f"{source} is made client by client, so it takes no partition and no sizes.",
    )
    for name in settings:
        require(
            name not in ("seed", "clients", "partition"),
            f"--set {name}=… means --{name}: use that.",
        )
        require_choice(f"A parameter of {source}", name, takes)
    return build(seed=seed, **{**options, **settings})


def chosen_model(words: str, data: FederatedData) -> nn.Module:
    """A model for the data: "logistic", "mlp:200-100", "cifar_cnn"."""
    name, _, widths = words.partition(":")
    y = data.train.y
    require(
        not y.is_floating_point(),
        "A model by its name classifies, but these targets are no classes.",
    )
    classes = len(data.classes) if data.classes is not None else int(y.max()) + 1
    options: dict[str, Any] = {}
    if widths:
        require_choice("model", name, MODELS)
        require(name == "mlp", f"Only mlp takes widths, as in mlp:200-100, not {name}.")
        try:
            options["hidden"] = [int(width) for width in widths.split("-")]
        except ValueError:
            raise UndriftError(
                f"The widths of {words!r} must be whole numbers, as in mlp:200-100."
            ) from None
    return fitting(name, data.train.x.shape[1:], classes, **options)
