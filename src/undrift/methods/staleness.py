"""How much less an old reply counts: the staleness functions of FedAsync."""

from collections.abc import Callable

import torch

from undrift.errors import require_choice, require_range
from undrift.problem import Number

STALENESS = ("constant", "polynomial", "hinge")


def discount(method: str, kind: str, a: float, b: float) -> Callable[[Number], Number]:
    """s(u) for a reply that is u updates old: 1 for u = 0, and less for older ones.

    constant
        1
    polynomial
        (1 + u)^(−a)
    hinge
        1 up to u = b, then 1 / (1 + a(u − b))
    """
    require_choice(f"{method}'s staleness", kind, STALENESS)
    require_range(f"{method}'s a", a, at_least=0)
    require_range(f"{method}'s b", b, at_least=0)
    if kind == "constant":
        return lambda u: 1.0
    if kind == "polynomial":
        return lambda u: (1.0 + u) ** -a
    return lambda u: 1.0 / (1.0 + a * _beyond(u, b))


def _beyond(u: Number, b: float) -> Number:
    """max(0, u − b)"""
    return (u - b).clamp(min=0) if isinstance(u, torch.Tensor) else max(0.0, u - b)
