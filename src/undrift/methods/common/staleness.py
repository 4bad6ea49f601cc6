"""Staleness functions s(u), which give old replies less weight (Xie et al., FedAsync, 2019)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from undrift.core.problem import Number
from undrift.utils.errors import require_range, require_type


class Staleness(ABC):
    """s(u), the factor on the weight of a reply whose model is u updates old; s(0) = 1."""

    @abstractmethod
    def __call__(self, updates: Number) -> Number:
        """s(u), for one client or a `[C, 1]` tensor of several."""


@dataclass(frozen=True)
class Constant(Staleness):
    """s(u) = 1: old replies have the same weight as fresh ones."""

    def __call__(self, updates: Number) -> Number:
        return 1.0


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s(u) = (1 + u)^(−a)"""

    a: float = 0.5

    def __post_init__(self) -> None:
        require_range("Polynomial's a", self.a, at_least=0)

    def __call__(self, updates: Number) -> Number:
        return (1.0 + updates) ** -self.a


@dataclass(frozen=True)
class Hinge(Staleness):
    """s(u) = 1 up to u = b, then 1 / (1 + a(u − b))"""

    a: float = 10.0
    b: float = 4.0

    def __post_init__(self) -> None:
        require_range("Hinge's a", self.a, at_least=0)
        require_range("Hinge's b", self.b, at_least=0)

    def __call__(self, updates: Number) -> Number:
        beyond = updates - self.b
        beyond = beyond.clamp(min=0) if isinstance(beyond, torch.Tensor) else max(0.0, beyond)
        return 1.0 / (1.0 + self.a * beyond)


def require_staleness(method: str, staleness: object) -> Staleness:
    """The argument itself; raise an error if it is not a staleness function."""
    require_type(
        f"{method}'s staleness",
        staleness,
        Staleness,
        "one of ud.staleness, e.g. ud.staleness.Polynomial(0.5)",
    )
    assert isinstance(staleness, Staleness)
    return staleness
