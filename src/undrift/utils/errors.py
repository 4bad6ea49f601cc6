"""The errors that users see, and the checks that raise them.

Every message is one sentence: what is wrong, where, and what is allowed.
"""

import math
import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any

PACKAGE_FOLDER = str(Path(__file__).parents[1])


class UndriftError(ValueError):
    """The input is invalid or the request cannot be done; the message is one sentence."""


class Diverged(UndriftError):
    """No reply of a round was usable, so training cannot continue."""


def warn(message: str) -> None:
    """Warn, with the line of the user's code that called the library as the place."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def first_line(error: BaseException) -> str:
    """The type and the first line of an exception, for use inside a message of ours."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(".: ")


def require(condition: bool, message: str) -> None:
    """Raise `UndriftError(message)` unless the condition holds."""
    if not condition:
        raise UndriftError(message)


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word the user probably meant: one that starts alike or is spelled alike."""
    words = list(allowed)
    begins = [each for each in words if word and each.startswith(word)]
    return next(iter(begins or get_close_matches(word, words, n=1)), None)


def require_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless the value is one of the allowed words; the message suggests the nearest."""
    allowed = list(allowed)
    if value in allowed:
        return
    near = nearest(str(value), allowed)
    hint = f"; did you mean {near!r}?" if near else "."
    words = ", ".join(repr(word) for word in allowed)
    raise UndriftError(f"{name} is {value!r}, but must be one of {words}{hint}")


def require_parameter(what: str, name: str, known: Iterable[str]) -> None:
    """Raise unless `what` has a parameter of this name; the message suggests the nearest."""
    known = list(known)
    if name in known:
        return
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else "."
    names = ", ".join(repr(each) for each in known)
    raise UndriftError(f"{what} has no parameter {name!r} (it has {names}){hint}")


def require_range(
    name: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Raise unless the value is a finite number within the limits."""
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
    """Return the value as an int; raise unless it is a whole number of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise UndriftError(
            f"{name} is {value!r}, but must be a whole number of at least {at_least}."
        )
    return int(value)


def require_type(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise unless the value has the type; `wanted` says in words what it must be."""
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
