"""Federated data from Hugging Face's `datasets` library and from partitions of `flwr-datasets`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from undrift.data.arrays import warn_of_rounding
from undrift.data.federated import FederatedData
from undrift.data.partitions import Assign, Partition
from undrift.data.samples.reading import Lazy
from undrift.utils.errors import UndriftError, require, require_choice


def from_huggingface(
    source: Any,
    inputs: str | Sequence[str],
    target: str | None,
    test: Any,
    name: str,
    split: str,
    by: str | None,
    partition: Partition | Assign | str | None,
    clients: int | None,
    seed: int,
    lazy: bool | Lazy = False,
) -> FederatedData:
    """See `FederatedData.from_huggingface`."""
    columns = [inputs] if isinstance(inputs, str) else list(inputs)
    require(len(columns) > 0, "inputs must name at least one column.")
    library = _library()
    if isinstance(source, library.DatasetDict):  # splits, not clients
        require_choice("split", split, source)
        test = source.get("test") if test is None and split != "test" else test
        source = source[split]
    if lazy:
        named = not isinstance(inputs, str)
        wanted = _Wanted(columns, target, named, library)
        return _lazily(source, test, name, split, by, partition, clients, seed, lazy, wanted)
    if target is None:
        raise UndriftError("from_huggingface needs the target's column, unless lazy=True.")
    common = None if test is None else _pair(test, columns, target, "the test part", library)
    if isinstance(source, library.Dataset):
        x, y = _pair(source, columns, target, "the data", library)
        owners = None if by is None else _owners(source, by)
        return FederatedData.from_arrays(
            x,
            y,
            None,
            common,
            name,
            partition=partition,
            clients=clients,
            seed=seed,
            owners=owners,
            classes=_classes(source, target, library),
        )
    for word, value in (("partition", partition), ("clients", clients), ("by", by)):
        require(value is None, f"The source is already partitioned, so {word} must be left out.")
    own = _partitions(source, split)
    require(len(own) > 0, "The source has no partitions, but must have at least one.")
    pairs = {
        id: _pair(each, columns, target, f"client {id!r}", library) for id, each in own.items()
    }
    first, *others = own
    classes = _classes(own[first], target, library)
    for id in others:
        require(
            _classes(own[id], target, library) == classes,
            f"The classes of client {id!r} differ in name or order from those of client "
            f"{first!r}: cast the column {target!r} to the same ClassLabel.",
        )
    return FederatedData.from_clients(pairs, common, name, classes=classes)


class _Wanted(NamedTuple):
    """Which columns of a Dataset make up a sample."""

    columns: list[str]
    target: str | None
    named: bool
    """whether samples have names, for `model(**batch)`; else they are (input, target)"""
    library: Any

    def of(self, dataset: Any, where: str) -> LazyColumns:
        """The samples of a Dataset, read when they are needed."""
        require(
            isinstance(dataset, self.library.Dataset),
            f"{where} is of type {type(dataset).__name__}, but must be a datasets.Dataset.",
        )
        for column in [*self.columns, *([self.target] if self.target else [])]:
            require_choice(f"A column of {where}", column, dataset.column_names)
        return LazyColumns(dataset, self)


class LazyColumns(Dataset[Any]):
    """The rows of a Hugging Face Dataset, which stays on disk, as samples.

    Parameters
    ----------
    dataset
        the Dataset
    wanted
        which of its columns are read
    """

    def __init__(self, dataset: Any, wanted: _Wanted):
        columns = [*wanted.columns, *([wanted.target] if wanted.target else [])]
        image = wanted.library.Image
        self._images = [c for c in columns if isinstance(dataset.features[c], image)]
        # A transform of the user's own (with_transform) replaces the format, so it stays.
        own = dataset.format["type"] == "custom"
        self._rows = dataset if own else dataset.with_format("torch", columns=columns)
        self._columns, self._target = wanted.columns, wanted.target
        self._named = wanted.named
        if wanted.target is not None and not own:
            plain = dataset.with_format("numpy").select_columns([wanted.target])
            self.targets = np.asarray(plain[:][wanted.target])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Any:
        found = self._rows[row]
        for name in self._images:
            if isinstance(found[name], Tensor) and not found[name].is_floating_point():
                found[name] = found[name].float() / 255
        if self._named:
            names = [*self._columns, *([self._target] if self._target else [])]
            return {name: found[name] for name in names}
        inputs = found[self._columns[0]]
        return inputs if self._target is None else (inputs, found[self._target])


def _lazily(
    source: Any,
    test: Any,
    name: str,
    split: str,
    by: str | None,
    partition: Partition | Assign | str | None,
    clients: int | None,
    seed: int,
    lazy: bool | Lazy,
    wanted: _Wanted,
) -> FederatedData:
    """Federated data whose samples are read when they are needed."""
    common = None if test is None else wanted.of(test, "the test part")
    if isinstance(source, wanted.library.Dataset):
        return FederatedData.from_dataset(
            wanted.of(source, "the data"),
            common,
            name,
            partition=partition,
            clients=clients,
            seed=seed,
            owners=None if by is None else _owners(source, by),
            classes=_classes(source, wanted.target, wanted.library) if wanted.target else None,
            lazy=lazy,
        )
    own = {id: wanted.of(each, f"client {id!r}") for id, each in _partitions(source, split).items()}
    return FederatedData.from_clients(own, common, name, lazy=lazy)


def _library() -> Any:
    """The module `datasets`, which is an optional dependency."""
    try:
        import datasets
    except ImportError:
        raise UndriftError(
            "from_huggingface needs the library datasets: pip install 'undrift[data]'."
        ) from None
    return datasets


def _partitions(source: Any, split: str) -> dict[Hashable, Any]:
    """The Dataset of each client, by id."""
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, list | tuple):
        return dict(enumerate(source))
    if hasattr(source, "partitioners") and hasattr(source, "load_partition"):  # FederatedDataset
        require_choice("split", split, source.partitioners)
        first = source.load_partition(0, split)  # this call also gives the partitioner its data
        count = source.partitioners[split].num_partitions
        return {0: first} | {k: source.load_partition(k, split) for k in range(1, count)}
    if hasattr(source, "num_partitions") and hasattr(source, "load_partition"):  # Partitioner
        return {k: source.load_partition(k) for k in range(source.num_partitions)}
    raise UndriftError(
        f"The source is of type {type(source).__name__}, but must be a datasets.Dataset, a list or "
        f"mapping with one per client, or a Partitioner or FederatedDataset of flwr-datasets."
    )


def _pair(
    dataset: Any, columns: list[str], target: str, where: str, library: Any
) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a Dataset; several input columns lie side by side."""
    require(
        isinstance(dataset, library.Dataset),
        f"{where} is of type {type(dataset).__name__}, but must be a datasets.Dataset.",
    )
    found = [_column(dataset, column, where, library) for column in columns]
    x = (
        found[0]
        if len(found) == 1
        else torch.from_numpy(np.column_stack([f.numpy() for f in found]))
    )
    return x, _column(dataset, target, where, library)


def _column(dataset: Any, column: str, where: str, library: Any) -> Tensor:
    """The values of a column; images become `[n, channels, height, width]` in [0, 1]."""
    require_choice(f"A column of {where}", column, dataset.column_names)
    values = np.asarray(dataset.select_columns([column]).with_format("numpy")[:][column])
    if values.dtype.kind not in "biuf":
        raise UndriftError(
            f"The column {column!r} of {where} has values of type {values.dtype} or of different "
            f"shapes, but must have numbers, or images of one size."
        )
    if isinstance(dataset.features[column], library.Image):
        require(
            values.dtype == np.uint8,
            f"The images of column {column!r} of {where} have pixels of type {values.dtype}, but "
            f"must have bytes from 0 to 255: convert them with .map or .cast_column first.",
        )
        values = values[:, None] if values.ndim == 3 else values.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(values)).float().div_(255)
    if values.dtype == np.float64:
        warn_of_rounding(values, f"The values of column {column!r} of {where}")
        values = values.astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(values))


def _owners(dataset: Any, by: str) -> list[Hashable]:
    """The owner of each sample, from a column."""
    require_choice("by", by, dataset.column_names)
    return list(dataset[:][by])


def _classes(dataset: Any, target: str, library: Any) -> list[str] | None:
    """The names of the classes, if the target column has them."""
    feature = dataset.features[target]
    return list(feature.names) if isinstance(feature, library.ClassLabel) else None
