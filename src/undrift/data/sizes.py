"""How many samples each client gets: the size skew of a partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from undrift.utils.errors import UndriftError, require, require_range, require_whole
from undrift.utils.keys import generator


class Sizes(ABC):
    """A law of client sizes, as a weight per client."""

    @abstractmethod
    def weights(self, clients: int, seed: int) -> np.ndarray:
        """What the sizes are in proportion to, `[N]`."""

    def numbers(self, samples: int, clients: int, seed: int, min_size: int = 0) -> np.ndarray:
        """n_k, `[N]`, of at least `min_size` each; together all samples."""
        return apportion(self.weights(clients, seed), samples, min_size)


@dataclass(frozen=True)
class Balanced(Sizes):
    """Every client gets the same number: `samples`, or as many as there are for all.

    What is left over when the samples do not divide evenly stays unused.
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
            f"min_size is {min_size}, but {samples} samples give each of {clients} clients {each}.",
        )
        return np.full(clients, each)


@dataclass(frozen=True)
class LogNormal(Sizes):
    """log n_k is normal with standard deviation σ: FedDyn's unbalanced data have σ = 0.3."""

    sigma: float = 0.3

    def __post_init__(self) -> None:
        require_range("sigma", self.sigma, at_least=0)

    def weights(self, clients: int, seed: int) -> np.ndarray:
        logs = self.sigma * generator(seed, "sizes").normal(size=clients)
        return np.exp(logs - logs.max())


@dataclass(frozen=True)
class PowerLaw(Sizes):
    """The r-th largest client has a size in proportion to r^−a; who is r-th is drawn.

    An exponent a of 0.73 over 100 clients gives a ratio of standard deviation to mean of 1.27, that
    of FedAvg-nonIID's Table 2; with `Classes(2)`, which shares out each class, it is 1.16.
    """

    exponent: float = 0.73

    def __post_init__(self) -> None:
        require_range("exponent", self.exponent, at_least=0)

    def weights(self, clients: int, seed: int) -> np.ndarray:
        ranks = np.arange(1, clients + 1.0)
        return generator(seed, "sizes").permutation(ranks**-self.exponent)


@dataclass(frozen=True)
class Given(Sizes):
    """The sizes themselves, one per client; of a `Classes` partition, their proportions."""

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
            f"The sizes given need {sizes.sum()} samples, but there are {samples}.",
        )
        require(
            sizes.min() >= min_size,
            f"min_size is {min_size}, but client {sizes.argmin()} is given {sizes.min()} samples.",
        )
        return sizes


SIZES: dict[str, type[Sizes]] = {
    "balanced": Balanced,
    "lognormal": LogNormal,
    "power-law": PowerLaw,
}


def as_sizes(value: Sizes | Sequence[int]) -> Sizes:
    """A law of sizes; a list of numbers is the sizes themselves."""
    if isinstance(value, Sizes):
        return value
    if hasattr(value, "tolist"):  # an array, a tensor, a column of a data frame
        value = value.tolist()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UndriftError(
            f"sizes is {value!r}, but must be Balanced(), LogNormal(σ), PowerLaw(a) or a list of "
            f"one number per client."
        )
    return Given(tuple(value))


def apportion(weights: np.ndarray, total: int, min_size: int = 0) -> np.ndarray:
    """Whole numbers in proportion to weights that add up to `total`, each at least `min_size`.

    Who would get less than `min_size` gets that, and the others share the rest in proportion;
    what rounding down leaves goes to the largest remainders.
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
    """Rounded down, with what is left going to the largest remainders."""
    numbers = np.floor(exact).astype(np.int64)
    left = total - int(numbers.sum())
    largest = np.argsort(numbers - exact, kind="stable")
    numbers[largest[:left]] += 1
    return numbers
