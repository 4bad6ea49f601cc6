"""Learning rates that change: from round to round, and from step to step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from undrift.utils.errors import require, require_range, require_type


class Schedule(ABC):
    """A learning rate η_t; `at(t)` gives it for round t, counted from 0."""

    @abstractmethod
    def at(self, round: int) -> float:
        """The rate of a round."""

    def within(self, round: int, step: int) -> float:
        """γ_s, by which the round's rate is multiplied in its step s, counted from 0."""
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
    """η = 2/(μ(γ + t)), γ = max(8L/μ, E), with t counting SGD steps over the whole run.

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


def as_schedule(lr: "float | Schedule") -> Schedule:
    """A number is a constant rate."""
    return lr if isinstance(lr, Schedule) else Constant(lr)
