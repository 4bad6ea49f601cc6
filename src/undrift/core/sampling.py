"""Who takes part in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from undrift.core.clients import Roster
from undrift.utils.errors import UndriftError, require, require_range, require_type, require_whole
from undrift.utils.keys import generator, uniforms

Cohort = dict[Hashable, int]
"""The ids of the clients that take part, each with the number of times it was drawn."""


class Sampler(ABC):
    """Draws a cohort for every round, keyed by the seed and the round."""

    participation: str
    """the kind of sampling, for methods that are defined for some kinds only"""

    @abstractmethod
    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        """The cohort of a round, drawn among those clients of the roster that are available.

        `among` is a mask over the roster; None stands for everyone.
        """

    def check(self, roster: Roster) -> None:
        """Refuse a roster the sampler cannot draw from."""

    def most(self, roster: Roster) -> int:
        """How many clients take part in a round at most."""
        return len(roster)

    def kind(self, roster: Roster) -> str:
        """The kind of sampling from a roster."""
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
    """K clients, uniformly without replacement."""

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
        there = len(roster) if among is None else np.flatnonzero(among)
        number = self.K if isinstance(there, int) else min(self.K, len(there))
        if not number:
            return {}
        chosen = generator(seed, "cohort", round).choice(there, number, replace=False)
        return {roster.ids[k]: 1 for k in sorted(chosen)}


@dataclass(frozen=True)
class Weighted(Sampler):
    """K draws with replacement, with probability q_k (scheme I)."""

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
        weights = roster.weights.numpy()
        if among is not None:
            if not among.any():
                return {}
            weights = np.where(among, weights, 0.0) / weights[among].sum()
        chosen = rng.choice(len(roster), self.K, p=weights)
        numbers, draws = np.unique(chosen, return_counts=True)
        return {roster.ids[k]: int(r) for k, r in zip(numbers, draws, strict=True)}


@dataclass(frozen=True)
class Bernoulli(Sampler):
    """Each client takes part with a probability, independently of the others."""

    probability: float

    participation = "bernoulli"

    def __post_init__(self) -> None:
        require_range("Bernoulli's probability", self.probability, above=0, at_most=1)

    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        # Keyed by client, so that adding one changes nothing for the others.
        drawn = uniforms(seed, "cohort", round, roster.hashes) < self.probability
        drawn = drawn if among is None else drawn & among
        return {roster.ids[k]: 1 for k in np.flatnonzero(drawn)}


@dataclass(frozen=True)
class Fixed(Sampler):
    """The cohorts are given: one for all rounds, or one per round, in turn."""

    cohorts: Sequence[Hashable] | Sequence[Sequence[Hashable]]

    participation = "fixed"

    def __post_init__(self) -> None:
        given = self.cohorts
        if isinstance(given, np.ndarray):
            object.__setattr__(self, "cohorts", given.tolist())
        require_type("Fixed's cohorts", self.cohorts, (list, tuple), "a list of clients or cohorts")
        require(len(self.cohorts) > 0, "Fixed needs at least one client or one cohort.")

    @property
    def _different(self) -> int:
        """How many cohorts there are: a list of clients is one."""
        return len(self.cohorts) if isinstance(self.cohorts[0], list | tuple) else 1

    def _of(self, round: int) -> Sequence[Hashable]:
        first = self.cohorts[0]
        if isinstance(first, list | tuple):
            return self.cohorts[round % len(self.cohorts)]  # type: ignore[return-value]
        return self.cohorts

    def check(self, roster: Roster) -> None:
        for round in range(self._different):
            for client in self._of(round):
                if client not in roster.position:
                    raise UndriftError(
                        f"The fixed cohort names client {client!r}, which does not exist."
                    )

    def most(self, roster: Roster) -> int:
        return max(len(set(self._of(round))) for round in range(self._different))

    def draw(
        self, roster: Roster, seed: int, round: int, among: np.ndarray | None = None
    ) -> Cohort:
        places = sorted(roster.position[client] for client in self._of(round))
        places = places if among is None else [k for k in places if among[k]]
        return {roster.ids[k]: times for k, times in Counter(places).items()}


def as_sampler(cohort: int | Sampler | None, by_weight: bool) -> Sampler:
    """A number is that many clients (drawn as the method's scheme asks), None is everyone."""
    if cohort is None:
        return All()
    if isinstance(cohort, Sampler):
        return cohort
    return Weighted(cohort) if by_weight else Uniform(cohort)
