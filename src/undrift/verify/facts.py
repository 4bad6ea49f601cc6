"""The facts that methods must satisfy, each measured on a problem with a known answer."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.utils.errors import Diverged, UndriftError, first_line
from undrift.verify import (
    effects,
    equivalences,
    invariances,
    limits,
    one_round,
    personal,
    refusals,
    theorems,
)
from undrift.verify.runs import RAISED, Finding
from undrift.verify.subjects import Subject
from undrift.verify.uploads import private_runs

LIBRARY = str(Path(__file__).parent.parent)


@dataclass(frozen=True)
class Fact:
    """Something that must hold for a method, up to an allowed error."""

    name: str
    meaning: str
    allowed: float
    measure: Callable[[Any], Finding | None]
    """measures the error on a subject; returns None if the fact does not apply to it"""
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
        "formula",
        "One round of its code equals one round of its formulas.",
        1e-12,
        one_round.formula,
        "a sign, a factor or a weight differs between the code and the formula",
    ),
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
        "With local momentum 0.9 it ends there too, or where the closed form says.",
        1e-10,
        limits.limit_momentum,
        "divide by rate·a_norm (η‖a‖₁), not by rate·steps (ητ)",
    ),
    Fact(
        "clipped",
        "With clipped uploads it still ends there: kept state follows what was sent.",
        1e-8,
        limits.clipped,
        "settle() must add sent − formed to every kept vector that mirrors the server's",
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
        "theorem",
        "With the step sizes of its theorem, every round descends as the proof says.",
        1e-12,
        theorems.theorem,
        "a step is longer than the formula's, or a constant of the theorem is too small",
    ),
    Fact(
        "moves",
        "With constant gradients a client moves by −η‖a‖₁ times its local gradient.",
        1e-12,
        theorems.moves,
        "the solver does not count its momentum, its schedule or the pull in ‖a‖₁",
    ),
    Fact(
        "own",
        "The clients' own models end where their definition says.",
        1e-10,
        personal.own,
        "look at the start, the centre and the weight of the problem of the client's own model",
    ),
    Fact(
        "private",
        "What is personal never travels, and if it does not act, the server is as without it.",
        1e-12,
        personal.private,
        "an upload has the client's own model, or a vector is longer than the shared parameters",
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
        "Every numeric parameter, and all state that must act, has an effect.",
        0.0,
        effects.acts,
        "a term is silently lost, as a detached regulariser is; if it need not act, declare it in "
        "`idle`",
    ),
    Fact(
        "descends",
        "On a slope, equal for all clients, it moves downhill and its state does not slow it down.",
        0.01,
        effects.descends,
        "the sign of a momentum, of a linear term or of the server's step is reversed; if a method "
        "brakes by design, declare slows_down = True",
    ),
    Fact(
        "monotone",
        "Quantities that it declares as monotone do not increase.",
        0.0,
        effects.monotone,
        "a step is too long for the problem, or the quantity is not monotone",
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
        "divides",
        "A private run without noise and clipping, with every client, is the plain run to the bit.",
        0.0,
        private_runs.denominators,
        "the fold divides by something else than count, share or weight(), which privacy fixes",
    ),
    Fact(
        "reach",
        "No client moves the sums of a private run by more than the clipping norm.",
        0.0,
        private_runs.sensitivity,
        "an upload is added to the sums that clipping does not see",
    ),
    Fact(
        "refuses",
        "It refuses what it is not defined for, nothing else, and claims what is proved.",
        0.0,
        refusals.refuses,
        "needs_all, needs_steps, uploads_models, asynchronous or check() do not say what is needed",
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
    if fact.name in subject.exempt:
        return None
    try:
        return fact.measure(subject)
    except Diverged as error:
        return Finding("a finite model", "divergence", math.inf, str(error))
    except UndriftError as error:
        return Finding("a result", RAISED, math.inf, str(error))
    except Exception as error:  # raised by the user's own code
        return Finding("a result", RAISED, math.inf, first_line(error) + _place(error))


def _place(error: Exception) -> str:
    """The line of the user's file that raised an error, for the end of a sentence."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARY)]
    return f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
