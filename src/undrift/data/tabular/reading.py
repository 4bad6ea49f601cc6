"""Federated data from tables, one for each client."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from undrift.data.arrays import EXACT_FLOAT32, rounding
from undrift.data.federated import FederatedData
from undrift.data.formats.tables import Table, is_number, listed
from undrift.data.part import Part
from undrift.data.tabular.columns import Columns
from undrift.data.tabular.features import (
    NUMBER,
    Features,
    features_of,
    input_columns,
    read_features,
    warn_of_identifiers,
)
from undrift.data.tabular.source import TEST, TRAIN, TabularSource
from undrift.utils.errors import UndriftError, require, require_choice, warn

DEFAULT_TARGETS = ("label", "target", "y")
"""Names that a target column may have if the user names none."""


def from_tables(
    train: Mapping[Hashable, Table],
    test: Mapping[Hashable, Table] | None,
    columns: Columns,
    name: str,
    encode: bool = True,
) -> FederatedData:
    """Federated data from the tables of each client; clients may lack a test table.

    Without `encode` they have no inputs until `FederatedData.encoded` gives them an encoding.
    """
    first = next(iter(train.values()))
    target = Target(first, columns)
    inputs = input_columns(first, columns, target.column)
    parts = {TRAIN: train}
    if test is not None:  # in the order of the training tables
        parts[TEST] = {id: test[id] for id in train if id in test}
    tables = [table for part in parts.values() for table in part.values()]
    for table in tables:
        for each in [*inputs, target.column]:
            require(
                each in table.columns,
                f"{table.path} has no column {each!r}, which {first.path.name} has.",
            )
    features = features_of(inputs, columns)
    found: dict[str, Features] = {}
    targets: dict[str, np.ndarray] = {}
    whole = dict.fromkeys(train, True)
    for part, by_client in parts.items():
        own = list(by_client.values())
        found[part] = read_features(own, features, columns, target.column)
        values = [target.values(table) for table in own]
        targets[part] = np.concatenate(values)
        for id, table, y in zip(by_client, own, values, strict=True):
            whole[id] = whole[id] and (target.words or are_whole(table.columns[target.column], y))
    _announce(first, tables, [*inputs, target.column], columns)
    source = TabularSource(columns, found, targets, tuple(whole.values()), deferred=not encode)
    _warn_of_rounding(parts, source, target)
    warn_of_identifiers(list(train.values()), inputs, columns)
    return _encoded(source, parts, name, target.classes)


def _encoded(
    source: TabularSource,
    parts: Mapping[str, Mapping[Hashable, Table]],
    name: str,
    classes: Sequence[str] | None,
) -> FederatedData:
    """Federated data that are encoded by the statistics of their training samples."""
    ids = list(parts[TRAIN])
    sizes = {
        part: [len(tables[id].row_numbers) if id in tables else 0 for id in ids]
        for part, tables in parts.items()
    }
    unencoded = {part: _part(source, part, own) for part, own in sizes.items()}
    data = FederatedData(unencoded[TRAIN], unencoded.get(TEST), ids, name)
    return source.encode(data)._with(classes=classes)


def _part(source: TabularSource, part: str, sizes: Sequence[int]) -> Part:
    """A part with a row per sample, before it is encoded."""
    rows = torch.arange(len(source.features[part]))
    nothing = torch.zeros(len(rows), 0)
    ends = torch.tensor([0, *sizes]).cumsum(0)
    # Samples may be held out by class before there is an encoding.
    targets = source.targets[part].astype(np.int64 if all(source.whole) else np.float32)
    return Part(nothing, torch.from_numpy(targets), rows, ends)


class Target:
    """The target column, which is the same in every table.

    If a class is named by a number, such as "1", targets are names of classes; so labels that begin
    at 1 keep their meaning. Otherwise targets are names if the first file has words, and else class
    numbers.
    """

    def __init__(self, first: Table, columns: Columns):
        self.first = first
        self.column = _target_column(first, columns.target)
        classes = columns.classes
        self.classes = None if classes is None else [str(each) for each in classes]
        self._class_numbers = {name: number for number, name in enumerate(self.classes or ())}
        first.require_filled(self.column)
        word = next((v for v in first.columns[self.column] if not is_number(v)), None)
        if word is not None and self.classes is None:
            raise UndriftError(
                f"The target {self.column!r} of {first.path} has words such as {word!r}: give "
                f"classes=[…] with all of them, in the order of their numbers 0, 1, …"
            )
        self.words = word is not None or any(map(is_number, self._class_numbers))

    def values(self, table: Table) -> np.ndarray:
        """The targets of a table: class numbers of words, or 64-bit numbers."""
        table.require_filled(self.column)
        if not self.words:
            return table.numbers(self.column, f"the targets of {self.first.path} are numbers")
        words = table.columns[self.column]
        return np.array([self._class_number(word, table) for word in words], np.int64)

    def _class_number(self, word: Any, table: Table) -> int:
        name = str(word).strip()
        if name not in self._class_numbers:
            require_choice(f"A target in {table.path}", name, self._class_numbers)
        return self._class_numbers[name]


def _target_column(first: Table, target: str | None) -> str:
    """The name of the target column."""
    known = [target] if target is not None else DEFAULT_TARGETS
    for name in known:
        if name in first.columns:
            return name
    separator = next((c for c in (";", "\t") if any(c in name for name in first.columns)), None)
    hint = f" (are its columns separated by {separator!r} instead of ','?)" if separator else ""
    raise UndriftError(
        f"{first.path} has no column {' or '.join(map(repr, known))} to predict; name one "
        f"of its columns {listed(first.columns)} as the target{hint}."
    )


def are_whole(values: Sequence[Any], y: np.ndarray) -> bool:
    """Whether targets are whole numbers, written as such, that can be class numbers."""
    whole = bool(np.equal(np.mod(y, 1), 0).all()) and not any(map(_is_fraction, values))
    return whole and bool(np.abs(y).max() < 2**53)


def _is_fraction(value: Any) -> bool:
    """Whether a whole number is written 1.0 instead of 1: then it is a measurement, not a class."""
    return isinstance(value, float) or "." in str(value)


def _warn_of_rounding(
    parts: Mapping[str, Mapping[Hashable, Table]], source: TabularSource, target: Target
) -> None:
    """Warn of whole numbers that 32-bit floating-point numbers cannot hold."""
    rounded: dict[str, int] = {}
    for part, tables in parts.items():
        features = source.features[part]
        numbers = {
            each.column: features.numbers[:, place]
            for place, each in enumerate(features.named(NUMBER))
            if each.part is None
        }
        if not all(source.whole):
            numbers[target.column] = source.targets[part]
        for column, values in numbers.items():
            with np.errstate(invalid="ignore"):
                large = (np.abs(values) > EXACT_FLOAT32).any()
            first = 0
            for table in tables.values() if large and column not in rounded else ():
                last = first + len(table.row_numbers)
                found = table.inexact_whole(column, values[first:last])
                if found is not None:
                    rounded.setdefault(column, found)
                first = last
    if rounded:
        folder = target.first.path.parent
        what = f"The columns {listed(rounded)} of {folder}"
        warn(rounding(what, next(iter(rounded.values()))))


def _announce(first: Table, tables: Sequence[Table], used: Sequence[str], columns: Columns) -> None:
    """Warn about columns that are not used, because the first file does not have them."""
    if columns.inputs:
        return
    known = {*used, *columns.drop}
    for table in tables:
        unused = [name for name in table.columns if name not in known]
        if unused:
            warn(
                f"The columns {listed(unused)} of {table.path} are not used, because "
                f"{first.path.name} has none of these names: name the input columns in "
                f"inputs."
            )
            return
