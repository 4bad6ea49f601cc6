"""The formulas of methods whose clients keep a vector that corrects or replaces their moves."""

from __future__ import annotations

from typing import Any

from undrift.methods.formulas.averaging import UNIFORM_MEAN
from undrift.methods.formulas.row import A_NORM, MOVED, W_TIMES_A, Builder, MethodRow, server_step


def _scaffold(method: Any) -> MethodRow:
    first = method.option == "I"
    fold, letters = server_step(method.server, UNIFORM_MEAN)
    letters |= {"c": "down.c", "c_k": "mine.c"}
    words = {"c, c_k": "control variates, 0 at first"}
    if first:
        letters |= {"g_k": "result.first_gradient"}
        words |= {"g_k": "∇f_k(x), over all samples"}
        change = "δ_k ← g_k − c_k"
    else:
        words |= A_NORM
        change = "δ_k ← −c − Δ_k/(η‖a_k‖₁)"
    return MethodRow(
        linear="c − c_k",
        asks=("first_gradient",) if first else (),
        then=(MOVED, change, "c_k ← c_k + δ_k"),
        uploads=("Δ_k", "δ_k"),
        fold=(*fold, "c ← c + Σ_S q_k δ_k"),
        residual="c",
        letters=letters,
        words=words,
    )


def _vrlsgd(method: Any) -> MethodRow:
    return MethodRow(
        linear="−Δ_k",
        first=("Δ_k ← Δ_k + (x − x_k)/(ητ_k)",),
        then=("δ_k ← x_k − x", "ητ_k ← η‖a_k‖₁"),
        uploads=("δ_k",),
        fold=("x ← x + Σ_S q_k δ_k",),
        letters={"Δ_k": "mine.delta", "x_k": "mine.x", "ητ_k": "1/mine.inverse"},
        words={
            "x_k": "the result of the client's previous local work",
            "ητ_k": "of that work; η‖a_k‖₁ with momentum",
        },
    )


def _scaffnew(method: Any) -> MethodRow:
    return MethodRow(
        linear="−h_k",
        steps="1" if method.p == 1 else "1 + ⌊ln(1 − u)/ln(1 − p)⌋",
        work="τ ~ Geometric(p) steps of SGD, the same for all",
        first=("h_k ← h_k + (x − x_k)/γ_k",),
        then=("δ_k ← x_k − x", "γ_k ← η‖a_k‖₁/(p τ_k)"),
        uploads=("δ_k",),
        fold=("x ← x + Σ_S q_k δ_k",),
        letters={
            "h_k": "mine.h",
            "x_k": "mine.x",
            "γ_k": "1/mine.inverse",
            "p": "method.p",
        },
        words={
            "x_k": "the result of the client's previous local work",
            "γ_k": "η/p for plain SGD, of that work",
            "h_k": "0 at first; their mean stays 0",
        },
    )


def _fedvarp(method: Any) -> MethodRow:
    fold, letters = server_step(method.server, "η (ȳ + (N/K) Σ_S q_k δ_k)")
    return _last_moves((*fold, "ȳ ← ȳ + Σ_S q_k δ_k"), letters)


def _mifa(method: Any) -> MethodRow:
    fold, letters = server_step(method.server, "η ȳ")
    return _last_moves(("ȳ ← ȳ + Σ_S q_k δ_k", *fold), letters)


def _last_moves(fold: tuple[str, ...], letters: dict[str, str]) -> MethodRow:
    return MethodRow(
        then=("δ_k ← (x_k − x)/η − y_k", "y_k ← y_k + δ_k"),
        uploads=("δ_k",),
        fold=fold,
        used=W_TIMES_A,
        letters=letters | {"y_k": "mine.y", "ȳ": "server.y"},
        words={"y_k, ȳ": "the client's last move divided by its rate, and Σ q_k y_k; 0 at first"},
    )


ROWS: dict[str, Builder] = {
    "SCAFFOLD": _scaffold,
    "VRLSGD": _vrlsgd,
    "FedVARP": _fedvarp,
    "MIFA": _mifa,
    "Scaffnew": _scaffnew,
}
