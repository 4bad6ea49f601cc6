"""Learning-rate schedules: rates that change from round to round, or within a round.

Wherever a solver takes a schedule it also takes a plain function of the round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from undrift.utils.errors import UndriftError, first_line, require, require_range, require_type


class Schedule(ABC):
    """A learning rate η_t that depends on the round t = 0, 1, …

    Your own schedule is a subclass with `at`, which must return a number above 0:

        class WarmUp(ud.Schedule):
            def __init__(self, lr, rounds):
                self.lr, self.rounds = lr, rounds

            def at(self, round):
                return self.lr * min(1.0, (round + 1) / self.rounds)

        ud.SGD(lr=WarmUp(0.1, rounds=10))

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
    if not isinstance(rate, Schedule) and (isinstance(rate, type) or not callable(rate)):
        require_range(name, rate, above=0)  # type: ignore[arg-type]


def require_factors(name: str, factors: Factors) -> None:
    """Raise an error unless `factors` is a schedule or a function."""
    if isinstance(factors, type) or not callable(factors):
        require_type(name, factors, Schedule, "a schedule such as ud.Exponential(1, 0.9)")
