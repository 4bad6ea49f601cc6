"""Whether a user's samples are read into memory or batch by batch, and the latter's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from undrift.data.samples.lazy import LazySamples
from undrift.data.samples.sources import (
    ArraySource,
    Collate,
    DatasetSource,
    JoinedSource,
    SampleSource,
)
from undrift.utils.errors import UndriftError, require, require_range, require_type, require_whole
from undrift.utils.keys import global_generators_kept, seed_global_generators

COMPARED_ITEMS = 16
"""Items that are read twice to find out whether a Dataset changes them at random."""
RANDOM_NOTE = (
    "The Dataset changes its items at random, so they are read anew for every batch (lazy=False "
    "reads them once)."
)


@dataclass(frozen=True)
class Lazy:
    """Samples are read when a batch needs them, and not kept in memory.

    Random changes in a Dataset's `__getitem__` are drawn anew for every sample and epoch. They are
    functions of the seed, the round, the client, the epoch and the sample: the number of workers
    changes no bit.

    Parameters
    ----------
    workers
        processes that read batches ahead; 0 reads them in this process when they are needed
    prefetch
        batches that each worker reads ahead
    memory
        the most megabytes that batches read ahead may take
    collate
        makes a batch of a list of items, as the `collate_fn` of a torch DataLoader; the default
        stacks them
    """

    workers: int = 0
    prefetch: int = 2
    memory: float = 200
    collate: Collate | None = None

    def __post_init__(self) -> None:
        require_whole("Lazy's workers", self.workers, at_least=0)
        require_whole("Lazy's prefetch", self.prefetch, at_least=1)
        require_range("Lazy's memory", self.memory, above=0)
        require(
            self.collate is None or callable(self.collate),
            "Lazy's collate must be a function of a list of samples.",
        )

    def samples(self, clients: Sequence[Any], names: Sequence[str]) -> LazySamples:
        """The samples of several clients, one after another."""
        source: SampleSource
        if all(self._has_items(each) for each in clients):
            parts = [DatasetSource(each, name) for each, name in zip(clients, names, strict=True)]
            for part, name in zip(parts, names, strict=True):
                require(len(part) > 0, f"The Dataset of {name} has no samples.")
            joined = clients[0] if len(clients) == 1 else ConcatDataset(clients)
            source = DatasetSource(
                joined, names[0] if len(clients) == 1 else "the data", self.collate
            )
        else:
            for each, name in zip(clients, names, strict=True):
                require(
                    not self._has_items(each),
                    f"{name} has a Dataset, but other clients have arrays: either all or none.",
                )
            sources = [
                each if isinstance(each, SampleSource) else ArraySource(_with_arrays(each, name))
                for each, name in zip(clients, names, strict=True)
            ]
            source = sources[0] if len(sources) == 1 else JoinedSource(sources)
        return LazySamples(source, self.workers, self.prefetch, self.memory)

    def sizes(self, clients: Sequence[Any]) -> list[int]:
        """The number of samples of each client."""
        return [len(each) if self._has_items(each) else _rows_in(each) for each in clients]

    def _has_items(self, value: Any) -> bool:
        """Whether a value holds samples one by one: a Dataset, or a list of which collate knows."""
        return is_dataset(value) or (self.collate is not None and isinstance(value, list))


def as_lazy(lazy: bool | Lazy | None, samples: Sequence[Any]) -> tuple[Lazy | None, str]:
    """How samples are read batch by batch, or None to read them into memory; and a note on it.

    Without a wish of the user's, mapped arrays stay on disk, and a Dataset stays lazy if its items
    change from one reading to the next: reading it once would keep one random version of each.
    """
    require_type("lazy", lazy, (bool, Lazy, type(None)), "True, False or ud.data.Lazy(…)")
    if isinstance(lazy, Lazy):
        return lazy, ""
    if lazy is not None:
        return (Lazy() if lazy else None), ""
    if any(isinstance(each, SampleSource) or _is_mapped(each) for each in samples):
        return Lazy(), ""
    if any(_reads_differ(each) for each in samples[:1]):
        return Lazy(), RANDOM_NOTE
    return None, ""


def is_dataset(value: Any) -> bool:
    """Whether a value is a Dataset of torch or of Hugging Face, with items by index."""
    columns = hasattr(value, "column_names") and hasattr(value, "__getitem__")
    return isinstance(value, Dataset) or columns


def known_targets(dataset: Any) -> Tensor | None:
    """The targets of all samples where a Dataset lists them, as torchvision's do."""
    for name in ("targets", "labels"):
        found = getattr(dataset, name, None)
        if isinstance(found, list | tuple | np.ndarray | Tensor) and len(found) == len(dataset):
            try:
                return torch.as_tensor(np.asarray(found))
            except (TypeError, ValueError):
                return None
    return None


def _is_mapped(value: Any) -> bool:
    """Whether arrays are on disk, mapped into memory."""
    if isinstance(value, Mapping):
        return any(_is_mapped(each) for each in value.values())
    if isinstance(value, list | tuple):
        return len(value) < 8 and any(_is_mapped(each) for each in value)
    return isinstance(value, np.memmap)


def _with_arrays(value: Any, where: str) -> Any:
    """Data whose entries are NumPy arrays, mapped or in memory."""
    if isinstance(value, Mapping):
        return {str(name): _with_arrays(each, where) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_with_arrays(each, where) for each in value if each is not None)
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise UndriftError(f"{where} must be arrays of numbers, or a Dataset.") from None


def _rows_in(arrays: Any) -> int:
    """The number of rows of arrays."""
    if isinstance(arrays, Mapping):
        return _rows_in(next(iter(arrays.values())))
    return _rows_in(arrays[0]) if isinstance(arrays, tuple | list) else len(arrays)


def _reads_differ(dataset: Any) -> bool:
    """Whether some items of a Dataset change at random from one reading to the next."""
    if (
        not is_dataset(dataset)
        or isinstance(dataset, TensorDataset)
        or not hasattr(dataset, "__len__")
    ):
        return False
    try:
        with global_generators_kept():
            for row in range(min(len(dataset), COMPARED_ITEMS)):
                seed_global_generators(2 * row)
                first = dataset[row]
                seed_global_generators(2 * row + 1)
                if not _same(first, dataset[row]):
                    return True
    except Exception:  # reading all items names the one that fails
        pass
    return False


def _same(a: Any, b: Any) -> bool:
    """Whether two items are equal, NaN counting as equal to NaN."""
    if isinstance(a, Mapping):
        return all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and bool(np.all((x == y) | ((x != x) & (y != y))))
