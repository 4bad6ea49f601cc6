"""Readers of csv and parquet files, which hold the samples of one client as named columns."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data.arrays import EXACT_FLOAT32
from undrift.utils.errors import UndriftError, first_line, require

LISTED_COLUMNS = 12
"""An error lists at most this many names of columns."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Table:
    """The columns of a client's csv or parquet file.

    Parameters
    ----------
    path
        the file
    columns
        the values of each column, by name
    row, numbers
        what error messages call a row ("Line" or "Row"), and the number of each
    """

    def __init__(
        self, path: Path, columns: Mapping[str, Sequence[Any]], row: str, numbers: Sequence[int]
    ):
        self.path = path
        self.columns = columns
        self.row = row
        self.row_numbers = numbers

    def require_filled(
        self, column: str, remedy: str = "", missing: np.ndarray | None = None
    ) -> None:
        """Raise if the column has missing values, unless `missing` allows them."""
        for place, value in enumerate(self.columns[column]):
            if missing is not None and missing[place]:
                continue
            if value is None or str(value).strip() == "":
                raise UndriftError(
                    f"{self.where(place)} has no value in column {column!r}: fill it in, or leave "
                    f"the row out{remedy}."
                )

    def missing(self, column: str, words: Container[str]) -> np.ndarray:
        """Which values of a column are missing: empty ones, NaN, and the given words."""
        values = self.columns[column]
        return np.fromiter((is_missing(each, words) for each in values), bool, len(values))

    def numbers(self, column: str, remedy: str, missing: np.ndarray | None = None) -> np.ndarray:
        """A column's values as numbers, NaN where `missing`; the error ends with the remedy."""
        values = self.columns[column]
        if missing is not None and missing.any():
            pairs = zip(values, missing.tolist(), strict=True)
            values = [math.nan if gone else value for value, gone in pairs]
        try:
            found = np.fromiter(map(float, values), np.float64, len(values))
        except (TypeError, ValueError, OverflowError):
            self._refuse_word(column, remedy, missing)
            raise
        # Values beyond 32-bit numbers are refused too: they would be infinite in a model.
        with np.errstate(over="ignore"):
            finite = np.isfinite(found.astype(np.float32))
        if missing is not None:
            finite |= missing
        if not finite.all():
            place = int(np.argmin(finite))
            raise UndriftError(
                f"{self.where(place)} has {values[place]!r} in column {column!r}, which must be a "
                f"finite number: fill it in, or leave the row out, or set missing."
            )
        return found

    def dates(self, column: str, form: str | None, missing: np.ndarray | None) -> list[datetime]:
        """A column's values as dates in UTC; those that are missing are 1970-01-01."""
        gone = np.zeros(len(self.row_numbers), bool) if missing is None else missing
        found = []
        for place, value in enumerate(self.columns[column]):
            if gone[place]:
                found.append(EPOCH)
                continue
            parsed = as_date(value, form)
            if parsed is None:
                wanted = "an ISO date such as 2024-05-31" if form is None else f"a date like {form}"
                raise UndriftError(
                    f"{self.where(place)} has {value!r} in column {column!r}, which must be "
                    f"{wanted}: correct it, or set date_format or missing."
                )
            found.append(parsed)
        return found

    def inexact_whole(self, column: str, found: np.ndarray) -> int | None:
        """A whole number of a column that 32-bit floating-point numbers cannot hold, if any.

        Numbers written with a point or an exponent are measurements, which are rounded anyway.
        """
        for place in np.flatnonzero(np.abs(found) > EXACT_FLOAT32).tolist():
            value = self.columns[column][place]
            whole = _whole_number(value)
            if whole is not None and int(np.float32(found[place])) != whole:
                return whole
        return None

    def where(self, place: int) -> str:
        """The place of a row in its file, for sentences."""
        return f"{self.row} {self.row_numbers[place]} of {self.path}"

    def _refuse_word(self, column: str, remedy: str, missing: np.ndarray | None) -> None:
        """Raise for the first value of a column that is missing or not a number."""
        self.require_filled(column, ", or set missing", missing)
        for place, value in enumerate(self.columns[column]):
            if not is_number(value) and not (missing is not None and missing[place]):
                raise UndriftError(
                    f"{self.where(place)} has {value!r} in column {column!r}, which must be a "
                    f"number; {remedy}."
                )


def is_number(value: Any) -> bool:
    """Whether a value of a table can be read as a number."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def is_missing(value: Any, words: Container[str]) -> bool:
    """Whether a value of a table is missing: None, NaN, or a text among the words."""
    if isinstance(value, str):
        return not value.strip() or value.strip() in words
    return value is None or value != value


def as_date(value: Any, form: str | None) -> datetime | None:
    """A value of a table as a date in UTC; None if it is no date.

    Dates without a time zone are taken to be in UTC.
    """
    if isinstance(value, datetime):
        found = value
    elif isinstance(value, date):
        found = datetime(value.year, value.month, value.day)
    else:
        text = str(value).strip()
        try:
            found = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
        except ValueError:
            return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _whole_number(value: Any) -> int | None:
    """The value if it is, or is written as, a whole number without point and exponent."""
    try:
        return None if isinstance(value, float) else int(value)
    except (TypeError, ValueError):
        return None


def listed(columns: Iterable[str]) -> str:
    """The names of columns for an error message, which stays short if there are many."""
    names = list(columns)
    shown = ", ".join(map(repr, names[:LISTED_COLUMNS]))
    more = len(names) - LISTED_COLUMNS
    return shown if more <= 0 else f"{shown} and {more} more"


def read_csv(path: Path) -> Table:
    """A csv file: a line with the names of the columns, then a line per sample.

    Empty lines are skipped.
    """
    rows, numbers = _csv_rows(path)
    require(bool(rows), f"{path} is empty, but must begin with a line of column names.")
    header, lines = rows[0], rows[1:]
    _require_header(path, header)
    require(bool(lines), f"{path} has no samples.")
    for number, line in zip(numbers[1:], lines, strict=True):
        require(
            len(line) == len(header),
            f"Line {number} of {path} has {len(line)} values for {len(header)} columns.",
        )
    columns = dict(zip(header, zip(*lines, strict=True), strict=True))
    return Table(path, columns, "Line", numbers[1:])


def _csv_rows(path: Path) -> tuple[list[list[str]], list[int]]:
    """The lines that are not empty, and the number in the file of each one's last line."""
    rows, numbers = [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    rows.append(row)
                    numbers.append(reader.line_num)
    except UnicodeDecodeError as error:
        raise UndriftError(
            f"{path} cannot be read as csv, because it is not UTF-8 text: {first_line(error)}."
        ) from error
    except (OSError, ValueError, csv.Error) as error:
        raise UndriftError(f"{path} cannot be read as csv: {first_line(error)}.") from error
    return rows, numbers


def _require_header(path: Path, header: list[str]) -> None:
    """Check that the first line has different names."""
    require(
        not all(map(is_number, header)),
        f"{path} begins with the numbers {listed(header)}, but must begin with a line of column "
        f"names.",
    )
    twice = next((name for name, times in Counter(header).items() if times > 1), None)
    require(twice is None, f"{path} has two columns named {twice!r}.")


def read_parquet(path: Path) -> Table:
    """A parquet file, a column per input and target."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UndriftError(
            f"Reading {path.name} needs pyarrow: pip install 'undrift[data]'."
        ) from None
    try:
        table = parquet.read_table(path)
        columns = table.to_pydict()
    except (ArrowException, OSError, ValueError) as error:
        raise UndriftError(
            f"{path} is damaged or not a parquet file: {first_line(error)}."
        ) from error
    require(any(columns.values()), f"{path} has no samples.")
    return Table(path, columns, "Row", range(1, table.num_rows + 1))
