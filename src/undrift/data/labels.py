"""The number of classes that the labels of federated data stand for.

Labels without names are the class numbers 0, 1, …, so the largest one decides how many outputs a
model gets. Labels that were numbered otherwise are rejected here instead of making empty classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undrift.data.federated import FederatedData
from undrift.utils.errors import UndriftError, require, warn

MAX_CLASSES = 100_000
"""Labels without names that are larger than this are taken to be something else than classes."""


def class_count(data: FederatedData) -> int:
    """The number of classes of a model for these data, whose targets are whole numbers.

    Raises if the labels have no names and do not begin at 0, or are too large to be class numbers;
    warns if fewer than half of the class numbers up to the largest occur.
    """
    if data.classes is not None:
        return len(data.classes)
    low, high = label_range(data)
    require(
        low >= 0, f"The labels of {data.name} range from {low} to {high}, but classes are 0, 1, …"
    )
    require(
        high < MAX_CLASSES,
        f"The labels of {data.name} go up to {high}, which is too large for a class number: if the "
        f"targets are measurements, make them floating-point numbers.",
    )
    if low > 0:
        raise UndriftError(f"{unused_zero(low, high)} (the data are {data.name}).")
    present = _present(data)
    if 2 * present < high + 1:
        warn(
            f"Only {present} of the {high + 1} classes 0 … {high} of {data.name} have samples: "
            f"number the labels without gaps if the others do not exist."
        )
    return high + 1


def class_counts(data: FederatedData) -> list[int]:
    """The number of training samples of each class, over all clients."""
    y = data.train.y
    require(
        isinstance(y, Tensor) and not y.is_floating_point(),
        f"The targets of {data.name} are not class numbers in memory, so they cannot be counted.",
    )
    counts = torch.bincount(y[data.train.rows].flatten().cpu(), minlength=class_count(data))
    return [int(each) for each in counts]


def balanced_weights(counts: Sequence[int]) -> Tensor:
    """The weight n/(C·n_c) of each of C classes, by which all classes count the same together.

    The mean weight of a sample is 1. A class without samples has the weight 0.
    """
    numbers = torch.tensor(counts, dtype=torch.float64)
    present = numbers > 0
    weights = numbers.sum() / (present.sum() * numbers.clamp(min=1))
    return torch.where(present, weights, 0.0)


def label_range(data: FederatedData) -> tuple[int, int]:
    """The smallest and the largest label over all parts."""
    found = [y for y in _labels(data) if y.numel()]
    return min(int(y.min()) for y in found), max(int(y.max()) for y in found)


def unused_zero(low: int, high: int) -> str:
    """The sentence, without a full stop, about labels that do not begin at 0."""
    return (
        f"The labels run from {low} to {high}, so a model would have {high + 1} classes, of which "
        f"the first {'is' if low == 1 else f'{low} are'} empty: number the labels from 0, or name "
        f"all classes 0 … {high} with classes; labels in columns of csv and parquet files may stay "
        f'if classes lists them, classes = ["{low}", …, "{high}"]'
    )


def _present(data: FederatedData) -> int:
    """The number of different labels over all parts."""
    seen = torch.zeros(MAX_CLASSES, dtype=torch.bool)
    for y in _labels(data):
        seen[y.flatten().long().cpu()] = True
    return int(seen.sum())


def _labels(data: FederatedData) -> list[Tensor]:
    """The labels of every part that are in memory."""
    return [part.y for part in data.parts().values() if isinstance(part.y, Tensor)]
