"""`Columns`: how the columns of tables become inputs, as the user declares it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from undrift.data.formats.tables import listed
from undrift.utils.errors import (
    UndriftError,
    nearest,
    require,
    require_choice,
    require_type,
    require_whole,
)

ONE_HOT, CODES = "one-hot", "codes"
"""A column of zeros and a one for each known value; or one integer per value, for embeddings."""
ERROR, MEAN, MEDIAN = "error", "mean", "median"
"""What a missing number is: an error, or replaced by the mean or median of the training samples."""
UNKNOWN = ("zero", "error")
"""What an unknown category is: zeros (as a code: 0), or an error."""
AGREED = "agreed"
"""The word for a vocabulary that the clients agree on, in place of a list of values."""
MISSING_WORDS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
"""Texts that stand for a missing value if the user lists no others."""
MIN_COUNT = 5
"""Fewest training samples with a value at a client for the value to enter an agreed vocabulary."""
DATE_PARTS = ("days", "year", "month", "day", "weekday", "hour")
"""What a date becomes: days since 1970-01-01, or a part of it; weekday 0 is Monday."""

Names = Sequence[str]
Vocabularies = Sequence[str] | Mapping[str, Any]
"""Category columns, or a mapping from each to its list of values or to "agreed"."""


@dataclass(frozen=True)
class Columns:
    """The declared treatment of columns; `FederatedData.from_folder` explains the parameters."""

    target: str | None = None
    inputs: Names | None = None
    classes: Names | None = None
    categories: Vocabularies = ()
    encoding: str | Mapping[str, str] = ONE_HOT
    unknown: str = "zero"
    min_count: int = MIN_COUNT
    dates: Names | Mapping[str, Names] = ()
    date_format: str | None = None
    drop: Names = ()
    missing: str | float | Mapping[str, Any] = ERROR
    missing_words: Names = MISSING_WORDS
    indicators: bool | Names = False
    standardise: bool = False

    def __post_init__(self) -> None:
        self._check_categories()
        self._check_dates()
        require_choice("unknown", self.unknown, UNKNOWN)
        require_whole("min_count", self.min_count, at_least=1)
        if self.inputs is not None:
            _require_names("inputs", self.inputs)
        for name, column_names in (("drop", self.drop), ("missing_words", self.missing_words)):
            _require_names(name, column_names)
        require(
            isinstance(self.missing, str | int | float | Mapping)
            and not isinstance(self.missing, bool),
            f"missing is {self.missing!r}, but must be 'error', 'mean', 'median', a number, or a "
            f"table of these by column.",
        )
        by_column = isinstance(self.missing, Mapping)
        treatments = self.missing.items() if by_column else [("", self.missing)]  # type: ignore[union-attr]
        for column, treatment in treatments:
            _require_treatment(f"missing.{column}" if column else "missing", treatment)
        if not isinstance(self.indicators, bool):
            _require_names("indicators", self.indicators)
        both = next((name for name in self.drop if name in self.declared()), None)
        require(
            both is None,
            f"The column {both!r} is in drop, but also in inputs, categories or dates.",
        )
        if self.inputs is not None:
            known = self.inputs
            more = next((n for n in [*self.categories, *self.dates] if n not in known), None)
            require(
                more is None,
                f"The column {more!r} is in categories or dates, but not in inputs: add it there.",
            )
        both = next((name for name in self.category_names if name in self.date_names), None)
        require(both is None, f"The column {both!r} is in both categories and dates.")

    @property
    def category_names(self) -> list[str]:
        """The columns that are categories."""
        return list(self.categories)

    @property
    def date_names(self) -> list[str]:
        """The columns that are dates."""
        return list(self.dates)

    def vocabulary(self, column: str) -> list[str] | None:
        """The declared values of a category; None if the clients agree on them."""
        if not isinstance(self.categories, Mapping) or self.categories[column] == AGREED:
            return None
        return [str(each) for each in self.categories[column]]

    def parts(self, column: str) -> list[str]:
        """What becomes of a date column."""
        return list(self.dates[column]) if isinstance(self.dates, Mapping) else ["days"]

    def coded(self, column: str) -> bool:
        """Whether a category is passed as integer codes, not as one-hot columns."""
        if isinstance(self.encoding, str):
            return self.encoding == CODES
        return self.encoding.get(column, ONE_HOT) == CODES

    def treatment(self, column: str) -> str | float:
        """What replaces a missing number of a column: "error", "mean", "median" or a constant."""
        if not isinstance(self.missing, Mapping):
            return self.missing
        return self.missing.get(column, ERROR)  # type: ignore[no-any-return]

    def indicated(self, column: str) -> bool:
        """Whether a column that has missing values gets an indicator."""
        if isinstance(self.indicators, bool):
            return self.indicators
        return column in self.indicators

    def declared(self) -> set[str]:
        """The columns that are named as inputs, categories or dates."""
        return {*(self.inputs or ()), *self.category_names, *self.date_names}

    def require_known(self, known: Iterable[str], where: object) -> None:
        """Raise for a named column that a table does not have."""
        names = list(known)
        by_key: dict[str, Iterable[str]] = {
            "categories": self.category_names,
            "dates": self.date_names,
            "drop": self.drop,
            "encoding": self.encoding if isinstance(self.encoding, Mapping) else (),
            "missing": self.missing if isinstance(self.missing, Mapping) else (),
            "indicators": () if isinstance(self.indicators, bool) else self.indicators,
        }
        for key, wanted in by_key.items():
            for name in wanted:
                if name not in names:
                    near = nearest(str(name), names)
                    raise UndriftError(
                        f"A column of {key} is {name!r}, but {where} has the columns "
                        f"{listed(names)}{f'; did you mean {near!r}?' if near else '.'}"
                    )

    def _check_categories(self) -> None:
        if isinstance(self.categories, Mapping):
            for column, values in self.categories.items():
                if values == AGREED:
                    continue
                require(
                    isinstance(values, list | tuple) and len(values) > 0,
                    f"categories is {values!r} for {column!r}, but must be a list of its values "
                    f"or {AGREED!r}.",
                )
                words = [str(each) for each in values]
                require(
                    len(set(words)) == len(words),
                    f"categories is a list that names a value of {column!r} twice.",
                )
        else:
            _require_names("categories", self.categories)
        if isinstance(self.encoding, Mapping):
            for column, kind in self.encoding.items():
                require_choice(f"encoding.{column}", kind, (ONE_HOT, CODES))
                require(
                    column in self.category_names,
                    f"encoding is given for {column!r}, which is not in categories.",
                )
        else:
            require_choice("encoding", self.encoding, (ONE_HOT, CODES))

    def _check_dates(self) -> None:
        if not isinstance(self.dates, Mapping):
            _require_names("dates", self.dates)
            return
        for column, parts in self.dates.items():
            require(
                isinstance(parts, list | tuple) and len(parts) > 0,
                f"dates is {parts!r} for {column!r}, but must be a list of parts such as "
                f"['days', 'weekday'].",
            )
            for part in parts:
                require_choice(f"A part of the date {column!r} in dates", part, DATE_PARTS)


def declared_columns(values: Mapping[str, Any]) -> Columns:
    """The treatment of columns that arguments of `FederatedData.from_folder` declare."""
    known = {field.name for field in fields(Columns)}
    found = {name: value for name, value in values.items() if name in known}
    inputs = found.get("inputs")
    found["inputs"] = [inputs] if isinstance(inputs, str) else inputs or None
    return Columns(**found, standardise=values.get("normalise") == "features")


def _require_names(what: str, names: Any) -> None:
    require_type(what, names, (list, tuple), "a list of words")
    for each in names:
        require_type(f"One of {what}", each, str, "a word")


def _require_treatment(what: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and math.isfinite(value):
        return
    require(
        value in (ERROR, MEAN, MEDIAN),
        f"{what} is {value!r}, but must be 'error', 'mean', 'median' or a finite number.",
    )
