"""The formulas of every method: its local problem, the client's update and the server's fold.

Client k approximately minimises f_k(x) + ⟨v, x⟩ + (r/2)|x − z|² from a start. The guide and
`undrift show method` print these rows; tests evaluate them and compare the result with the
method's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MOVED = "Δ_k ← x_k − x"


@dataclass(frozen=True)
class MethodRow:
    """A method in formulas, in the letters of its paper."""

    start: str = "x"
    linear: str = "0"
    """v"""
    center: str = "–"
    """z"""
    weight: str = "0"
    """r"""
    work: str = "τ_k steps of SGD"
    first: tuple[str, ...] = ()
    """what a client computes when the model arrives"""
    then: tuple[str, ...] = (MOVED,)
    """what it computes after its local work"""
    uploads: tuple[str, ...] = ("Δ_k",)
    fold: tuple[str, ...] = ()
    """what the server computes from the replies of the cohort S"""
    ends: str = "x_k"
    """the symbol for the result of the local work"""
    letters: Mapping[str, str] = field(default_factory=dict)
    """the symbols as expressions in the method's code, for the tests"""
    words: Mapping[str, str] = field(default_factory=dict)
    """explanations of symbols that the formulas do not define"""


AVERAGE = ("x ← x + (N/K) Σ_S q_k Δ_k",)
A_NORM = {"‖a_k‖₁": "the accumulated gradient weight: for plain SGD, the number of steps"}
STALE = {"s_k": "method.staleness(client.staleness)"}
DR = {"x̄": "down.x", "x_k": "mine.x", "y_k": "mine.y", "x̂_k": "2*mine.x - mine.y"}

_splitting = MethodRow(
    start="x_k",
    center="y_k",
    weight="1/η",
    work="steps towards prox_{ηf_k}(y_k)",
    first=("y_k ← y_k + α(x̄ − x_k)",),
    then=("δ_k ← 2x_k − y_k − x̂_k", "x̂_k ← 2x_k − y_k"),
    uploads=("δ_k",),
    fold=("x̃ ← x̃ + Σ_S q_k δ_k", "x̄ ← prox_{ηg}(x̃)"),
    letters=DR | {"x̃": "server.x_tilde", "η": "method.eta", "α": "method.alpha"},
    words={
        "x_k, y_k": "kept by the client, both x⁰ at first; x̂_k = 2x_k − y_k is computed from them",
        "x̄": "the server's model",
    },
)

ROWS: dict[str, MethodRow] = {
    "DistributedSGD": MethodRow(work="one step of SGD", fold=AVERAGE),
    "FedAvg": MethodRow(fold=AVERAGE),
    "FedAvgMin": MethodRow(
        work="min_i τ_i steps of SGD",
        fold=AVERAGE,
        words={"τ_i": "the steps that the clients of the cohort are asked for"},
    ),
    "FedProx": MethodRow(center="x", weight="μ", fold=AVERAGE, letters={"μ": "method.mu"}),
    "SCAFFOLD": MethodRow(
        linear="c − c_k",
        then=(MOVED, "δ_k ← −c − Δ_k/(η‖a_k‖₁)", "c_k ← c_k + δ_k"),
        uploads=("Δ_k", "δ_k"),
        fold=(*AVERAGE, "c ← c + Σ_S q_k δ_k"),
        letters={"c": "down.c", "c_k": "mine.c"},
        words={"c, c_k": "control variates, 0 at first", **A_NORM},
    ),
    "VRLSGD": MethodRow(
        linear="−Δ_k",
        first=("Δ_k ← Δ_k + (x − x_k)/(ητ_k)",),
        then=("δ_k ← x_k − x",),
        uploads=("δ_k",),
        fold=("x ← x + Σ_S q_k δ_k",),
        letters={"Δ_k": "mine.delta", "x_k": "mine.x", "ητ_k": "1/mine.inverse"},
        words={
            "x_k": "the result of the client's previous local work",
            "ητ_k": "of that work; η‖a_k‖₁ with momentum",
        },
    ),
    "FedNova": MethodRow(
        center="x",
        weight="μ",
        then=("u_k ← (x_k − x)/‖a_k‖₁",),
        uploads=("u_k", "‖a_k‖₁", "τ_k"),
        fold=("τ_eff ← (Σ_S q_k ‖a_k‖₁)/(Σ_S q_k)", "x ← x + τ_eff (N/K) Σ_S q_k u_k"),
        letters={"μ": "method.mu"},
        words={**A_NORM, "μ": "0 by default; otherwise τ_eff is the mean of the τ_k"},
    ),
    "FedNova VR": MethodRow(
        linear="d − d_k",
        center="x",
        weight="μ",
        then=("u_k ← (x_k − x)/‖a_k‖₁", "d_k ← d_k − d − u_k/η"),
        uploads=("u_k", "‖a_k‖₁", "τ_k"),
        fold=(
            "τ_eff ← (Σ_S q_k ‖a_k‖₁)/(Σ_S q_k)",
            "x ← x + τ_eff (N/K) Σ_S q_k u_k",
            "d ← d − Σ_S q_k (u_k/η + d)",
        ),
        letters={"d": "down.d", "d_k": "mine.d", "μ": "method.mu"},
        words={"d, d_k": "normalised gradients, the server's and the client's, 0 at first"},
    ),
    "FedDyn": MethodRow(
        linear="−h_k",
        center="x",
        weight="α_k",
        then=(MOVED, "h_k ← h_k − α_k Δ_k"),
        fold=("h ← h − (α/N) Σ_S Δ_k", "x ← x + (1/K) Σ_S Δ_k − h/α"),
        letters={
            "h_k": "mine.h",
            "h": "server.h",
            "α": "method.alpha",
            "α_k": "method.alpha * client.scale",
        },
        words={
            "h_k, h": "estimates of the client's gradient and of their mean, 0 at first",
            "α_k": 'α/(N q_k): the same for all with objective "clients"',
        },
    ),
    "FedPD": MethodRow(
        linear="λ_k",
        center="x",
        weight="1/η",
        then=("λ_k ← λ_k + (x_k − x)/η", "z_k ← x_k + ηλ_k"),
        uploads=("z_k",),
        fold=("x ← Σ_S q_k z_k",),
        letters={"λ_k": "mine.multiplier", "η": "method.eta"},
        words={
            "λ_k": "the multiplier of the constraint that all copies agree, 0 at first",
            "x": "the client's own copy after a round without communication",
        },
    ),
    "FedSplit": MethodRow(
        start="u_k",
        center="2x − z_k",
        weight="1/η",
        work="steps towards prox_{ηf_k}(2x − z_k)",
        then=("δ_k ← 2(u_k − x)", "z_k ← z_k + δ_k"),
        uploads=("δ_k",),
        fold=("x ← x + Σ_S q_k δ_k",),
        ends="u_k",
        letters={"u_k": "mine.u", "z_k": "mine.z", "η": "method.eta"},
        words={"u_k, z_k": "kept by the client, both x⁰ at first"},
    ),
    "FedDR": _splitting,
    "FedLGA": MethodRow(
        work="E_k ≤ E steps of SGD",
        uploads=("Δ_k", "E_k"),
        fold=(
            "ŵ ← x + the mean of Δ_k over those with E_k = E",
            "if E_k < E:  g_k ← −Δ_k/(ηE_k)",
            "if E_k < E:  Δ_k ← Δ_k + λ g_k⟨g_k, ŵ − x − Δ_k⟩",
            "x ← x + (1/K) Σ_S Δ_k",
        ),
        letters={"λ": "method.damping"},
        words={
            "E": "the steps that a client is asked for",
            "λ": "damping, 1 in the paper; other forms of the correction are options",
        },
    ),
    "AsyncFedDR": _splitting,
    "FedAsync": MethodRow(
        center="x",
        weight="μ",
        then=(),
        uploads=("x_k",),
        fold=("w_k ← min(1, αN q_k s_k)", "x ← x + (1/K) Σ_S w_k (x_k − x)"),
        letters={
            "μ": "method.mu",
            "α": "method.alpha",
            "s_k": "method.staleness(client.staleness)",
        },
        words={
            "K": "1: replies are folded one by one, unless there is a buffer",
            "s_k": "s(u), where u is the number of updates since the client read the model",
            "μ": "0 by default",
        },
    ),
    "FedBuff": MethodRow(
        fold=("x ← x + (N/M) Σ_S q_k s_k Δ_k",),
        letters=STALE,
        words={
            "S": "the M replies in the buffer; Δ_k starts at the model that the client read",
            "s_k": "s(u), where u is the number of updates since then",
        },
    ),
}
"""The row of every method; FedNova has two."""


def row_of(method: object) -> MethodRow | None:
    """The row of a method of the library with its options; None for a user's own method."""
    name = type(method).__name__
    if getattr(method, "variance_reduction", False):
        name += " VR"
    return ROWS.get(name) if type(method).__module__.startswith("undrift.methods.") else None


def steps_of(row: MethodRow) -> Iterator[str]:
    """The formulas of clients and server in a round, one per line."""
    parts = {"arrival": row.first, "client": row.then, "server": row.fold}
    for who, formulas in parts.items():
        for number, formula in enumerate(formulas):
            yield f"{who if number == 0 else '':9}{formula}"
