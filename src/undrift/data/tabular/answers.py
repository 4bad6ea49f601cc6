"""The questions and answers by which clients agree on an encoding, and the checks of answers.

Nothing in an answer is taken for granted: names, types, sizes, finite numbers, and counts within
the number of samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undrift.data.tabular.encoding import MAX_COLUMNS, MAX_VALUES, is_finite, is_short_text
from undrift.data.tabular.features import NUMBER, WORD
from undrift.data.tabular.medians import CELLS
from undrift.utils.errors import require

COUNTS, DEVIATIONS, CELLS_STAGE = "counts", "deviations", "cells"
"""The kinds of questions: sums and counts; squares about the agreed means; counts in cells around
them, for medians."""
MAX_SAMPLES = 2**53

Question = dict[str, Any]
Answer = dict[str, Any]


def check_counts(who: str, answer: Any) -> None:
    """Check the answer to the first question."""
    keys = {"samples", "columns", "whole", "present", "sums", "values"}
    _require(who, isinstance(answer, Mapping) and answer.keys() == keys, "its fields are others")
    samples = answer["samples"]
    _require(who, _is_count(samples, MAX_SAMPLES), "'samples' must be a whole number")
    _check_columns(who, answer, samples)


def _check_columns(who: str, answer: Mapping[str, Any], samples: int) -> None:
    columns = answer["columns"]
    named = isinstance(columns, list) and 0 < len(columns) <= MAX_COLUMNS
    _require(
        who,
        named
        and all(isinstance(each, list) and len(each) == 2 for each in columns)
        and all(is_short_text(name) and kind in (NUMBER, WORD) for name, kind in columns)
        and len({name for name, _ in columns}) == len(columns)
        and isinstance(answer["whole"], bool),
        "it has no list of different columns with their kinds",
    )
    kinds = dict(columns)
    present, sums, values = answer["present"], answer["sums"], answer["values"]
    _require(
        who,
        isinstance(present, Mapping)
        and present.keys() == kinds.keys()
        and all(_is_count(each, samples) for each in present.values()),
        "the number of values of each column must be a whole number, at most that of the samples",
    )
    _require(
        who,
        isinstance(sums, Mapping)
        and all(kinds.get(name) == NUMBER for name in sums)
        and all(_is_sum(each, present[name]) for name, each in sums.items()),
        "the sums must be finite numbers",
    )
    _require(
        who,
        isinstance(values, Mapping) and all(kinds.get(name) == WORD for name in values),
        "it has values of a column that is no category",
    )
    for name, known in values.items():
        _require(
            who,
            isinstance(known, Mapping)
            and len(known) <= MAX_VALUES
            and all(is_short_text(word) for word in known)
            and all(_is_count(each, samples) and each > 0 for each in known.values())
            and sum(known.values()) <= present[name],
            f"the values of {name!r} must have counts whose sum is at most the number of samples",
        )


def check_deviations(who: str, answer: Any, asked: Mapping[str, float]) -> None:
    """Check the sums of squares about the agreed means."""
    squares = answer.get("squares") if isinstance(answer, Mapping) else None
    _require(
        who,
        isinstance(squares, Mapping)
        and squares.keys() == asked.keys()
        and all(_is_number(each) and 0 <= each < float("inf") for each in squares.values()),
        "the squares must be finite numbers that are not negative",
    )


def check_cells(who: str, answer: Any, present: Mapping[str, int]) -> None:
    """Check the counts in cells; `present` is the number of values that each may have."""
    cells = answer.get("cells") if isinstance(answer, Mapping) else None
    _require(
        who,
        isinstance(cells, Mapping) and cells.keys() == present.keys(),
        "it has counts of other columns",
    )
    assert isinstance(cells, Mapping)
    for name, counts in cells.items():
        _require(
            who,
            isinstance(counts, list)
            and len(counts) == CELLS + 1
            and all(_is_count(each, present[name]) for each in counts)
            and sum(counts) <= present[name],
            f"the counts of {name!r} must be whole numbers whose sum is at most {present[name]}",
        )


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_sum(value: Any, present: int) -> bool:
    """Whether a number is a possible sum of `present` values that fit into 32 bits."""
    return _is_number(value) and (value == 0 if not present else is_finite(value / present))


def _require(who: str, condition: bool, why: str) -> None:
    require(condition, f"{who} sent statistics that cannot be used: {why}.")
