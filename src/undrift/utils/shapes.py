"""Checks that values read from JSON or TOML have the types they were written with.

A shape describes a value: a type or several (`int`, `(int, float)`, `None`), `[shape]` for a list,
`{str: shape}` for a table with any names, or a tuple of shapes in a `Row` for a list of fixed
length.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from undrift.utils.errors import UndriftError, require

NUMBER = (int, float)
WORDS = {int: "a whole number", float: "a number", str: "a text", type(None): "nothing"}
MAX_SHOWN = 60


class Row(tuple[Any, ...]):
    """The shapes of a list of fixed length."""


def fits(value: Any, shape: Any) -> bool:
    """Whether a value has a shape."""
    if isinstance(shape, Row):
        return type(value) is list and len(value) == len(shape) and all(map(fits, value, shape))
    if isinstance(shape, list):
        return type(value) is list and _all_fit(value, shape[0])
    if isinstance(shape, dict):
        return type(value) is dict and _all_fit(value.values(), shape[str])
    if isinstance(shape, tuple):
        return any(fits(value, each) for each in shape)
    # The exact type: True is an int in Python, but no number in a file.
    return type(value) is shape


def _all_fit(values: Collection[Any], shape: Any) -> bool:
    kinds = shape if type(shape) is tuple else (shape,)
    if all(isinstance(kind, type) for kind in kinds):  # long lists of plain values are common
        return {*map(type, values)}.issubset(kinds)
    return all(fits(each, shape) for each in values)


def in_words(shape: Any) -> str:
    """A shape in words, for messages."""
    if isinstance(shape, Row):
        return f"a list of {len(shape)} values"
    if isinstance(shape, list):
        return "a list"
    if isinstance(shape, dict):
        return "a table"
    if isinstance(shape, tuple):
        return WORDS[float] if shape == NUMBER else " or ".join(map(in_words, shape))
    return WORDS[shape]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def misfit(values: Mapping[str, Any], shapes: Mapping[str, Any]) -> str | None:
    """What is wrong with the first of the values that does not fit its shape; None if all do."""
    for name, value in values.items():
        shape = shapes.get(name)
        if shape is not None and not fits(value, shape):
            return f"its {name!r} is {_shown(value)}, but must be {in_words(shape)}"
    return None


def require_shapes(path: Path, values: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    """Raise unless the values of a file have their shapes."""
    for name, shape in shapes.items():
        require(name in values or fits(None, shape), f"{path} has no {name!r}.")
    wrong = misfit(values, shapes)
    if wrong is not None:
        raise UndriftError(f"{path} is damaged: {wrong}.")
