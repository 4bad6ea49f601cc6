"""The formulas of methods in which every client also trains a model of its own."""

from __future__ import annotations

from typing import Any

from undrift.methods.formulas.averaging import UNIFORM_MEAN, fedavg
from undrift.methods.formulas.row import W_TIMES_A, Builder, LaterProblem, MethodRow

W_STEP = "w_k ← w_k − η_w λ (w_k − θ_k)"


def _ditto(method: Any) -> MethodRow:
    return fedavg(
        method,
        later=LaterProblem(start="v_k", center="x", weight="λ", ends="v_k"),
        letters={"v_k": "mine.v", "λ": "method.lam"},
        words={"v_k": "the client's own model, x⁰ at first"},
    )


def _pfedme(method: Any) -> MethodRow:
    return MethodRow(
        first=("w_k ← x",),
        start="w_k",
        center="w_k",
        weight="λ",
        ends="θ_k",
        later=LaterProblem(
            start="w_k", center="w_k", weight="λ", before=(W_STEP,), times="R − 1", ends="θ_k"
        ),
        then=(W_STEP, "Δ_k ← w_k − x"),
        fold=(f"x ← x + β {UNIFORM_MEAN}",),
        draws=True,
        used=W_TIMES_A,
        letters={
            "θ_k": "mine.theta",
            "λ": "method.lam",
            "η_w": "method.eta",
            "R": "method.R",
            "β": "method.beta",
        },
        words={
            "θ_k": "the client's own model: the last one of the round stays with it",
            "η_w": "eta, the step size of w_k",
        },
    )


ROWS: dict[str, Builder] = {"Ditto": _ditto, "PFedMe": _pfedme}
