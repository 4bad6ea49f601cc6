"""Data and models by the words of the command line."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from torch import nn

from undrift.data import SOURCES, FederatedData
from undrift.data.partitions import as_partition
from undrift.errors import UndriftError, require, require_choice
from undrift.models import fitting


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
    if partition is not None or sizes is not None:
        options["partition"] = as_partition(partition or "iid", sizes)
    if source not in SOURCES and Path(source).is_dir():
        for name in options:
            raise UndriftError(f"The files of a folder are the clients, so --{name} means nothing.")
        return FederatedData.from_folder(source, **settings)
    if source not in SOURCES and ("/" in source or "." in source):
        raise UndriftError(f"There is no folder {source}.")
    require_choice("The data set", source, SOURCES)
    build = SOURCES[source]
    takes = inspect.signature(build).parameters
    require(
        "partition" in takes or "partition" not in options,
        f"{source} is made client by client, so it takes no partition and no sizes.",
    )
    for name in settings:
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
        require(name == "mlp", f"Only mlp takes widths, as in mlp:200-100, not {name}.")
        try:
            options["hidden"] = [int(width) for width in widths.split("-")]
        except ValueError:
            raise UndriftError(
                f"The widths of {words!r} must be whole numbers, as in mlp:200-100."
            ) from None
    return fitting(name, data.train.x.shape[1:], classes, **options)
