"""Where samples come from that are read when a batch needs them: Datasets, mapped arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from undrift.data.samples.structure import Tree, concatenated, tensors_of
from undrift.utils.errors import UndriftError, first_line, require, require_type
from undrift.utils.keys import sample_seeds, seed_global_generators

Collate = Callable[[list[Any]], Tree]
"""Makes a batch of a list of samples, as the `collate_fn` of a DataLoader."""


class SampleSource(ABC):
    """Reads samples by their rows. Worker processes get a copy of it."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @abstractmethod
    def read(self, rows: Sequence[int], key: int) -> Tree:
        """The batch of some samples; its random numbers are functions of the key and the rows.

        It may seed the global generators: the caller restores them.
        """

    @abstractmethod
    def __repr__(self) -> str:
        """What it reads, without memory addresses: part of the data's fingerprint."""


class DatasetSource(SampleSource):
    """A map-style torch Dataset (anything with a length and items by index).

    Before each item is read, the global generators of torch, NumPy and Python are seeded for that
    item, so that random augmentation in `__getitem__` is the same in every process.

    Parameters
    ----------
    dataset
        the samples
    where
        names the data in error messages
    collate
        makes a batch of a list of items
    """

    def __init__(self, dataset: Dataset[Any], where: str, collate: Collate | None = None):
        require(
            not isinstance(dataset, IterableDataset)
            and hasattr(dataset, "__len__")
            and hasattr(dataset, "__getitem__"),
            f"The Dataset of {where} must have a length and items by index (__getitem__).",
        )
        if collate is not None:
            require(callable(collate), "collate must be a function of a list of samples.")
        self.dataset = dataset
        self._where = where
        self._collate = collate or default_collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def read(self, rows: Sequence[int], key: int) -> Tree:
        items = [
            self._item(row, seed) for row, seed in zip(rows, sample_seeds(key, rows), strict=True)
        ]
        seed_global_generators(sample_seeds(key + 1, rows[:1])[0])  # collate may draw, too
        try:
            return _checked(self._collate(items), len(rows))
        except UndriftError:
            raise
        except Exception as error:
            name = getattr(self._collate, "__name__", "collate")
            cure = ": give collate=…, which pads them" if "equal size" in str(error) else ""
            raise UndriftError(
                f"{name} cannot make a batch of items of {self._where}: {first_line(error)}{cure}."
            ) from error

    def _item(self, row: int, seed: int) -> Any:
        seed_global_generators(seed)
        try:
            return self.dataset[row]
        except Exception as error:
            raise UndriftError(
                f"Item {row} of the Dataset of {self._where} cannot be read: {first_line(error)}."
            ) from error

    def __repr__(self) -> str:
        return f"{type(self.dataset).__qualname__}, {len(self)} items"


class JoinedSource(SampleSource):
    """Several sources of arrays one after another: the samples of each client."""

    def __init__(self, sources: Sequence[SampleSource]):
        self._sources = list(sources)
        self._ends = np.cumsum([len(each) for each in sources])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, rows: Sequence[int], key: int) -> Tree:
        owners = np.searchsorted(self._ends, rows, side="right").tolist()
        found = []
        for owner, some in groupby(zip(owners, rows, strict=True), key=itemgetter(0)):
            first = int(self._ends[owner]) - len(self._sources[owner])
            found.append(self._sources[owner].read([row - first for _, row in some], key))
        return concatenated(found)

    def __repr__(self) -> str:
        return "; ".join(map(repr, self._sources))


class ArraySource(SampleSource):
    """Arrays on disk that are mapped into memory: a batch copies its own rows only.

    Parameters
    ----------
    arrays
        one array, a tuple of arrays or named arrays, with a row per sample
    """

    def __init__(self, arrays: Tree):
        self._arrays = arrays
        lengths = {len(each) for each in _arrays_of(arrays)}
        require(len(lengths) == 1, f"Mapped arrays must have equal numbers of rows, not {lengths}.")
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Sequence[int], key: int) -> Tree:
        return _map_arrays(lambda array: _rows(array, rows), self._arrays)

    def __repr__(self) -> str:
        shapes = [(str(each.dtype), list(each.shape)) for each in _arrays_of(self._arrays)]
        return f"mapped arrays {shapes}"


def _rows(array: Any, rows: Sequence[int]) -> torch.Tensor:
    """Some rows of an array as a tensor of its own."""
    low, high = rows[0], rows[-1] + 1
    contiguous = high - low == len(rows) and all(b - a == 1 for a, b in pairwise(rows))
    found = np.array(array[low:high] if contiguous else array[list(rows)])
    return torch.from_numpy(found.astype(found.dtype.newbyteorder("="), copy=False))


def _arrays_of(tree: Tree) -> list[Any]:
    if isinstance(tree, Mapping):
        return [array for each in tree.values() for array in _arrays_of(each)]
    if isinstance(tree, list | tuple):
        return [array for each in tree for array in _arrays_of(each)]
    require_type("A mapped array", tree, np.ndarray, "a NumPy array")
    return [tree]


def _map_arrays(change: Callable[[Any], torch.Tensor], tree: Tree) -> Tree:
    if isinstance(tree, Mapping):
        return {name: _map_arrays(change, each) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return tuple(_map_arrays(change, each) for each in tree)
    return change(tree)


def _checked(batch: Tree, samples: int) -> Tree:
    """The batch, unless it holds no tensors."""
    require(
        any(True for _ in tensors_of(batch)),
        f"A batch of {samples} samples is a {type(batch).__name__} without tensors: collate must "
        f"return tensors, a tuple or a mapping of tensors.",
    )
    return batch
