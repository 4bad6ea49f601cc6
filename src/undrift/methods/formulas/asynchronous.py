"""The formulas of methods whose server uses replies as they arrive."""

from __future__ import annotations

from typing import Any

from undrift.methods.common.staleness import Constant, Hinge, Polynomial, Staleness
from undrift.methods.formulas.row import W_TIMES_A, Builder, MethodRow, server_step

S_WORDS = "s(u), where u_k is the number of updates since the client read the model"


def _staleness(staleness: Staleness) -> tuple[tuple[str, ...], dict[str, str]]:
    """The formula of s_k and the places of its letters."""
    letters = {"u_k": "client.staleness"}
    if isinstance(staleness, Constant):
        return ("s_k ← 1",), letters
    letters |= {"a": "method.staleness.a"}
    if isinstance(staleness, Polynomial):
        return ("s_k ← pow(1 + u_k, −a)",), letters
    assert isinstance(staleness, Hinge)
    return ("s_k ← 1/(1 + a max(0, u_k − b))",), letters | {"b": "method.staleness.b"}


def _fedasync(method: Any) -> MethodRow:
    first, letters = _staleness(method.staleness)
    return MethodRow(
        center="x",
        weight="μ",
        outside=True,
        then=(),
        uploads=("x_k",),
        fold=(*first, "w_k ← min(1, αN q_k s_k)", "x ← x + (1/K) Σ_S w_k (x_k − x)"),
        used=W_TIMES_A,
        letters=letters | {"μ": "method.mu", "α": "method.alpha"},
        words={
            "K": "1: replies are folded one by one, unless there is a buffer",
            "s_k": S_WORDS,
            "μ": "0 by default",
        },
    )


def _fedbuff(method: Any) -> MethodRow:
    first, letters = _staleness(method.staleness)
    fold, more = server_step(method.server, "(N/M) Σ_S q_k s_k Δ_k")
    return MethodRow(
        fold=(*first, *fold),
        used=W_TIMES_A,
        letters=letters | more,
        words={
            "S": "the M replies in the buffer; Δ_k starts at the model that the client read",
            "s_k": S_WORDS,
        },
    )


ROWS: dict[str, Builder] = {"FedAsync": _fedasync, "FedBuff": _fedbuff}
