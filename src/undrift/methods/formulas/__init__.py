"""The formulas of every method, as text in the letters of its paper.

The guide and `undrift show method` print them, and `undrift verify` reads them, computes one round
from them, and compares the result with the method's code. They are a second writing of each method
and know nothing of its code, except where to find its vectors.
"""

from undrift.methods.formulas.asynchronous import ROWS as _ASYNCHRONOUS
from undrift.methods.formulas.averaging import ROWS as _AVERAGING
from undrift.methods.formulas.control_variates import ROWS as _CONTROL_VARIATES
from undrift.methods.formulas.personal import ROWS as _PERSONAL
from undrift.methods.formulas.primal_dual import ROWS as _PRIMAL_DUAL
from undrift.methods.formulas.row import Builder, LaterProblem, MethodRow, steps_of

ROWS: dict[str, Builder] = _AVERAGING | _CONTROL_VARIATES | _PRIMAL_DUAL | _PERSONAL | _ASYNCHRONOUS
"""Builds the row of a method from its options, by the method's name."""


def row_of(method: object) -> MethodRow | None:
    """The row of a method of the library with its options.

    For a user's own method it is what the class declares as `formulas`, or None.
    """
    kind = type(method)
    if not kind.__module__.startswith("undrift.methods."):
        return getattr(method, "formulas", None)
    build = ROWS.get(kind.__name__)
    return None if build is None else build(method)


__all__ = ["ROWS", "LaterProblem", "MethodRow", "row_of", "steps_of"]
