"""Conversion of users' data to tensors: from arrays, data frames and torch Datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from undrift.data.samples.structure import Tree, named_tensors, split_batch, target_name
from undrift.utils.display import redraws
from undrift.utils.errors import UndriftError, first_line, require, warn

Pair = tuple[Any, Any]
"""Inputs and targets: arrays or tensors with one row per sample."""
PROGRESS_SAMPLES = 5000
"""A Dataset with at least this number of samples is read with a progress bar."""
EXACT_FLOAT32 = 2**24
"""32-bit floating-point numbers hold every whole number up to this one, but not the next."""


def as_pair(value: Any, where: str) -> tuple[Tree, Tree]:
    """Inputs and targets as tensors with equal numbers of rows; None for missing targets.

    Parameters
    ----------
    value
        a pair (inputs, targets), a tuple (first inputs, second inputs, …, targets), a mapping of
        named arrays, inputs alone, or a torch Dataset of such items. The inputs of a pair may be
        a tuple or a mapping of arrays themselves
    where
        names the data in error messages
    """
    if isinstance(value, Dataset):
        return _checked(*_of_dataset(value, where), where)
    if isinstance(value, Mapping):
        named = {str(name): as_tensor(each, where) for name, each in value.items()}
        return _checked(*split_batch(named), where)
    if isinstance(value, Tensor | np.ndarray):
        return _checked(as_tensor(value, where), None, where)
    if isinstance(value, tuple) and len(value) > 2:
        found = tuple(as_tensor(each, where) for each in value)
        return _checked(*split_batch(found), where)
    try:
        x, y = value
    except (TypeError, ValueError):
        loader = ", not a DataLoader: pass loader.dataset" if isinstance(value, DataLoader) else ""
        raise UndriftError(
            f"{where} must be a pair (inputs, targets), or a Dataset{loader}."
        ) from None
    if isinstance(x, Mapping):
        x = {str(name): as_tensor(each, where) for name, each in x.items()}
    elif isinstance(x, tuple):
        x = tuple(as_tensor(each, where) for each in x)
    else:
        x = as_tensor(x, where)
    return _checked(x, None if y is None else as_tensor(y, where), where)


def _checked(x: Tree, y: Tree, where: str) -> tuple[Tree, Tree]:
    """Inputs and targets with a row per sample each; whole numbers as targets become int64."""
    for what, tree, or_classes in (("inputs", x, ""), ("targets", y, " or class numbers")):
        for at, values in named_tensors(tree):
            require(
                not values.is_complex(),
                f"The {what}{at} of {where} are complex, but must be real numbers{or_classes}.",
            )
    if isinstance(y, Tensor) and not y.is_floating_point():
        above = y.dtype == torch.uint64 and bool((y.long() < 0).any())
        require(not above, f"The targets of {where} have numbers above 2^63 - 1: use smaller ones.")
        y = y.long()
        name = target_name(x)
        x = x if name is None else {**x, name: y}
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        require(
            x.ndim >= 1 and y.ndim >= 1 and len(x) == len(y),
            f"The inputs of {where} have {len(x) if x.ndim else 0} rows, but its targets have "
            f"{len(y) if y.ndim else 0}.",
        )
        return x, y
    lengths = {name: len(each) if each.ndim else 0 for name, each in named_tensors(x)}
    if isinstance(y, Tensor):
        lengths[" targets"] = len(y) if y.ndim else 0
    require(bool(lengths), f"The inputs of {where} have no arrays.")
    require(
        len(set(lengths.values())) == 1,
        f"The arrays of {where} must have a row per sample, but their numbers of rows are "
        f"{', '.join(f'{length} in{name}' for name, length in lengths.items())}.",
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


def _of_dataset(dataset: Dataset[Any], where: str) -> tuple[Tree, Tree]:
    """All samples of a torch Dataset: items (input, target), longer tuples, mappings or inputs."""
    if isinstance(dataset, TensorDataset):
        return split_batch(dataset.tensors)
    require(
        not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__"),
        f"The Dataset of {where} must have a length and items by index (__getitem__).",
    )
    samples = len(dataset)  # type: ignore[arg-type]
    require(samples > 0, f"The Dataset of {where} has no samples.")
    try:
        first = dataset[0]
    except Exception:  # reading all items names the one that fails
        first = None
    if isinstance(first, Mapping):
        names = [str(name) for name in first]
        columns = _columns(dataset, where, lambda item: [item[name] for name in first])
        return split_batch(dict(zip(names, columns, strict=True)))
    if isinstance(first, Tensor | np.ndarray):
        (inputs,) = _columns(dataset, where, lambda item: [item])
        return inputs, None
    if isinstance(first, tuple | list) and len(first) > 2:
        columns = _columns(dataset, where, list)
        return split_batch(tuple(columns))
    x, y = _columns(dataset, where, _two)
    return x, y


def _two(item: Any) -> list[Any]:
    x, y = item
    return [x, y]


def _columns(
    dataset: Dataset[Any], where: str, entries: Callable[[Any], Sequence[Any]]
) -> list[Tensor]:
    """Every entry of all items of a Dataset, stacked; `entries` lists those of an item."""
    found: list[list[Tensor]] = []
    for number in _with_progress(range(len(dataset)), where):  # type: ignore[arg-type]
        try:
            found.append([_item(each) for each in entries(dataset[number])])
        except Exception as error:
            raise UndriftError(
                f"Item {number} of the Dataset of {where} is not a pair (input, target) of "
                f"numbers: {first_line(error)}."
            ) from error
    columns = list(zip(*found, strict=True))
    names = (
        ["inputs", "targets"]
        if len(columns) == 2
        else [f"entries {k}" for k in range(len(columns))]
    )
    pairs = zip(columns, names, strict=True)
    return [_stacked(list(items), f"{name} of {where}") for items, name in pairs]


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
            f"{list(items[0].shape)}: lazy=ud.data.Lazy(collate=…) takes a function that pads the "
            f"items of a batch.",
        )
        require(
            item.is_floating_point() == items[0].is_floating_point(),
            f"Of the {what}, number {number} is {item.dtype}, but number 0 is {items[0].dtype}: "
            f"give all the same type.",
        )
    return torch.stack(items)


def inexact_whole(values: Tensor | np.ndarray) -> int | None:
    """A whole number among the values that 32-bit floating-point numbers cannot hold, if any."""
    numbers = torch.as_tensor(values)
    if numbers.dtype not in (torch.float64, torch.int32, torch.int64) or not numbers.numel():
        return None
    low, high = torch.aminmax(numbers)
    if max(-low, high) <= EXACT_FLOAT32:  # by far the most frequent case, found without a copy
        return None
    large = numbers[(numbers > EXACT_FLOAT32) | (numbers < -EXACT_FLOAT32)]
    large = large[(large == large.round()) & large.isfinite()]
    bad = large[large != large.float().to(large.dtype)]
    return int(bad[0]) if len(bad) else None


def warn_of_rounding(values: Tensor | np.ndarray, what: str) -> None:
    """Announce whole numbers that become others as 32-bit floating-point numbers."""
    whole = inexact_whole(values)
    if whole is not None:
        warn(rounding(what, whole))


def rounding(what: str, whole: int) -> str:
    """The sentence about a whole number that is rounded."""
    fits = abs(whole) <= float(np.finfo(np.float32).max)
    shown, becomes = (f"{whole}", f"{int(np.float32(whole))}") if fits else (f"{whole:g}", "Inf")
    return (
        f"{what} have whole numbers such as {shown}, which become {becomes} as "
        f"32-bit floating-point numbers: leave out identifiers, and scale counts and time stamps."
    )
