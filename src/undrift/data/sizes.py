"""The size skew of a partition: laws for how many samples each client gets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from undrift.utils.errors import UndriftError, require, require_range, require_whole
from undrift.utils.keys import generator


class Sizes(ABC):
    """A law of client sizes. A subclass implements `weights`."""

    @abstractmethod
    def weights(self, clients: int, seed: int) -> np.ndarray:
        """Numbers to which the clients' sizes are proportional, `[N]`."""

    def numbers(self, samples: int, clients: int, seed: int, min_size: int = 0) -> np.ndarray:
        """The sizes n_k, `[N]`: each at least `min_size`, with `samples` as their sum."""
        return apportion(self.weights(clients, seed), samples, min_size)


@dataclass(frozen=True)
class Balanced(Sizes):
    """Every client gets the same number of samples.

    Without `samples` each client gets ⌊n/N⌋, and the remaining samples stay unused.

    Parameters
    ----------
    samples
        number of samples per client; None for as many as possible
    """

    samples: int | None = None

    def __post_init__(self) -> None:
        if self.samples is not None:
            require_whole("samples per client", self.samples, at_least=1)

    def weights(self, clients: int, seed: int) -> np.ndarray:
        return np.ones(clients)

    def numbers(self, samples: int, clients: int, seed: int, min_size: int = 0) -> np.ndarray:
        each = samples // clients if self.samples is None else self.samples
        require(
            each * clients <= samples,
            f"{clients} clients with {each} samples each need {each * clients} samples, but there "
            f"are {samples}.",
        )
        require(
            each >= min_size,
            f"min_size is {min_size}, but each of {clients} clients gets only {each} samples.",
        )
        return np.full(clients, each)


@dataclass(frozen=True)
class LogNormal(Sizes):
    """Lognormal sizes: log n_k is normal with standard deviation σ (FedDyn: σ = 0.3).

    Parameters
    ----------
    sigma
        σ, the standard deviation of log n_k; 0 for equal sizes
    """

    sigma: float = 0.3

    def __post_init__(self) -> None:
        require_range("sigma", self.sigma, at_least=0)

    def weights(self, clients: int, seed: int) -> np.ndarray:
        logs = self.sigma * generator(seed, "sizes").normal(size=clients)
        return np.exp(logs - logs.max())


@dataclass(frozen=True)
class PowerLaw(Sizes):
    """Power-law sizes: the r-th largest client has a size proportional to r^−a.

    The clients' ranks are random. With 100 clients, an exponent a of 0.73 gives a ratio of standard
    deviation to mean of 1.27, as in FedAvg-nonIID's Table 2; with `Classes(2)`, which shares out
    each class separately, the ratio is 1.16.

    Parameters
    ----------
    exponent
        a: 0 for equal sizes; the larger, the more unequal
    """

    exponent: float = 0.73

    def __post_init__(self) -> None:
        require_range("exponent", self.exponent, at_least=0)

    def weights(self, clients: int, seed: int) -> np.ndarray:
        ranks = np.arange(1, clients + 1.0)
        return generator(seed, "sizes").permutation(ranks**-self.exponent)


@dataclass(frozen=True)
class DirichletSizes(Sizes):
    """Dirichlet sizes: the clients' shares of the samples are drawn from Dirichlet(α).

    This is the quantity skew of NIID-Bench (Li et al., ICDE 2022, α = 0.5), with `IID`. The shares
    are drawn up to `draws` times, until every client has `min_size` samples; if no draw gives them
    enough, small clients get `min_size` and the others share the rest.

    Parameters
    ----------
    alpha
        α: the smaller, the more unequal
    draws
        how many times to draw the shares to reach `min_size`
    """

    alpha: float = 0.5
    draws: int = field(default=100, kw_only=True)

    def __post_init__(self) -> None:
        require_range("alpha", self.alpha, above=0, at_most=1e6)
        require_whole("draws", self.draws, at_least=1)

    def weights(self, clients: int, seed: int) -> np.ndarray:
        return self._drawn(clients, seed, 0)

    def numbers(self, samples: int, clients: int, seed: int, min_size: int = 0) -> np.ndarray:
        for draw in range(self.draws):
            shares = self._drawn(clients, seed, draw)
            if samples * shares.min() >= min_size:
                break
        return apportion(shares, samples, min_size)

    def _drawn(self, clients: int, seed: int, draw: int) -> np.ndarray:
        shares: np.ndarray = generator(seed, "sizes", draw).dirichlet(np.full(clients, self.alpha))
        return shares


@dataclass(frozen=True)
class Given(Sizes):
    """Sizes given as a list, one per client; `Classes` uses only their proportions.

    Parameters
    ----------
    sizes
        number of samples of each client
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        for k, size in enumerate(self.sizes):
            require_whole(f"The size of client {k}", size, at_least=1)

    def weights(self, clients: int, seed: int) -> np.ndarray:
        require(
            len(self.sizes) == clients,
            f"{len(self.sizes)} sizes are given for {clients} clients.",
        )
        return np.array(self.sizes, dtype=float)

    def numbers(self, samples: int, clients: int, seed: int, min_size: int = 0) -> np.ndarray:
        sizes = self.weights(clients, seed).astype(np.int64)
        require(
            sizes.sum() <= samples,
            f"The given sizes need {sizes.sum()} samples, but there are {samples}.",
        )
        require(
            sizes.min() >= min_size,
            f"min_size is {min_size}, but sizes gives client {sizes.argmin()} only {sizes.min()}.",
        )
        return sizes


SIZES: dict[str, type[Sizes]] = {
    "balanced": Balanced,
    "lognormal": LogNormal,
    "power-law": PowerLaw,
    "dirichlet": DirichletSizes,
}


def as_sizes(value: Sizes | Sequence[int]) -> Sizes:
    """A law of sizes from a law, or from a list with the size of each client."""
    if isinstance(value, Sizes):
        return value
    if hasattr(value, "tolist"):  # an array, a tensor or a column of a data frame
        value = value.tolist()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UndriftError(
            f"sizes is {value!r}, but must be Balanced(), LogNormal(σ), PowerLaw(a), "
            f"DirichletSizes(α) or a list of one number per client."
        )
    return Given(tuple(value))


def apportion(weights: np.ndarray, total: int, min_size: int = 0) -> np.ndarray:
    """Integers that are proportional to weights and add up to `total`, each at least `min_size`.

    Clients whose proportional share is below `min_size` get `min_size`, and the others share the
    rest. Shares are rounded by the largest-remainder method.
    """
    clients = len(weights)
    require(
        clients * min_size <= total,
        f"min_size is {min_size}, but there are only {total} samples for {clients} clients.",
    )
    numbers = np.full(clients, min_size, dtype=np.int64)
    free = np.ones(clients, dtype=bool)
    while free.any():
        rest = total - min_size * int((~free).sum())
        shares = weights[free] if weights[free].sum() > 0 else np.ones(int(free.sum()))
        exact = shares / shares.sum() * rest
        low = exact < min_size
        if not low.any():
            numbers[free] = _rounded(exact, rest)
            break
        free[np.flatnonzero(free)[low]] = False
    return numbers


def _rounded(exact: np.ndarray, total: int) -> np.ndarray:
    """Round numbers to integers with a given sum, by the largest-remainder method."""
    numbers = np.floor(exact).astype(np.int64)
    left = total - int(numbers.sum())
    largest = np.argsort(numbers - exact, kind="stable")
    numbers[largest[:left]] += 1
    return numbers
