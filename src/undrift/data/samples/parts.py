"""Parts of federated data from a user's samples, which stay lazy or are read into memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.data.arrays import as_pair, as_tensor
from undrift.data.part import Part
from undrift.data.partitions import IID, Natural, Partition
from undrift.data.samples.reading import Lazy, as_lazy, is_dataset, known_targets
from undrift.data.samples.sources import SampleSource
from undrift.data.samples.structure import TARGET_NAMES, Tree
from undrift.utils.errors import require


def is_common(test: Any, ids: Sequence[Hashable]) -> bool:
    """Whether a test part is common to all clients, and not given client by client."""
    if isinstance(test, Mapping):
        return not any(id in test for id in ids)
    alone = isinstance(test, tuple | Tensor | SampleSource | np.memmap)
    return alone or is_dataset(test)


def lazy_part(reading: Lazy, clients: Sequence[Any], named: Sequence[str]) -> Part:
    """A part by client whose samples are read when they are needed."""
    samples = reading.samples(clients, named)
    sizes = reading.sizes(clients)
    ends = torch.tensor([0, *sizes]).cumsum(0)
    labels = [known_targets(each) for each in clients if is_dataset(each)]
    known = len(labels) == len(sizes) and all(each is not None for each in labels)
    y = torch.cat([each for each in labels if each is not None]) if known else None
    return Part(samples, y, torch.arange(len(samples)), ends)


def common_part(reading: Lazy | None, test: Any) -> Part:
    """A test part that is common to all clients; arrays in memory stay there."""
    if reading is not None and (is_dataset(test) or as_lazy(None, [test])[0] is not None):
        samples = reading.samples([test], ["the test part"])
        return Part(samples, None, torch.arange(len(samples)), None)
    return Part.common(*as_pair(test, "the test part"))


def labels_in_memory(y: Any, x: Any) -> Tensor | None:
    """The targets of mapped arrays if they are one number per sample, for partitions."""
    if y is None and isinstance(x, Mapping):
        y = next((x[name] for name in TARGET_NAMES if name in x), None)
    if y is None:
        return None
    found = as_tensor(y, "the data")
    return found if found.ndim == 1 else None


def labels_for(rule: Partition, y: Tree, samples: int) -> Any:
    """What a partition shares samples out by: their targets, or nothing for `IID`."""
    if isinstance(y, Tensor):
        return y
    require(
        isinstance(rule, IID | Natural),
        f"{rule} shares samples out by their labels, which are not known before they are read: "
        f"give targets=…, or use another partition.",
    )
    return np.zeros(samples, dtype=np.int64)
