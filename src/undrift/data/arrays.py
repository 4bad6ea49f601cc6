"""Conversion of users' data to two tensors: from arrays, data frames and torch Datasets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from undrift.utils.display import redraws
from undrift.utils.errors import UndriftError, first_line, require

Pair = tuple[Any, Any]
"""Inputs and targets: arrays or tensors with one row per sample."""
PROGRESS_SAMPLES = 5000
"""A Dataset with at least this number of samples is read with a progress bar."""


def as_pair(value: Any, where: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets as two tensors with equal numbers of rows.

    Parameters
    ----------
    value
        a pair (inputs, targets), or a torch Dataset of (input, target) items
    where
        names the data in error messages
    """
    if isinstance(value, Dataset):
        return _of_dataset(value, where)
    try:
        x, y = value
    except (TypeError, ValueError):
        loader = ", not a DataLoader: pass loader.dataset" if isinstance(value, DataLoader) else ""
        raise UndriftError(
            f"{where} must be a pair (inputs, targets), or a Dataset{loader}."
        ) from None
    x, y = as_tensor(x, where), as_tensor(y, where)
    if not y.is_floating_point():
        require(
            not y.is_complex(),
            f"The targets of {where} are complex, but must be real numbers or class numbers.",
        )
        y = y.long()
    require(
        x.ndim >= 1 and y.ndim >= 1 and len(x) == len(y),
        f"The inputs of {where} have {len(x) if x.ndim else 0} rows, but its targets have "
        f"{len(y) if y.ndim else 0}.",
    )
    return x, y


def as_tensor(values: Any, where: str) -> Tensor:
    """An array, a list, a data frame or one of its columns as a tensor."""
    try:
        if isinstance(values, Tensor):
            return values
        if hasattr(values, "to_numpy"):  # a data frame or one of its columns
            values = values.to_numpy()
        if isinstance(values, np.ndarray):  # torch rejects reversed and big-endian arrays
            values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
            values = values if values.flags.writeable else values.copy()
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, KeyError):
        raise UndriftError(
            f"The inputs and targets of {where} must be arrays of numbers."
        ) from None


def _of_dataset(dataset: Dataset[Any], where: str) -> tuple[Tensor, Tensor]:
    """All samples of a torch Dataset whose items are (input, target)."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    require(
        not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__"),
        f"The Dataset of {where} must have a length and items by index (__getitem__).",
    )
    samples = len(dataset)  # type: ignore[arg-type]
    require(samples > 0, f"The Dataset of {where} has no samples.")
    inputs, targets = [], []
    for number in _with_progress(range(samples), where):
        try:
            x, y = dataset[number]
            inputs.append(_item(x))
            targets.append(_item(y))
        except Exception as error:
            raise UndriftError(
                f"Item {number} of the Dataset of {where} is not a pair (input, target) of "
                f"numbers: {first_line(error)}."
            ) from error
    return _stacked(inputs, f"inputs of {where}"), _stacked(targets, f"targets of {where}")


def _with_progress(numbers: Sequence[int], where: str) -> Iterable[int]:
    """The indices one by one, with a progress bar if there are many."""
    bar = Console(stderr=True)
    shown = len(numbers) >= PROGRESS_SAMPLES and redraws(bar)
    return track(numbers, f"reading {where}", console=bar, transient=True, disable=not shown)


def _item(value: Any) -> Tensor:
    """One input or target as a tensor; a PIL image becomes an array of its pixels."""
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _stacked(items: list[Tensor], what: str) -> Tensor:
    """Items of one shape as one tensor with a row for each."""
    for number, item in enumerate(items):
        require(
            item.shape == items[0].shape,
            f"Of the {what}, number {number} has shape {list(item.shape)}, but number 0 has "
            f"{list(items[0].shape)}.",
        )
    return torch.stack(items)
