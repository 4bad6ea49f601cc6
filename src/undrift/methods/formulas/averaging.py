"""The formulas of methods that average the clients' moves."""

from __future__ import annotations

from typing import Any

from undrift.methods.formulas.row import A_NORM, MOVED, W_TIMES_A, Builder, MethodRow, server_step

UNIFORM_MEAN = "(N/K) Σ_S q_k Δ_k"
SCHEME_UPDATES = {
    "full": "Σ_S q_k Δ_k",
    "original": "Σ_S q_k Δ_k",
    "I": "(1/K) Σ_S Δ_k",
    "II": "(N/K) Σ_S q_k (x + Δ_k) − x",
    "transformed II": "(1/K) Σ_S Δ_k",
    "renormalised": "(Σ_S q_k Δ_k)/(Σ_S q_k)",
    "II-delta": UNIFORM_MEAN,
}
"""The update of the server's model under each averaging scheme of FedAvg."""


def fedavg(method: Any, **others: Any) -> MethodRow:
    """FedAvg's row; `others` are what a method derived from it changes."""
    fold, letters = server_step(method.server, SCHEME_UPDATES[method.scheme])
    options: dict[str, Any] = {
        "scale": "N q_k" if method.scheme == "transformed II" else "1",
        "fold": fold,
        "used": W_TIMES_A,
        "draws": True,
    }
    letters |= others.pop("letters", {})
    return MethodRow(**options | others, letters=letters)


def _fedavgmin(method: Any) -> MethodRow:
    return fedavg(
        method,
        steps="least",
        work="min_i τ_i steps of SGD",
        words={"τ_i": "the steps that the clients of the cohort are asked for"},
    )


def _fedprox(method: Any) -> MethodRow:
    outside = not method.pull_inside_momentum
    return fedavg(method, center="x", weight="μ", outside=outside, letters={"μ": "method.mu"})


def _fedsam(method: Any) -> MethodRow:
    return fedavg(
        method,
        radius="ρ",
        share="1" if method.rho > 0 else "0",
        work="τ_k steps of SGD on ∇f_k(x + ρ g/|g|)",
        letters={"ρ": "method.rho"},
        words={"g": "the minibatch gradient ∇f_k(x), without weight decay"},
    )


def _fedcm(method: Any) -> MethodRow:
    plain = fedavg(method)
    return fedavg(
        method,
        scale=f"α {plain.scale}" if plain.scale != "1" else "α",
        linear="(1 − α) D",
        uploads=("Δ_k", "‖a_k‖₁"),
        fold=(
            f"D ← −({SCHEME_UPDATES[method.scheme]})/(η (Σ_S ω_k ‖a_k‖₁)/(Σ_S ω_k))",
            *plain.fold,
        ),
        used=None,
        letters={
            "α": "method.alpha",
            "D": "down.d",
            "ω_k": "1" if method.scheme in ("I", "transformed II") else "client.q",
        },
        words={
            "D": "the mean direction of the previous cohort, 0 at first",
            "ω_k": 'q_k, or 1 with the schemes "I" and "transformed II"',
            **A_NORM,
        },
    )


def _fedacg(method: Any) -> MethodRow:
    return MethodRow(
        before=("x̂ ← x + λ m",),
        start="x̂",
        center="x̂",
        weight="β",
        then=("Δ_k ← x_k − x̂",),
        fold=(f"m ← λ m + {UNIFORM_MEAN}", "x ← x + m"),
        draws=True,
        used=W_TIMES_A,
        letters={
            "x̂": "down.x",
            "x": "server.x",
            "m": "server.m",
            "λ": "method.lam",
            "β": "method.beta",
        },
        words={
            "x": "the server's model, which is reported and evaluated, and is not sent",
            "m": "the server's momentum, 0 at first",
            "x̂": "the look-ahead model, where momentum alone would take x; the only vector that is "
            "sent, from which clients start, to which they are pulled, and from which their moves "
            "are measured",
        },
    )


def _fedexp(method: Any) -> MethodRow:
    reported = "(w + x)/2" if method.reports == "last two" else "w"
    return MethodRow(
        uploads=("Δ_k", "|Δ_k|²"),
        then=(MOVED, "|Δ_k|² ← ⟨Δ_k, Δ_k⟩"),
        fold=(
            "Δ̄ ← (Σ_S q_k Δ_k)/(Σ_S q_k)",
            "s ← (Σ_S q_k |Δ_k|²)/(Σ_S q_k)",
            "η_g ← max(1, s/(2(⟨Δ̄, Δ̄⟩ + ε)))",
            f"w ← x + η_g {UNIFORM_MEAN}",
            f"x̄ ← {reported}",
            "x ← w",
        ),
        draws=True,
        used=W_TIMES_A,
        letters={"x": "server.last", "x̄": "server.x", "ε": "method.eps"},
        words={"x": "the last model, which is sent", "x̄": "the model that is reported"},
    )


def _mimelite(method: Any) -> MethodRow:
    fold, letters = server_step(method.server, UNIFORM_MEAN)
    return MethodRow(
        scale="1 − β",
        linear="β m",
        asks=("first_gradient",),
        uploads=("Δ_k", "g_k"),
        fold=(*fold, "m ← (1 − β)(N/K) Σ_S q_k g_k + β m"),
        draws=True,
        letters=letters | {"β": "method.beta", "m": "down.m", "g_k": "result.first_gradient"},
        words={"m": "the server's momentum, 0 at first", "g_k": "∇f_k(x), over all samples"},
    )


def _fednova(method: Any) -> MethodRow:
    rule = method.tau_eff or ("steps" if method.mu > 0 else "progress")
    work = "‖a_k‖₁" if rule == "progress" else "τ_k"
    uniform = method.weights == "II"
    mean = f"(Σ_S q_k {work})/(Σ_S q_k)" if uniform else f"(1/K) Σ_S {work}"
    move = "(u_k − η d)" if method.variance_reduction else "u_k"
    total = f"(N/K) Σ_S q_k {move}" if uniform else f"(1/K) Σ_S {move}"
    fold, letters = server_step(method.server, f"τ_eff {total}")
    letters |= {"μ": "method.mu"}
    numbers: tuple[str, ...] = ()
    if isinstance(rule, str):
        fold, numbers = (f"τ_eff ← {mean}", *fold), ("‖a_k‖₁", "τ_k")
    else:
        letters |= {"τ_eff": "method.tau_eff"}
    words = {**A_NORM}
    then: tuple[str, ...] = ("u_k ← (x_k − x)/‖a_k‖₁",)
    linear = "0"
    if method.variance_reduction:
        linear = "d − d_k"
        then = ("u_k ← (x_k − x)/‖a_k‖₁ + η d", "d_k ← d_k − u_k/η")
        fold = (*fold, "d ← d − Σ_S q_k u_k/η")
        letters |= {"d": "down.d", "d_k": "mine.d"}
        words = {"d, d_k": "normalised gradients, the server's and the client's, 0 at first"}
    else:
        words["μ"] = "0 by default; otherwise τ_eff is the mean of the τ_k"
    return MethodRow(
        linear=linear,
        center="x",
        weight="μ",
        outside=True,
        then=then,
        uploads=("u_k", *numbers),
        fold=fold,
        draws=not method.variance_reduction,
        used=None if method.variance_reduction else "w_k",
        residual="d" if method.variance_reduction else None,
        letters=letters,
        words=words,
    )


def _fedlga(method: Any) -> MethodRow:
    last = method.gradient == "last"
    capped = "max(−1/⟨g_k, g_k⟩, min(λ, 1/⟨g_k, g_k⟩))" if method.cap else "λ"
    gradient = () if last else ("g_k ← −Δ_k/(ηE_k)",)
    lines = {
        "none": (),
        "extrapolate": ("Δ_k ← Δ_k E/E_k",),
        "literal": (
            "ŵ ← x + (Σ_S c_k Δ_k)/(Σ_S c_k)",
            *gradient,
            f"Δ_k ← Δ_k + (1 − c_k) {capped} g_k ⟨g_k, ŵ − x − Δ_k⟩",
        ),
        "diagonal": (
            "ŵ ← x + (Σ_S c_k Δ_k)/(Σ_S c_k)",
            *gradient,
            f"Δ_k ← Δ_k + (1 − c_k) {capped} g_k g_k (ŵ − x − Δ_k)",
        ),
    }[method.form]
    fold, letters = server_step(method.server, "(1/K) Σ_S Δ_k")
    letters |= {"λ": "method.damping"} | ({"g_k": "result.last_gradient"} if last else {})
    return MethodRow(
        asks=("last_gradient",) if last else (),
        work="E_k ≤ E steps of SGD",
        uploads=("Δ_k", "E_k", "E", *(("g_k",) if last else ())),
        fold=(*lines, *fold),
        draws=True,
        used={"none": W_TIMES_A, "extrapolate": "w_k"}.get(method.form),
        letters=letters,
        words={
            "E": "the steps that a client is asked for",
            "c_k": "1 for a client with E_k = E, else 0; if all are 0, nothing is corrected",
            "λ": "damping, 1 in the paper; other forms of the correction are options",
        },
    )


ROWS: dict[str, Builder] = {
    "DistributedSGD": lambda method: fedavg(method, steps="1", work="one step of SGD"),
    "FedAvg": fedavg,
    "FedProx": _fedprox,
    "FedNova": _fednova,
    "FedAvgMin": _fedavgmin,
    "FedCM": _fedcm,
    "FedACG": _fedacg,
    "FedExP": _fedexp,
    "MimeLite": _mimelite,
    "FedSAM": _fedsam,
    "FedLGA": _fedlga,
}
