"""Random amounts of local work, and clients that leave part of their work undone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from undrift.utils.errors import require, require_choice, require_range, require_whole
from undrift.utils.keys import borrowed_generator, generator, hashes, uniforms

PER = ("round", "client")


class RandomAmount(ABC):
    """A random whole number of epochs or steps, new in every round or fixed for each client."""

    per: str

    @abstractmethod
    def drawn(self, rng: np.random.Generator) -> int:
        """One random amount."""

    def of(self, client: Hashable, round: int, seed: int) -> int:
        """The amount of a client in a round; it depends on these three arguments only."""
        when = round if self.per == "round" else 0
        return self.drawn(borrowed_generator(seed, f"work per {self.per}", when, client))


@dataclass(frozen=True)
class UniformAmount(RandomAmount):
    """A whole number from `low` to `high`, all equally likely: FedNova's E ~ U(2, 5).

    Parameters
    ----------
    low, high
        the smallest and the largest amount, both included
    per
        "round": a new amount in every round; "client": one amount for each client
    """

    low: int
    high: int
    per: str = "round"

    def __post_init__(self) -> None:
        require_whole("UniformAmount's low", self.low, at_least=1)
        require_whole("UniformAmount's high", self.high, at_least=self.low)
        require_choice("UniformAmount's per", self.per, PER)

    def drawn(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True)
class NormalAmount(RandomAmount):
    """N(mean, std²), rounded and clipped: FedNova's τ ~ N(30, 20²) within [1, 96].

    Parameters
    ----------
    mean, std
        mean and standard deviation of the normal distribution
    low, high
        the smallest and the largest amount (high = None: no upper bound)
    per
        "round": a new amount in every round; "client": one amount for each client
    """

    mean: float
    std: float
    low: int = 1
    high: int | None = None
    per: str = "round"

    def __post_init__(self) -> None:
        require_range("NormalAmount's mean", self.mean)
        require_range("NormalAmount's std", self.std, at_least=0)
        require_whole("NormalAmount's low", self.low, at_least=1)
        if self.high is not None:
            require_whole("NormalAmount's high", self.high, at_least=self.low)
        require_choice("NormalAmount's per", self.per, PER)

    def drawn(self, rng: np.random.Generator) -> int:
        found = max(self.low, round(rng.normal(self.mean, self.std)))
        return found if self.high is None else min(found, self.high)


@dataclass(frozen=True)
class Unfinished:
    """A share ρ of every cohort is slow and leaves work undone (FedLGA).

    A slow client that is asked for E epochs (or steps) does E − τ + 1 of them, with τ uniform on
    {1 … longest}. Which clients are slow, and their τ, changes in every round.

    Parameters
    ----------
    share
        ρ, the share of the cohort that is slow
    longest
        τ_max; None for E − 1
    drop
        whether the server drops slow clients: one with τ > 1 then does no work at all
    """

    share: float = 0.5
    longest: int | None = None
    drop: bool = False

    def __post_init__(self) -> None:
        require_range("Unfinished's share", self.share, at_least=0, at_most=1)
        if self.longest is not None:
            require_whole("Unfinished's longest", self.longest, at_least=1)

    def managed(
        self, asked: Mapping[Hashable, int], round: int, seed: int
    ) -> dict[Hashable, int | None]:
        """The amount that each client of a cohort does of what is asked; None for all of it."""
        ids = list(asked)
        order = np.argsort(uniforms(seed, "slow", round, hashes(ids)), kind="stable")
        amounts: dict[Hashable, int | None] = dict.fromkeys(ids)
        for place in order[: round_half_up(self.share * len(ids))]:
            client = ids[place]
            full = asked[client]
            longest = max(1, full - 1) if self.longest is None else self.longest
            require(
                longest <= full,
                f"Unfinished's longest is {longest}, but must be at most {full}, the work that "
                f"client {client!r} is asked for.",
            )
            tau = int(generator(seed, "unfinished", round, client).integers(1, longest + 1))
            amounts[client] = 0 if self.drop and tau > 1 else full - tau + 1
        return amounts


def round_half_up(value: float) -> int:
    """The nearest whole number; halves are rounded up."""
    return int(np.floor(value + 0.5))
