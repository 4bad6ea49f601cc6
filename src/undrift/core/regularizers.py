"""Convex regularisers g of the objective F = Σ q_k f_k + g, with their proximal operators.

prox_{ηg}(y) = argmin_x g(x) + |x − y|²/(2η). FedDR and AsyncFedDR take a g.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.utils.errors import require, require_range
from undrift.utils.norms import squared_norm


class Regularizer(ABC):
    """A convex function of the parameters whose prox has a closed form."""

    @abstractmethod
    def value(self, x: Tensor) -> float:
        """g(x)"""

    @abstractmethod
    def prox(self, y: Tensor, eta: float) -> Tensor:
        """prox_{ηg}(y)"""


@dataclass(frozen=True)
class L1(Regularizer):
    """g(x) = strength·|x|₁; its prox is the soft threshold, which makes parameters exactly zero."""

    strength: float

    def __post_init__(self) -> None:
        require_range("L1's strength", self.strength, at_least=0)

    def value(self, x: Tensor) -> float:
        return self.strength * float(x.cpu().double().abs().sum())

    def prox(self, y: Tensor, eta: float) -> Tensor:
        return torch.nn.functional.softshrink(y, eta * self.strength)


@dataclass(frozen=True)
class L2(Regularizer):
    """g(x) = (strength/2)·|x|²; its prox shrinks all parameters."""

    strength: float

    def __post_init__(self) -> None:
        require_range("L2's strength", self.strength, at_least=0)

    def value(self, x: Tensor) -> float:
        return self.strength / 2 * squared_norm(x)

    def prox(self, y: Tensor, eta: float) -> Tensor:
        return y / (1 + eta * self.strength)


@dataclass(frozen=True)
class Box(Regularizer):
    """g(x) = 0 if every parameter is in [low, high], else infinite; its prox clips parameters."""

    low: float
    high: float

    def __post_init__(self) -> None:
        require_range("Box's low", self.low)
        require_range("Box's high", self.high)
        require(self.low <= self.high, f"Box needs low ≤ high, not {self.low:g} > {self.high:g}.")

    def value(self, x: Tensor) -> float:
        inside = bool(((x >= self.low) & (x <= self.high)).all())
        return 0.0 if inside else float("inf")

    def prox(self, y: Tensor, eta: float) -> Tensor:
        return y.clamp(self.low, self.high)
