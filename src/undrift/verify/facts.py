"""The facts that methods must satisfy, each measured on a problem with a known answer."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from undrift.utils.errors import Diverged, UndriftError, first_line
from undrift.verify import equivalences, invariances, limits
from undrift.verify.runs import Finding
from undrift.verify.subjects import Subject

LIBRARY = str(Path(__file__).parent.parent)


@dataclass(frozen=True)
class Fact:
    """Something that must hold for a method, up to an allowed error."""

    name: str
    meaning: str
    allowed: float
    measure: Callable[[Subject], Finding | None]
    """measures the error; returns None if the fact does not apply to a method"""
    failed: str
    """the likely mistake if the fact does not hold, as a hint to the author"""


RUNS = Fact(
    "runs",
    "It completes a round.",
    0.0,
    invariances.runs,
    "the method's own code raises",
)
"""The condition for measuring any other fact."""

FACTS = [
    Fact(
        "limit",
        "With every client, it ends at the optimum of F or at its closed-form fixed point.",
        1e-10,
        limits.limit_full,
        "look at the sign and the scale of the local term, and at the weights in the fold; if it "
        "is biased by design, declare converges_to = 'averaging', or None to claim nothing",
    ),
    Fact(
        "partial",
        "With half of the clients in each round, it still ends at the optimum of F.",
        1e-10,
        limits.limit_partial,
        "N, K = |S| or the sums over the cohort may be confused, or states of absent clients lost",
    ),
    Fact(
        "momentum",
        "Local momentum 0.9 does not move where it ends.",
        1e-10,
        limits.limit_momentum,
        "divide by rate·a_norm (η‖a‖₁), not by rate·steps (ητ)",
    ),
    Fact(
        "ragged",
        "With smaller last batches, it ends where the true number of steps says.",
        1e-8,
        limits.ragged,
        "the smaller last batch of every epoch is a step too: use result.steps or result.a_norm",
    ),
    Fact(
        "equals",
        "It coincides with the methods it generalises, round by round.",
        1e-12,
        equivalences.equals,
        "a special case differs from the method that it should equal",
    ),
    Fact(
        "weights",
        "Several identical clients act as one, whatever their sizes.",
        1e-12,
        invariances.weights,
        "the weights of the fold do not sum to one",
    ),
    Fact(
        "acts",
        "Every numeric parameter, and the local term, changes what clients do.",
        0.0,
        invariances.acts,
        "a term is silently lost, as a detached regulariser is",
    ),
    Fact(
        "order",
        "The order of the clients does not matter, to the bit.",
        0.0,
        invariances.order,
        "something depends on a client's position instead of its id",
    ),
    Fact(
        "shift",
        "Moving all data in space moves the result, and changes nothing else.",
        1e-12,
        invariances.shift,
        "a model is scaled where only a difference of models may be",
    ),
    Fact(
        "still",
        "Clients that do not move leave the server where it is.",
        1e-12,
        invariances.still,
        "the server moves by something that no client sent",
    ),
    Fact(
        "buffers",
        "BatchNorm statistics are averaged by samples and are not parameters.",
        1e-12,
        invariances.buffers,
        "buffers are treated like parameters",
    ),
    Fact(
        "stacked",
        "Clients stacked as [C, P] give the same results as one by one.",
        1e-12,
        invariances.stacked,
        "an expression does not broadcast over clients",
    ),
]
"""Every fact, in the order of the table."""


def check_fact(fact: Fact, subject: Subject) -> Finding | None:
    """Measure a fact; a run that raises an error gets an infinite error and its reason."""
    try:
        return fact.measure(subject)
    except Diverged as error:
        return Finding("a finite model", "divergence", math.inf, str(error))
    except UndriftError as error:
        return Finding("a result", "an error", math.inf, str(error))
    except Exception as error:  # raised by the user's own code
        return Finding("a result", "an error", math.inf, first_line(error) + _place(error))


def _place(error: Exception) -> str:
    """The line of the user's file that raised an error, for the end of a sentence."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARY)]
    return f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
