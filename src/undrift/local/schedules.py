"""Learning-rate schedules: rates that change from round to round, or within a round.

Wherever a solver takes a schedule it also takes a plain function of the round.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real

from undrift.utils.errors import (
    UndriftError,
    first_line,
    require,
    require_range,
    require_type,
    require_whole,
)


class Schedule(ABC):
    """A learning rate η_t that depends on the round t = 0, 1, …

    Your own schedule is a subclass with `at`, which must return a number above 0:

        class Halving(ud.Schedule):
            def __init__(self, lr, rounds):
                self.lr, self.rounds = lr, rounds

            def at(self, round):
                return self.lr * 0.5 ** (round // self.rounds)

        ud.SGD(lr=Halving(0.1, rounds=10))

    It must be a function of its arguments alone: engines ask for the same round several times, in
    any order and in other processes. Override `within` too if the rate changes within a round.
    A plain function serves as well: `ud.SGD(lr=lambda round: 0.1 * 0.99**round)`.
    """

    @abstractmethod
    def at(self, round: int) -> float:
        """η_t, the learning rate of round t, counted from 0."""

    def within(self, round: int, step: int) -> float:
        """γ_s, the factor on the round's rate in local step s, counted from 0."""
        return 1.0


@dataclass(frozen=True)
class Constant(Schedule):
    """η_t = lr"""

    lr: float

    def __post_init__(self) -> None:
        require_range("lr", self.lr, above=0)

    def at(self, round: int) -> float:
        return self.lr


@dataclass(frozen=True)
class Inverse(Schedule):
    """η_t = lr / (1 + decay·t)"""

    lr: float
    decay: float = 1.0

    def __post_init__(self) -> None:
        require_range("Inverse's lr", self.lr, above=0)
        require_range("Inverse's decay", self.decay, at_least=0)

    def at(self, round: int) -> float:
        return self.lr / (1 + self.decay * round)


@dataclass(frozen=True)
class Exponential(Schedule):
    """η_t = lr · gamma^t"""

    lr: float
    gamma: float

    def __post_init__(self) -> None:
        require_range("Exponential's lr", self.lr, above=0)
        require_range("Exponential's gamma", self.gamma, above=0)

    def at(self, round: int) -> float:
        return self.lr * self.gamma**round


@dataclass(frozen=True)
class Milestones(Schedule):
    """η_t = lr · gamma^(number of milestones at or before t)"""

    lr: float
    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        require_range("Milestones' lr", self.lr, above=0)
        require_range("Milestones' gamma", self.gamma, above=0)
        require_type("Milestones' milestones", self.milestones, (list, tuple), "a list of rounds")
        object.__setattr__(self, "milestones", tuple(self.milestones))

    def at(self, round: int) -> float:
        return self.lr * self.gamma ** sum(round >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class Cosine(Schedule):
    """η_t = final + (lr − final)·(1 + cos(π t/T))/2, with T = rounds; it stays at t = T − 1 after.

    Parameters
    ----------
    lr
        the rate of the first round after the warm-up
    rounds
        T, the number of rounds of the run
    final
        the rate that the cosine falls to, at least 0
    warm_up
        rounds in which the rate first rises in equal steps; T counts them
    """

    lr: float
    rounds: int
    final: float = 0.0
    warm_up: int = 0

    def __post_init__(self) -> None:
        require_range("Cosine's lr", self.lr, above=0)
        require_whole("Cosine's rounds", self.rounds, at_least=1)
        require_range("Cosine's final", self.final, at_least=0, at_most=self.lr)
        require_whole("Cosine's warm_up", self.warm_up, at_least=0)
        require(
            self.warm_up < self.rounds,
            f"Cosine's warm_up is {self.warm_up}, but must be less than its {self.rounds} rounds.",
        )

    def at(self, round: int) -> float:
        if round < self.warm_up:
            return self.lr * (round + 1) / (self.warm_up + 1)
        # The rate of the last round is the smallest: at t = T it could be 0, which is no rate.
        done = min(round, self.rounds - 1) - self.warm_up
        share = (1 + math.cos(math.pi * done / (self.rounds - self.warm_up))) / 2
        return self.final + (self.lr - self.final) * share


@dataclass(frozen=True)
class WarmUp(Schedule):
    """η_t = lr · min(1, (t + 1)/rounds): the rate rises in equal steps, then stays.

    Parameters
    ----------
    lr
        the rate after the warm-up
    rounds
        the first round with the full rate, counted from 1
    """

    lr: float
    rounds: int

    def __post_init__(self) -> None:
        require_range("WarmUp's lr", self.lr, above=0)
        require_whole("WarmUp's rounds", self.rounds, at_least=1)

    def at(self, round: int) -> float:
        return self.lr * min(1.0, (round + 1) / self.rounds)


@dataclass(frozen=True)
class Theorem1(Schedule):
    """η = 2/(μ(γ + t)), γ = max(8L/μ, E), where t counts the SGD steps of the whole run.

    The rate of Theorem 1 in Li et al., ICLR 2020, for μ-strongly convex, L-smooth losses and
    E local steps in every round.
    """

    mu: float
    L: float
    E: int
    gamma: float = field(init=False)

    def __post_init__(self) -> None:
        require_range("Theorem1's mu", self.mu, above=0)
        require_range("Theorem1's E", self.E, at_least=1)
        require(self.mu <= self.L, f"Theorem1 needs L ≥ mu, not L = {self.L:g} < {self.mu:g}.")
        object.__setattr__(self, "gamma", max(8 * self.L / self.mu, float(self.E)))

    def at(self, round: int) -> float:
        return 2 / (self.mu * (self.gamma + round * self.E))

    def within(self, round: int, step: int) -> float:
        before = self.gamma + round * self.E
        return before / (before + step)


@dataclass(frozen=True)
class FunctionSchedule(Schedule):
    """A user's plain function of the round as a schedule, with its values checked."""

    function: Callable[[int], float]

    def at(self, round: int) -> float:
        try:
            value = self.function(round)
        except Exception as error:
            raise UndriftError(
                f"The schedule {self.function!r} must be a function of the round, counted from 0, "
                f"but for {round} it raised {first_line(error)}."
            ) from error
        require_range(f"The schedule {self.function!r} at {round}", value, above=0)
        return float(value)


Factors = Schedule | Callable[[int], float]
"""A schedule, or a plain function of the round (or of the step)."""
Rate = float | Factors
"""A learning rate: a number, a schedule, or a function of the round."""


def as_schedule(rate: Rate) -> Schedule:
    """A schedule from a number (a constant rate), a schedule, or a function of the round."""
    if isinstance(rate, Schedule):
        return rate
    return FunctionSchedule(rate) if callable(rate) else Constant(rate)


def require_rate(name: str, rate: Rate) -> None:
    """Raise an error unless `rate` is a number above 0, a schedule or a function."""
    if isinstance(rate, Schedule) or (callable(rate) and not isinstance(rate, type)):
        return
    require_type(
        name,
        rate,
        (Real, Schedule),
        "a number above 0, a schedule such as ud.Exponential(0.1, 0.998), or a function of the "
        "round",
    )
    require_range(name, rate, above=0)  # type: ignore[arg-type]


def require_factors(name: str, factors: Factors) -> None:
    """Raise an error unless `factors` is a schedule or a function."""
    if isinstance(factors, type) or not callable(factors):
        require_type(name, factors, Schedule, "a schedule such as ud.Exponential(1, 0.9)")
