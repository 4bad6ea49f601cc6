"""The errors a user meets: one sentence that says what, where and what is allowed."""

import math
import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any

LIBRARY = str(Path(__file__).parents[1])


class UndriftError(ValueError):
    """Something the user asked for cannot be done; the message is one clear sentence."""


class Diverged(UndriftError):
    """Every reply of a round was unusable, so there is nothing left to go on with."""


def warn(message: str) -> None:
    """Warn at the line outside of the library that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARY):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def first_line(error: BaseException) -> str:
    """What an error of someone else's says, in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(".: ")


def require(condition: bool, message: str) -> None:
    """Raise `UndriftError(message)` unless the condition holds."""
    if not condition:
        raise UndriftError(message)


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The word that was probably meant: one that begins so, or one that is spelt much alike."""
    words = list(allowed)
    begins = [each for each in words if word and each.startswith(word)]
    return next(iter(begins or get_close_matches(word, words, n=1)), None)


def require_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a value that is not one of the allowed words, suggesting the nearest one."""
    allowed = list(allowed)
    if value in allowed:
        return
    near = nearest(str(value), allowed)
    hint = f"; did you mean {near!r}?" if near else "."
    words = ", ".join(repr(word) for word in allowed)
    raise UndriftError(f"{name} is {value!r}, but must be one of {words}{hint}")


def require_range(
    name: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Refuse a number outside its range, or something that is not a finite number."""
    limits = {"above": above, "at least": at_least, "below": below, "at most": at_most}
    limits = {word: limit for word, limit in limits.items() if limit is not None}
    allowed = (
        " and ".join(f"{word} {limit:g}" for word, limit in limits.items()) or "that is finite"
    )
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise UndriftError(f"{name} is {value!r}, but must be a number {allowed}.")
    holds = {
        "above": lambda limit: value > limit,
        "at least": lambda limit: value >= limit,
        "below": lambda limit: value < limit,
        "at most": lambda limit: value <= limit,
    }
    if not all(holds[word](limit) for word, limit in limits.items()):
        raise UndriftError(f"{name} is {value!r}, but must be {allowed}.")


def require_whole(name: str, value: Any, at_least: int) -> int:
    """Refuse anything but a whole number from a bound upwards; gives it as an int."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise UndriftError(
            f"{name} is {value!r}, but must be a whole number of at least {at_least}."
        )
    return int(value)


def require_type(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Refuse a value of another type, saying what is wanted."""
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        made = value.__name__
        raise UndriftError(
            f"{name} is the class {made}, but must be {wanted}: make one, {made}(…)."
        )
    shown = repr(value)
    if len(shown) > 60 or "\n" in shown:
        shown = f"a {type(value).__name__}"
    raise UndriftError(f"{name} is {shown}, but must be {wanted}.")
