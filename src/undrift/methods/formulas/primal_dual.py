"""The formulas of methods with multipliers or splittings."""

from __future__ import annotations

from typing import Any

from undrift.methods.formulas.row import MOVED, Builder, MethodRow


def _feddyn(method: Any) -> MethodRow:
    return MethodRow(
        linear="−h_k",
        center="x",
        weight="α_k",
        first=("α_k ← α/(N q_k)",),
        then=(MOVED, "h_k ← h_k − α_k Δ_k"),
        fold=("h ← h − (α/N) Σ_S Δ_k", "x ← x + (1/K) Σ_S Δ_k − h/α"),
        residual="h",
        letters={
            "h_k": "mine.h",
            "h": "server.h",
            "α": "method.alpha",
        },
        words={
            "h_k, h": "estimates of the client's gradient and of their mean, 0 at first",
            "α_k": 'α for all clients with objective "clients"',
        },
    )


def _fedpd(method: Any) -> MethodRow:
    return MethodRow(
        linear="λ_k",
        center="x",
        weight="1/η",
        then=("λ_k ← λ_k + (x_k − x)/η", "z_k ← x_k + η λ_k"),
        uploads=("z_k",),
        fold=("x ← (Σ_S q_k z_k)/(Σ_S q_k)",),
        letters={
            "λ_k": "mine.multiplier",
            "z_k": "mine.x0",
            "η": "method.eta",
            "x": "down.x if 'x' in down else mine.x0",
        },
        words={
            "λ_k": "the multiplier of the constraint that all copies agree, 0 at first",
            "x": "the client's own copy z_k after a round without communication",
        },
    )


def _fedsplit(method: Any) -> MethodRow:
    mean_of_cohort = method.average == "act"
    return MethodRow(
        start="u_k",
        center="2x − z_k",
        weight="1/η",
        work="steps towards prox_{ηf_k}(2x − z_k)",
        then=("δ_k ← 2(u_k − x)", "z_k ← z_k + δ_k"),
        uploads=("z_k",) if mean_of_cohort else ("δ_k",),
        fold=("x ← (Σ_S q_k z_k)/(Σ_S q_k)",) if mean_of_cohort else ("x ← x + Σ_S q_k δ_k",),
        ends="u_k",
        letters={"u_k": "mine.u", "z_k": "mine.z", "η": "method.eta"},
        words={
            "u_k, z_k": "kept by the client, both x⁰ at first",
        },
    )


def _feddr(method: Any) -> MethodRow:
    return MethodRow(
        start="x_k",
        center="y_k",
        weight="1/η",
        work="steps towards prox_{ηf_k}(y_k)",
        first=("y_k ← y_k + α(x̄ − x_k)",),
        then=("δ_k ← 2x_k − y_k − x̂_k", "x̂_k ← 2x_k − y_k"),
        uploads=("δ_k",),
        fold=("x̃ ← x̃ + Σ_S q_k δ_k", "x̄ ← prox_{ηg}(x̃)"),
        letters={
            "x̄": "down.x",
            "x_k": "mine.x",
            "y_k": "mine.y",
            "x̂_k": "2*mine.x - mine.y",
            "x̃": "server.x_tilde",
            "η": "method.eta",
            "α": "method.alpha",
        },
        words={
            "x_k, y_k": "kept by the client, both x⁰ at first; x̂_k = 2x_k − y_k comes from them",
            "x̄": "the server's model",
        },
    )


def _fedspeed(method: Any) -> MethodRow:
    all_clients = method.average == "all"
    corrected = "c_k ← x_k − λ_k ĝ_k"
    return MethodRow(
        linear="−ĝ_k",
        center="x",
        weight="1/λ_k",
        radius="ρ" if method.alpha > 0 else "0",
        share="α" if method.rho > 0 else "0",
        work="τ_k steps of SGD on (1 − α)∇f_k(x) + α∇f_k(x + ρ g/|g|)",
        first=("λ_k ← λ N q_k",),
        then=(MOVED, "ĝ_k ← ĝ_k − Δ_k/λ_k", *(() if all_clients else (corrected,))),
        uploads=("Δ_k",) if all_clients else ("c_k",),
        fold=("ĝ ← ĝ − (1/(λN)) Σ_S Δ_k", "x ← x + (1/K) Σ_S Δ_k − λ ĝ")
        if all_clients
        else ("x ← (1/K) Σ_S c_k",),
        residual="ĝ" if all_clients else None,
        letters={"ĝ_k": "mine.g", "λ": "method.lam", "ρ": "method.rho", "α": "method.alpha"}
        | ({"ĝ": "server.g"} if all_clients else {}),
        words={
            "ĝ_k, ĝ": "estimates of the client's gradient and of their mean, 0 at first",
            "g": "the minibatch gradient ∇f_k(x), without weight decay",
            "λ_k": 'λ for all clients with objective "clients"',
        },
    )


def _fedadmm(method: Any) -> MethodRow:
    return MethodRow(
        linear="λ_k",
        center="x",
        weight="ρ",
        then=("λ_k ← λ_k + ρ(x_k − x)", "δ_k ← x_k + λ_k/ρ − u_k", "u_k ← x_k + λ_k/ρ"),
        uploads=("δ_k",),
        fold=("x ← x + Σ_S q_k δ_k",),
        letters={"λ_k": "mine.multiplier", "u_k": "mine.u", "ρ": "method.rho"},
        words={
            "λ_k": "the multiplier of the constraint that all models agree, 0 at first",
            "u_k": "kept by the client, x⁰ at first: x = Σ q_k u_k over all clients",
        },
    )


ROWS: dict[str, Builder] = {
    "FedDyn": _feddyn,
    "FedPD": _fedpd,
    "FedSplit": _fedsplit,
    "FedDR": _feddr,
    "AsyncFedDR": _feddr,
    "FedADMM": _fedadmm,
    "FedSpeed": _fedspeed,
}
