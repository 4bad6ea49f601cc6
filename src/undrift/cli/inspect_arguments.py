"""Build the data and the model that the arguments of `undrift inspect` name."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from undrift.data import SOURCES, FederatedData
from undrift.data.labels import class_count
from undrift.data.partitions import as_partition
from undrift.experiments.catalogue import NONE
from undrift.nets.models import MODELS, fitting
from undrift.utils.errors import UndriftError, require, require_choice, require_parameter


def list_sources() -> list[tuple[str, str]]:
    """Every data source as (name, first line of its docstring)."""
    return [(name, (source.__doc__ or "").partition("\n")[0]) for name, source in SOURCES.items()]


def load_data(
    source: str,
    seed: int,
    settings: dict[str, Any],
    partition: str | None = None,
    sizes: str | None = None,
    clients: int | None = None,
) -> FederatedData:
    """Load a data set by its name, or the folder of client files at the path `source`."""
    options: dict[str, Any] = {} if clients is None else {"clients": clients}
    hyphenated = source.replace("_", "-")
    known = hyphenated if hyphenated in SOURCES else source
    if known not in SOURCES and Path(source).is_dir():
        given = {"partition": partition, "sizes": sizes, "clients": clients}
        for name in [name for name, value in given.items() if value is not None]:
            raise UndriftError(
                f"--{name} does not apply to a folder: each of its files is one client."
            )
        takes = inspect.signature(FederatedData.from_folder).parameters
        for name in settings:
            require_parameter("A folder of client files", name, takes)
        return FederatedData.from_folder(source, **settings)
    if known not in SOURCES and not get_close_matches(source, SOURCES, n=1):
        raise UndriftError(
            f"There is no folder and no data set named {source}: undrift inspect --list shows the "
            "data sets."
        )
    require_choice("The data set", known, SOURCES)
    build = SOURCES[known]
    takes = inspect.signature(build).parameters
    if partition is not None:
        options["partition"] = as_partition(partition, sizes)
    require(
        sizes is None or partition is not None, "--sizes needs a --partition, e.g. --partition iid."
    )
    require(
        "partition" in takes or "partition" not in options,
        f"{source} is generated client by client, so it takes neither --partition nor --sizes.",
    )
    for name in settings:
        require(  # they have options of their own, which would be overridden silently
            name not in ("seed", "clients", "partition"),
            f"Use --{name} instead of --set {name}=….",
        )
        require_parameter(source, name, takes)
    settings = {name: None if value == NONE else value for name, value in settings.items()}
    return build(seed=seed, **{**options, **settings})


def make_model(words: str, data: FederatedData) -> nn.Module:
    """Build a model that fits the data, from a name such as "logistic" or "mlp:200-100"."""
    name, _, widths = words.partition(":")
    x, y = data.train.x, data.train.y
    require(
        isinstance(x, Tensor) and isinstance(y, Tensor),
        "--model names a model of one tensor in memory, but these data hold other samples.",
    )
    require(
        not y.is_floating_point(),
        "--model names a classifier, but the targets of these data are not classes.",
    )
    options: dict[str, Any] = {}
    if widths:
        require_choice("model", name, MODELS)
        require(name == "mlp", f"{name} takes no widths; only mlp does, as in mlp:200-100.")
        try:
            options["hidden"] = [int(width) for width in widths.split("-")]
        except ValueError:
            raise UndriftError(
                f"The widths of {words!r} must be whole numbers, as in mlp:200-100."
            ) from None
    return fitting(name, x.shape[1:], class_count(data), **options)
