"""The facts a method must satisfy, each measured on a problem whose answer is known."""

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
    """Something that must hold, how exactly, and what it means when it does not."""

    name: str
    meaning: str
    allowed: float
    measure: Callable[[Subject], Finding | None]
    """None when the fact says nothing about a method"""
    failed: str
    """what to look for, when it does not hold"""


RUNS = Fact(
    "runs",
    "It does a round.",
    0.0,
    invariances.runs,
    "the method's own code raises",
)
"""What must hold before anything else can be measured."""

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
        "N, K = |S| and the sums over the cohort may be confused, or states of absent clients lost",
    ),
    Fact(
        "momentum",
        "Local momentum 0.9 does not move where it ends.",
        1e-10,
        limits.limit_momentum,
        "divide by rate·progress (η‖a‖₁), not by rate·steps (ητ)",
    ),
    Fact(
        "ragged",
        "A network on batches of which the last is smaller ends where the number of steps says.",
        1e-8,
        limits.ragged,
        "the number of steps counts the ragged last batch of every epoch: use result.steps or "
        "result.a_norm",
    ),
    Fact(
        "equals",
        "It coincides with the methods it generalises, round by round.",
        1e-12,
        equivalences.equals,
        "a special case differs from the method it should be",
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
        "Every number of the method, and its local term, changes what clients do.",
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
        "BatchNorm's statistics are averaged by samples and are no parameters.",
        1e-12,
        invariances.buffers,
        "buffers are treated like parameters",
    ),
    Fact(
        "stacked",
        "Several clients as [C, P] give what they give one by one.",
        1e-12,
        invariances.stacked,
        "an expression does not broadcast over clients",
    ),
]
"""Every fact, in the order of the table."""


def check_fact(fact: Fact, subject: Subject) -> Finding | None:
    """Measure a fact; a run that breaks down is infinitely wrong, with the reason."""
    try:
        return fact.measure(subject)
    except Diverged as error:
        return Finding("a finite model", "divergence", math.inf, str(error))
    except UndriftError as error:
        return Finding("a result", "an error", math.inf, str(error))
    except Exception as error:  # the user's own code
        return Finding("a result", "an error", math.inf, first_line(error) + _place(error))


def _place(error: Exception) -> str:
    """Where in the user's file an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARY)]
    return f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
