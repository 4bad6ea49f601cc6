"""Distributions from which quantities of the clients' devices, such as speeds, are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from undrift.utils.errors import require_range

LOWEST, HIGHEST = 2.0**-54, 1 - 2.0**-53
"""Uniform numbers are clipped to this range, so that their normal quantiles are finite."""


class Law(ABC):
    """A distribution over clients. A subclass implements `values`, its quantile function."""

    @abstractmethod
    def values(self, u: np.ndarray) -> np.ndarray:
        """The value of each client, a non-decreasing function of its uniform number in [0, 1)."""


@dataclass(frozen=True)
class Same(Law):
    """Every client has the same value."""

    value: float

    def __post_init__(self) -> None:
        require_range("Same's value", self.value)

    def values(self, u: np.ndarray) -> np.ndarray:
        return np.full(len(u), float(self.value))


@dataclass(frozen=True)
class Ladder(Law):
    """Evenly spaced values from `slowest` to `fastest`, assigned to clients at random.

    Both ends occur; a single client gets `fastest`. For a quantity that is better when smaller,
    such as latency, `slowest` is the larger number.
    """

    slowest: float
    fastest: float

    def __post_init__(self) -> None:
        require_range("Ladder's slowest", self.slowest, at_least=0)
        require_range("Ladder's fastest", self.fastest, at_least=0)

    def values(self, u: np.ndarray) -> np.ndarray:
        if len(u) == 1:
            return np.array([float(self.fastest)])
        return np.linspace(self.slowest, self.fastest, len(u))[ranks(u)]


@dataclass(frozen=True)
class Between(Law):
    """Values uniformly distributed from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        require_range("Between's low", self.low, at_least=0)
        require_range("Between's high", self.high, at_least=self.low)

    def values(self, u: np.ndarray) -> np.ndarray:
        return self.low + (self.high - self.low) * u


@dataclass(frozen=True)
class LogNormal(Law):
    """Lognormal values: the logarithm is normal with mean log `median` and deviation `sigma`."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        require_range("LogNormal's median", self.median, above=0)
        require_range("LogNormal's sigma", self.sigma, at_least=0)

    def values(self, u: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # the caller rejects ∞ with a clear message
            return self.median * np.exp(self.sigma * normal_scores(u))


@dataclass(frozen=True)
class Normal(Law):
    """Normal values, clipped to `low` … `high`."""

    mean: float
    std: float
    low: float
    high: float

    def __post_init__(self) -> None:
        require_range("Normal's mean", self.mean)
        require_range("Normal's std", self.std, at_least=0)
        require_range("Normal's low", self.low, at_least=0)
        require_range("Normal's high", self.high, at_least=self.low)

    def values(self, u: np.ndarray) -> np.ndarray:
        return np.clip(self.mean + self.std * normal_scores(u), self.low, self.high)


LAWS: dict[str, type[Law]] = {
    "same": Same,
    "ladder": Ladder,
    "between": Between,
    "lognormal": LogNormal,
    "normal": Normal,
}


def as_law(value: float | Law) -> Law:
    """A law from a law, or from a number that all clients share."""
    return value if isinstance(value, Law) else Same(value)


def correlated(u: np.ndarray, sizes: np.ndarray, rho: float, hashes: np.ndarray) -> np.ndarray:
    """Uniform numbers that are correlated with the clients' data sizes (a Gaussian copula).

    The normal quantiles of the result have correlation ρ with those of the sizes' ranks; hashes
    break ties among equal sizes. With ρ = 1 the client with the most data gets the highest number.

    Parameters
    ----------
    u
        independent uniform numbers, one per client
    sizes
        number of samples of each client
    rho
        ρ, from −1 to 1
    hashes
        hash of each client's id
    """
    require_range("The correlation with the data sizes", rho, at_least=-1, at_most=1)
    if rho == 0:
        return u
    order = np.lexsort((hashes, sizes))
    by_size = np.empty(len(u))
    by_size[order] = (np.arange(len(u)) + 0.5) / len(u)
    mixed = rho * normal_scores(by_size) + np.sqrt(1 - rho**2) * normal_scores(u)
    return np.clip(torch.special.ndtr(torch.from_numpy(mixed)).numpy(), LOWEST, HIGHEST)


def normal_scores(u: np.ndarray) -> np.ndarray:
    """The standard normal quantile of each number in [0, 1), clipped so that it is finite."""
    return torch.special.ndtri(torch.from_numpy(np.clip(u, LOWEST, HIGHEST))).numpy()


def ranks(u: np.ndarray) -> np.ndarray:
    """The rank of each number among all, from 0 for the lowest."""
    found = np.empty(len(u), dtype=np.int64)
    found[np.argsort(u, kind="stable")] = np.arange(len(u))
    return found
