"""The interfaces of local work: which solver a client runs, and what a solver must do.

A solver works on the `LocalProblem` that a method poses and returns a `LocalResult`. Engines that
train several clients together compute the same steps and use a solver's parameters only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

from undrift.core.losses import ClientLoss
from undrift.core.problem import Keep, LocalProblem, LocalResult, Work
from undrift.local.amounts import RandomAmount
from undrift.utils.errors import UndriftError, first_line, require

Amount = int | RandomAmount | Mapping[Hashable, int] | Callable[[Hashable, int], int]
"""The amount of local work: one number for all clients, a random one, one per client id, or a
function of (client id, round)."""
Tolerance = float | Mapping[Hashable, float] | Callable[[Hashable, int], float]
"""The accuracy of local work: one number for all clients, one per client id, or a function of
(client id, round)."""

ASCENT_CURE = "use SGD, GD, Adam or TorchOptimizer, without tolerance and with accumulate=1"
"""Which solvers can take steps with sharpness-aware gradients."""


class Local(ABC):
    """The clients' local work: says which solver each client runs."""

    takes_steps: bool
    """whether every client takes gradient steps, so that ‖a‖₁ is defined"""
    weight_decay: float
    """the coefficient of weight decay"""
    can_ascend: bool = False
    """whether every client's solver can take steps with sharpness-aware gradients"""

    @property
    def penalty(self) -> float:
        """λ of the term (λ/2)|x|² in every f_k; zero for a decay that is not part of f_k."""
        return self.weight_decay

    @property
    def keeps(self) -> Mapping[str, str]:
        """What a client keeps for its solver from round to round, as `Method.keeps`."""
        return {}

    @abstractmethod
    def rate(self, round: int) -> float:
        """η, the nominal learning rate of a round."""

    @abstractmethod
    def of(self, client: Hashable) -> Solver:
        """The solver of a client."""

    def check(self, clients: Collection[Hashable]) -> None:
        """Raise an error if the local work names a client that does not exist."""


class Solver(Local):
    """An algorithm that a client runs on its local problem."""

    @property
    def many_at_once(self) -> bool:
        """Whether engines that train many clients at once can compute its steps."""
        return False

    def of(self, client: Hashable) -> Solver:
        return self

    @abstractmethod
    def amount(self, client: Hashable, round: int, seed: int = 0, turn: int | None = None) -> int:
        """The amount of a client's local work, in the solver's own unit (epochs or steps).

        `turn` keys random amounts instead of the round, in asynchronous training by the number of
        the launch: a client may be launched more than once in one round.
        """

    @abstractmethod
    def steps_of(self, amount: int, samples: int) -> int:
        """The number of steps in an amount of local work."""

    @abstractmethod
    def evaluations(self, steps: int, samples: int) -> int:
        """The number of per-sample gradients in `steps` steps, if no tolerance ends them early."""

    @abstractmethod
    def steps_within(self, evaluations: float, samples: int) -> int:
        """The number of steps that a budget of per-sample gradients allows."""

    @abstractmethod
    def run(
        self, loss: ClientLoss, problem: LocalProblem, work: Work, mine: Keep = Keep()
    ) -> LocalResult:
        """Approximately minimise the problem with `work.steps` steps.

        `mine` is what the client keeps, with the solver's part of it.
        """


def require_ascent(solver: Solver, problem: LocalProblem) -> None:
    """Raise an error if a problem asks for sharpness-aware gradients that a solver cannot take."""
    require(
        problem.ascent is None or solver.can_ascend,
        f"{type(solver).__name__} cannot take steps with sharpness-aware gradients here: "
        f"{ASCENT_CURE}.",
    )


def require_known(what: str, named: Iterable[Hashable], clients: Collection[Hashable]) -> None:
    """Raise an error if `named` contains the id of a client that does not exist."""
    for client in named:
        require(client in clients, f"{what} names client {client!r}, which does not exist.")


def call(what: str, function: Callable[..., Any], client: Hashable, round: int) -> Any:
    """Call a user's function of (client id, round), with a clear error if it fails."""
    try:
        return function(client, round)
    except Exception as error:
        raise UndriftError(
            f"{what} must be a function of (client id, round), but for client {client!r} in round "
            f"{round} it raised {first_line(error)}."
        ) from error


def of_client(what: str, value: Any, client: Hashable, round: int) -> Any:
    """The value for a client in a round, from a number, a mapping by client id or a function."""
    if callable(value):
        return call(what, value, client, round)
    if isinstance(value, Mapping):
        require(client in value, f"The mapping for {what} has no entry for client {client!r}.")
        return value[client]
    return value
