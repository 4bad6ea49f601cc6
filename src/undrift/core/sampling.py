"""Samplers: which clients take part in a round.

A loop asks its sampler for a cohort in every round; methods check that they are defined for the
kind of sampling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from undrift.core.clients import Roster
from undrift.utils.errors import (
    UndriftError,
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
)
from undrift.utils.keys import generator, uniforms

Cohort = dict[Hashable, int]
"""The ids of the clients that take part, each with its draws: how often it was drawn."""

PARTICIPATIONS = ("all", "uniform", "weighted", "bernoulli", "fixed")
"""The kinds of sampling that a sampler can declare."""


class Sampler(ABC):
    """Chooses the cohort of every round.

    Your own sampler is a subclass with two members:

    - `participation`, the kind of sampling, by which methods decide whether they are defined for
      it: "all" (every client, every round), "uniform" (a fixed number without replacement),
      "weighted" (with replacement, by q_k), "bernoulli" (each independently with one probability)
      or "fixed" (chosen by a rule). Methods are unbiased only if the sampler tells the truth.
    - `draw`, which returns the cohort of a round.

    `draw` must be a function of its arguments alone, because loops ask for a cohort more than once
    and in advance; for random numbers, make a generator from (seed, round). Override `most` and
    `check` where cohorts are bounded or a roster may be unsuitable.

        class LargestFirst(ud.Sampler):  # the K available clients with the most samples
            participation = "fixed"

            def __init__(self, K):
                self.K = K

            def draw(self, roster, seed, round, among=None):
                sizes = roster.sizes.numpy().copy()
                if among is not None:
                    sizes[~among] = 0
                largest = [k for k in (-sizes).argsort()[: self.K] if sizes[k] > 0]
                return {roster.ids[k]: 1 for k in sorted(largest)}

        ud.train(ud.FedAvg(), cohort=LargestFirst(10), …)
    """

    participation: str
    """the kind of sampling: one of `PARTICIPATIONS`"""

    @abstractmethod
    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        """The cohort of a round, counted from 0: client ids with their draws (usually 1).

        Parameters
        ----------
        roster
            all clients: `roster.ids`, `roster.sizes` (n_k) and `roster.weights` (q_k), in one order
        seed
            the seed of the run
        among
            a boolean mask over `roster.ids` of the clients that may be drawn; None for all. If too
            few are left, the cohort is smaller or empty.
        """

    def check(self, roster: Roster) -> None:
        """Raise an `UndriftError` if the sampler cannot draw from this roster."""

    def most(self, roster: Roster) -> int:
        """The largest number of clients in a cohort."""
        return len(roster)

    def mean(self, roster: Roster) -> float:
        """The mean number of clients in a cohort, about; evaluation is spaced by it."""
        return self.most(roster)

    def kind(self, roster: Roster) -> str:
        """The kind of sampling from this roster: K of K clients are "all", for example."""
        return self.participation


@dataclass(frozen=True)
class All(Sampler):
    """Every client, every round."""

    participation = "all"

    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        if among is None:
            return dict.fromkeys(roster.ids, 1)
        return {roster.ids[k]: 1 for k in np.flatnonzero(among)}


@dataclass(frozen=True)
class Uniform(Sampler):
    """K clients drawn uniformly without replacement."""

    K: int

    participation = "uniform"

    def __post_init__(self) -> None:
        require_whole("The cohort", self.K, at_least=1)

    def check(self, roster: Roster) -> None:
        require(
            len(roster) >= self.K,
            f"The cohort has {self.K} clients, but there are only {len(roster)}: choose at most "
            f'{len(roster)}, or draw with replacement: sampling.kind = "weighted" in a file, '
            f"ud.Weighted({self.K}) in Python.",
        )

    def most(self, roster: Roster) -> int:
        return self.K

    def kind(self, roster: Roster) -> str:
        return "all" if len(roster) == self.K else self.participation

    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        available = len(roster) if among is None else int(np.count_nonzero(among))
        number = min(self.K, available)
        if not number:
            return {}
        chosen = generator(seed, "cohort", round).choice(available, number, replace=False)
        chosen.sort()
        places = chosen if among is None else _places_of_ranks(among, chosen)
        return {roster.ids[k]: 1 for k in places.tolist()}


@dataclass(frozen=True)
class Weighted(Sampler):
    """K draws with replacement, client k with probability q_k (scheme I)."""

    K: int

    participation = "weighted"

    def __post_init__(self) -> None:
        require_whole("The cohort", self.K, at_least=1)

    def most(self, roster: Roster) -> int:
        return min(self.K, len(roster))

    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        rng = generator(seed, "cohort", round)
        if among is None:
            # What `choice` with these probabilities does, without their sums in every round.
            chosen = roster.cumulative_weights.searchsorted(rng.random(self.K), side="right")
        elif not among.any():
            return {}
        else:
            weights = roster.weights.numpy()
            weights = np.where(among, weights, 0.0) / weights[among].sum()
            chosen = rng.choice(len(roster), self.K, p=weights)
        numbers, draws = np.unique(chosen, return_counts=True)
        return {roster.ids[k]: int(r) for k, r in zip(numbers, draws, strict=True)}


@dataclass(frozen=True)
class Bernoulli(Sampler):
    """Each client takes part with the same probability, independently of all others."""

    probability: float

    participation = "bernoulli"

    def __post_init__(self) -> None:
        require_range("Bernoulli's probability", self.probability, above=0, at_most=1)

    def mean(self, roster: Roster) -> float:
        return self.probability * len(roster)

    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        # One random number per client id, so that adding a client changes no other's.
        drawn = uniforms(seed, "cohort", round, roster.hashes) < self.probability
        drawn = drawn if among is None else drawn & among
        return {roster.ids[k]: 1 for k in np.flatnonzero(drawn)}


@dataclass(frozen=True)
class Fixed(Sampler):
    """Given cohorts: one list of client ids for all rounds, or a list of lists used in turn."""

    cohorts: Sequence[Hashable] | Sequence[Sequence[Hashable]]

    participation = "fixed"

    def __post_init__(self) -> None:
        given = self.cohorts
        if isinstance(given, np.ndarray):
            object.__setattr__(self, "cohorts", given.tolist())
        require_type("Fixed's cohorts", self.cohorts, (list, tuple), "a list of clients or cohorts")
        require(len(self.cohorts) > 0, "Fixed needs at least one client or one cohort.")

    @property
    def _number(self) -> int:
        """The number of given cohorts: a plain list of clients is one."""
        return len(self.cohorts) if isinstance(self.cohorts[0], list | tuple) else 1

    def _of(self, round: int) -> Sequence[Hashable]:
        first = self.cohorts[0]
        if isinstance(first, list | tuple):
            return self.cohorts[round % len(self.cohorts)]  # type: ignore[return-value]
        return self.cohorts

    def check(self, roster: Roster) -> None:
        for round in range(self._number):
            for client in self._of(round):
                if client not in roster.position:
                    raise UndriftError(f"Fixed names client {client!r}, which does not exist.")

    def most(self, roster: Roster) -> int:
        return max(len(set(self._of(round))) for round in range(self._number))

    def mean(self, roster: Roster) -> float:
        return sum(len(set(self._of(round))) for round in range(self._number)) / self._number

    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        places = sorted(roster.position[client] for client in self._of(round))
        places = places if among is None else [k for k in places if among[k]]
        return {roster.ids[k]: times for k, times in Counter(places).items()}


def _places_of_ranks(mask: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """`np.flatnonzero(mask)[ranks]`, without the indices of a million other entries."""
    size, clients = 256, len(mask)
    whole = clients // size * size
    # Sums of 32 words of eight bytes 0 or 1: no byte overflows, and each has a part of the count.
    words = mask[:whole].view(np.uint64).reshape(-1, size // 8).sum(1)
    counts = words.view(np.uint8).reshape(-1, 8).sum(1, dtype=np.int64)
    ends = np.cumsum(np.append(counts, np.count_nonzero(mask[whole:])))
    blocks = np.searchsorted(ends, ranks, side="right")
    inside = ranks - np.append(0, ends)[blocks]
    places = size * blocks[:, None] + np.arange(size)
    entries = mask[np.minimum(places, clients - 1)] & (places < clients)
    return size * blocks + (np.cumsum(entries, axis=1) > inside[:, None]).argmax(1)


def as_sampler(cohort: int | Sampler | None, by_weight: bool) -> Sampler:
    """The sampler of a user's `cohort`: a number of clients, a sampler, or None for all clients.

    A number of clients is drawn by q_k with replacement if `by_weight`, else uniformly without.
    """
    if cohort is None:
        return All()
    if isinstance(cohort, Sampler):
        participation = getattr(cohort, "participation", None)
        require_choice(f"{type(cohort).__name__}.participation", participation, PARTICIPATIONS)
        return cohort
    return Weighted(cohort) if by_weight else Uniform(cohort)
