"""Averaging schemes: the weights of the replies, after Li et al., ICLR 2020.

A scheme is a coefficient c for the server's own model and a weight for each reply:

    x ← c·x + Σ_k w_k·(moved)_k
"""

from collections.abc import Callable
from dataclasses import dataclass

from undrift.core.method import participation_clause
from undrift.core.replies import Replies, Weight, draws, q_draws
from undrift.utils.errors import UndriftError, require_choice


def _one(replies: Replies) -> float:
    return 1.0


def _per_draw(replies: Replies) -> float:
    return 1.0 / replies.weight(draws)


def _per_share(replies: Replies) -> float:
    return 1.0 / replies.weight(q_draws)


def _population_per_draw(replies: Replies) -> float:
    return replies.clients / replies.weight(draws)


def _sum_of_scheme_two(replies: Replies) -> float:
    return _population_per_draw(replies) * replies.weight(q_draws)


@dataclass(frozen=True)
class Scheme:
    """One way to average: x ← own·x + factor·Σ_S by(k)·(moved)_k."""

    name: str
    by: Weight
    factor: Callable[[Replies], float]
    sampling: tuple[str, ...]
    """the kinds of sampling under which the average is the one in the paper"""
    formula: str
    own: Callable[[Replies], float] = _one
    scales_loss: bool = False
    """whether client k trains on N·q_k·f_k"""


UNIFORM = ("all", "uniform", "bernoulli", "fixed", "responding")
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("full", q_draws, _one, ("all",), "x ← Σ_k q_k x_k: over all clients"),
        Scheme("original", q_draws, _one, UNIFORM, "x ← Σ_S q_k x_k + (1 − Σ_S q_k) x"),
        Scheme("I", draws, _per_draw, ("weighted",), "x ← (1/K) Σ_S x_k: S is K draws by q_k"),
        Scheme(
            "II",
            q_draws,
            _population_per_draw,
            UNIFORM,
            "x ← (N/K) Σ_S q_k x_k: the weights need not sum to one",
            own=_sum_of_scheme_two,
        ),
        Scheme(
            "transformed II",
            draws,
            _per_draw,
            UNIFORM,
            "x ← (1/K) Σ_S x_k: client k trains on N q_k f_k",
            scales_loss=True,
        ),
        Scheme(
            "renormalised",
            q_draws,
            _per_share,
            UNIFORM,
            "x ← (Σ_S q_k x_k)/(Σ_S q_k): usual, but biased",
        ),
        Scheme(
            "II-delta",
            q_draws,
            _population_per_draw,
            UNIFORM,
            "x ← x + (N/K) Σ_S q_k (x_k − x): unbiased and stable",
        ),
    )
}


def scheme_named(name: str) -> Scheme:
    """The scheme of a name; an unknown name is an error that lists all of them."""
    require_choice("scheme", name, SCHEMES)
    return SCHEMES[name]


def check_sampling(method: str, scheme: Scheme, participation: str, equal: bool) -> None:
    """Raise an error if a scheme is biased under this kind of sampling.

    With equal weights q_k, uniform sampling and sampling by q_k are the same.
    """
    if scheme.name == "full" and participation != "all":
        raise UndriftError(
            f"{method} with scheme 'full' is defined only when every client takes part"
            f"{participation_clause(participation)} choose 'II-delta', which is unbiased under "
            f"uniform sampling."
        )
    if participation in scheme.sampling or equal:
        return
    if "weighted" in scheme.sampling:
        raise UndriftError(
            f"{method} takes the plain mean over clients drawn with probability q_k, but here the "
            f"sampling is {participation!r} and the q_k differ: use cohort=ud.Weighted(K) or "
            f"objective='clients'."
        )
    raise UndriftError(
        f"{method} weights its clients for uniform sampling, but here they are drawn with "
        f"probability q_k and the q_k differ: use a uniform cohort, scheme (or weights) 'I', or "
        f"objective='clients'."
    )
