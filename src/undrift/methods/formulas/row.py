"""`MethodRow`, one method in formulas, and what the rows of several methods share.

Client k approximately minimises s·f_k(x) + ⟨v, x⟩ + (r/2)|x − z|² from a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from undrift.methods.common.server_optimizers import (
    Adagrad,
    Adam,
    Momentum,
    Plain,
    ServerOptimizer,
    Yogi,
)

MOVED = "Δ_k ← x_k − x"


@dataclass(frozen=True)
class LaterProblem:
    """What a client solves after its first local problem, in the same round."""

    start: str
    scale: str = "1"
    linear: str = "0"
    center: str = "–"
    weight: str = "0"
    outside: bool = False
    before: tuple[str, ...] = ()
    """what a client computes before each of these problems"""
    times: str = "1"
    """how often it solves one"""
    ends: str = "x_k"
    """the symbol for its solution"""


@dataclass(frozen=True)
class MethodRow:
    """A method in formulas, in the letters of its paper."""

    start: str = "x"
    scale: str = "1"
    """s"""
    linear: str = "0"
    """v"""
    center: str = "–"
    """z"""
    weight: str = "0"
    """r"""
    outside: bool = False
    """whether the pull is outside the momentum buffer"""
    radius: str = "0"
    """ρ of sharpness-aware gradients (1 − a)∇f(x) + a∇f(x + ρ g/|g|), g = ∇f(x)"""
    share: str = "0"
    """a, the weight of the second one"""
    asks: tuple[str, ...] = ()
    """what the method asks of the local work besides its end point"""
    steps: str = "τ_k"
    """the number of steps of client k; u is the round's random number"""
    work: str = "τ_k steps of SGD"
    before: tuple[str, ...] = ()
    """what the server computes before it sends its model"""
    first: tuple[str, ...] = ()
    """what a client computes when the model arrives"""
    later: LaterProblem | None = None
    """the further problems of methods with several in a round"""
    then: tuple[str, ...] = (MOVED,)
    """what it computes after its local work"""
    uploads: tuple[str, ...] = ("Δ_k",)
    fold: tuple[str, ...] = ()
    """what the server computes from the replies of the cohort S"""
    ends: str = "x_k"
    """the symbol for the result of the local work"""
    draws: bool = False
    """whether Σ_S and K count a client as often as it was drawn"""
    used: str | None = None
    """the weight that a round effectively gives to a client, w_k being the wanted one"""
    residual: str | None = None
    """the vector whose norm estimates |∇F|"""
    letters: Mapping[str, str] = field(default_factory=dict)
    """where the code has each symbol: an expression in down, mine, server, client, result, method
    """
    words: Mapping[str, str] = field(default_factory=dict)
    """explanations of symbols that the formulas do not define"""


Builder = Callable[[Any], MethodRow]
"""Builds the row of a method from its options."""

A_NORM = {"‖a_k‖₁": "the accumulated gradient weight: for plain SGD, the number of steps"}
W_TIMES_A = "w_k‖a_k‖₁"


def server_step(server: ServerOptimizer, update: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The formulas by which a server optimiser applies an update, and the places of its letters."""
    if server == Plain():
        return (f"x ← x + {update}",), {}
    lines: tuple[str, ...] = (f"u ← {update}",)
    letters = {"η_g": "method.server.lr"}
    if isinstance(server, Plain):
        return (*lines, "x ← x + η_g u"), letters
    if isinstance(server, Momentum):
        letters |= {"B": "server.momentum", "β_g": "method.server.beta"}
        return (*lines, "B ← β_g B + u/η", "x ← x + η_g η B"), letters
    second = {
        Adam: "v ← β₂ v + (1 − β₂) u²",
        Yogi: "v ← v − (1 − β₂) u² sign(v − u²)",
        Adagrad: "v ← v + u²",
    }[type(server)]  # type: ignore[index]
    letters |= {"ū": "server.mean", "v": "server.square"}
    letters |= {f"β{n}": f"method.server.beta{d}" for n, d in (("₁", 1), ("₂", 2))}
    letters |= {"ε_g": "method.server.tau"}
    lines = (*lines, "ū ← β₁ ū + (1 − β₁) u", second, "x ← x + η_g ū/(√v + ε_g)")
    return lines, letters


def steps_of(row: MethodRow) -> Iterator[str]:
    """The formulas of clients and server in a round, one per line."""
    again = () if row.later is None else (*row.later.before, *_solved(row.later))
    parts = {
        "send": row.before,
        "arrival": row.first,
        "again": again,
        "client": row.then,
        "server": row.fold,
    }
    for who, formulas in parts.items():
        for number, formula in enumerate(formulas):
            yield f"{who if number == 0 else '':9}{formula}"


def _solved(later: LaterProblem) -> tuple[str, ...]:
    """What a further problem is, in words."""
    pull = "" if later.center == "–" else f" + ({later.weight}/2)|· − {later.center}|²"
    often = "" if later.times == "1" else f", {later.times} times"
    return (f"{later.ends} ≈ argmin f_k{pull} from {later.start}{often}",)
