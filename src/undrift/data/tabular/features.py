"""`Features`: the columns of many samples as numbers and words, before they are encoded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from undrift.data.formats.tables import EPOCH, Table, as_date, is_missing, is_number, listed
from undrift.data.tabular.columns import ERROR, Columns
from undrift.utils.errors import UndriftError, nearest, require, require_choice, warn

NUMBER, WORD = "number", "word"
"""The kinds of features."""
MISSING = -1
"""The code of a missing word."""
ID_NAME = re.compile(r"(^|.*[_ .-])(id|uuid|guid|identifier|key|nr|no)$|.*[a-z]ID$", re.IGNORECASE)
ID_SAMPLES = 20
"""Fewest samples of which different values make a column look like an identifier."""
REMEDY = (
    "to leave the column out, name the others in inputs, or it in drop; declare words in "
    "categories and dates in dates"
)
DAY_SECONDS = 86400.0


class Feature(NamedTuple):
    """What one column, or one part of a date, gives."""

    name: str
    kind: str
    """NUMBER or WORD"""
    column: str
    part: str | None = None
    """which part of a date it is; None for other columns"""


@dataclass(frozen=True)
class Features:
    """The features of samples, in the order of the table's columns.

    Numbers and words are in arrays of their own; `features` says which is which.
    """

    features: tuple[Feature, ...]
    numbers: np.ndarray
    """`[n, number of numbers]`, 64-bit; NaN where a value is missing"""
    words: np.ndarray
    """`[n, number of words]`: codes of `vocabularies`, MISSING where a value is missing"""
    vocabularies: tuple[tuple[str, ...], ...]
    """the different words of each word feature, sorted"""
    orders: dict[str, np.ndarray]
    """further columns that are numbers or dates, by which samples can be ordered"""
    places: tuple[tuple[Table, int], ...]
    """the tables that the rows come from, each with its first row"""

    def __len__(self) -> int:
        return len(self.numbers)

    def named(self, kind: str) -> list[Feature]:
        """The features of a kind, in the order of their array."""
        return [each for each in self.features if each.kind == kind]

    def order(self, column: str) -> np.ndarray:
        """Numbers by which samples can be ordered: those of a column, or the days of a date."""
        found = dict(self.orders)
        for place, each in enumerate(self.named(NUMBER)):
            if each.part in (None, "days"):
                found[each.column] = self.numbers[:, place]
        require_choice("The column to order by", column, found)
        gone = np.isnan(found[column])
        if gone.any():
            raise UndriftError(
                f"{self.where(int(gone.argmax()))} has no value in column {column!r}, by which "
                f"samples are ordered: fill it in, or leave the row out."
            )
        return found[column]

    def where(self, row: int) -> str:
        """The file and line of a row, for sentences."""
        table, first = next(pair for pair in reversed(self.places) if pair[1] <= row)
        return table.where(row - first)


def input_columns(first: Table, columns: Columns, target: str) -> list[str]:
    """The names of the input columns: those given, or all except the target and dropped ones."""
    columns.require_known(first.columns, first.path)
    if columns.inputs:
        for name in columns.inputs:
            if name not in first.columns:
                near = nearest(str(name), first.columns)
                raise UndriftError(
                    f"A column of inputs is {name!r}, but {first.path} has the columns "
                    f"{listed(first.columns)}{f'; did you mean {near!r}?' if near else '.'}"
                )
        return list(columns.inputs)
    names = [name for name in first.columns if name != target and name not in columns.drop]
    require(bool(names), f"{first.path} has no column except the target {target!r}.")
    require(
        all(name.strip() for name in names),
        f"{first.path} has a column without a name, such as the row numbers that pandas writes "
        f"without index=False: name the input columns in inputs, or remove it.",
    )
    return names


def features_of(inputs: Sequence[str], columns: Columns) -> tuple[Feature, ...]:
    """The features that input columns give."""
    found = []
    for name in inputs:
        if name in columns.category_names:
            found.append(Feature(name, WORD, name))
        elif name in columns.date_names:
            for part in columns.parts(name):
                shown = name if part == "days" else f"{name}.{part}"
                found.append(Feature(shown, NUMBER, name, part))
        else:
            found.append(Feature(name, NUMBER, name))
    return tuple(found)


def read_features(
    tables: Sequence[Table], features: tuple[Feature, ...], columns: Columns, target: str
) -> Features:
    """The features of all rows of some tables, one table after another."""
    numbers, words, firsts = [], [], []
    row = 0
    for table in tables:
        read = {name: _column(table, name, columns) for name in dict.fromkeys(_columns(features))}
        made = [_number(each, read[each.column]) for each in features if each.kind == NUMBER]
        numbers.append(np.stack(made, 1) if made else np.empty((len(table.row_numbers), 0)))
        words.append([read[each.column] for each in features if each.kind == WORD])
        # Without its columns: the texts of a large file take many times the memory of numbers.
        firsts.append((Table(table.path, {}, table.row, table.row_numbers), row))
        row += len(table.row_numbers)
    codes, vocabularies = _coded(words, row)
    return Features(
        features,
        np.concatenate(numbers),
        codes,
        vocabularies,
        _orders(tables, features, columns, target),
        tuple(firsts),
    )


def warn_of_identifiers(tables: Sequence[Table], inputs: Sequence[str], columns: Columns) -> None:
    """Announce input columns that look like identifiers of samples."""
    if columns.inputs:
        return
    found = [name for name in inputs if _is_identifier([t.columns[name] for t in tables], name)]
    if found:
        warn(
            f"The columns {listed(found)} of {tables[0].path.parent} look like identifiers, which "
            f"a model cannot learn from: leave them out with drop, or name the inputs."
        )


def _is_identifier(by_table: Sequence[Sequence[Any]], name: str) -> bool:
    """Whether a column's values differ in all rows of each file and are words or run on."""
    values = [each for table in by_table for each in table if not is_missing(each, ())]
    longest = max(by_table, key=len)
    if len(longest) < ID_SAMPLES or len(set(longest)) < len(longest):
        return False
    if not all(is_number(each) for each in values):
        return not all(as_date(each, None) is not None for each in longest)
    found = np.array([float(each) for each in longest])
    if not np.equal(np.mod(found, 1), 0).all() or any("." in str(each) for each in longest):
        return False
    return bool(ID_NAME.fullmatch(name)) or found.max() - found.min() < 2 * len(found)


def _columns(features: Sequence[Feature]) -> list[str]:
    return [each.column for each in features]


def _column(table: Table, name: str, columns: Columns) -> Any:
    """A column: an array of numbers, a list of dates with a mask, or a list of words."""
    allowed = columns.treatment(name) != ERROR
    if name in columns.category_names:
        gone = table.missing(name, columns.missing_words)
        if not allowed:
            _refuse_missing(table, name, gone)
        values = table.columns[name]
        return [None if g else as_word(v) for v, g in zip(values, gone.tolist(), strict=True)]
    missing = table.missing(name, columns.missing_words) if allowed else None
    if name in columns.date_names:
        if not allowed:
            _refuse_missing(table, name, table.missing(name, columns.missing_words))
        return table.dates(name, columns.date_format, missing), missing
    return table.numbers(name, REMEDY, missing)


def _refuse_missing(table: Table, name: str, gone: np.ndarray) -> None:
    if gone.any():
        raise UndriftError(
            f"{table.where(int(gone.argmax()))} has no value in column {name!r}: fill it in, or "
            f"leave the row out, or set missing."
        )


def as_word(value: Any) -> str:
    """A category as a word: 1, 1.0 and "1" are the same in csv and parquet files."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _number(feature: Feature, read: Any) -> np.ndarray:
    """A number feature of a table's rows."""
    if feature.part is None:
        assert isinstance(read, np.ndarray)
        return read
    dates, missing = read
    found = np.array([date_part(each, feature.part) for each in dates], np.float64)
    if missing is not None:
        found[missing] = np.nan
    return found


def date_part(value: datetime, part: str) -> float:
    """A date as a number."""
    if part == "days":
        return (value - EPOCH).total_seconds() / DAY_SECONDS
    if part == "weekday":
        return float(value.weekday())
    return float(getattr(value, part))


def _coded(
    words: Sequence[Sequence[Sequence[str | None]]], rows: int
) -> tuple[np.ndarray, tuple[tuple[str, ...], ...]]:
    """Codes of the word features of all tables, and the words of each."""
    width = len(words[0]) if words else 0
    codes = np.full((rows, width), MISSING, np.int64)
    vocabularies = []
    for place in range(width):
        values = [word for table in words for word in table[place]]
        known = tuple(sorted({word for word in values if word is not None}))
        numbers = {word: number for number, word in enumerate(known)}
        codes[:, place] = [MISSING if word is None else numbers[word] for word in values]
        vocabularies.append(known)
    return codes, tuple(vocabularies)


def _orders(
    tables: Sequence[Table], features: Sequence[Feature], columns: Columns, target: str
) -> dict[str, np.ndarray]:
    """The columns that are no features but numbers or dates in all tables, as numbers."""
    used = {target, *_columns(features)}
    found = {}
    for name in [name for name in tables[0].columns if name not in used]:
        values = _order_values(tables, name, columns)
        if values is not None:
            found[name] = values
    return found


def _order_values(tables: Sequence[Table], name: str, columns: Columns) -> np.ndarray | None:
    """A column of all tables as numbers; None if a value is neither a number nor a date."""
    found = []
    for table in tables:
        for value in table.columns.get(name, [None] * len(table.row_numbers)):
            number = _order(value, columns)
            if number is None:
                return None
            found.append(number)
    return np.array(found, np.float64)


def _order(value: Any, columns: Columns) -> float | None:
    """A value as a number by which rows can be ordered; None if it is neither number nor date."""
    if is_missing(value, columns.missing_words):
        return float("nan")
    if is_number(value):
        return float(value)
    date = as_date(value, columns.date_format) or as_date(value, None)
    return None if date is None else date_part(date, "days")
