"""Local solvers: minibatch SGD, full-batch GD, or the exact minimiser.

A solver works on the `LocalProblem` that a method poses and returns a `LocalResult`. Engines that
train several clients together compute the same steps and use a solver's parameters only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.losses import Batch, ClientLoss
from undrift.core.problem import LocalProblem, LocalResult, Work
from undrift.local.amounts import RandomAmount
from undrift.local.schedules import (
    Factors,
    Rate,
    as_schedule,
    require_factors,
    require_rate,
)
from undrift.utils.errors import (
    UndriftError,
    first_line,
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
)
from undrift.utils.keys import orders
from undrift.utils.reprs import short_repr

Amount = int | RandomAmount | Mapping[Hashable, int] | Callable[[Hashable, int], int]
"""The amount of local work: one number for all clients, a random one, one per client id, or a
function of (client id, round)."""
Tolerance = float | Mapping[Hashable, float] | Callable[[Hashable, int], float]
"""The accuracy of local work: one number for all clients, one per client id, or a function of
(client id, round)."""


class Local(ABC):
    """The clients' local work: says which solver each client runs."""

    takes_steps: bool
    """whether every client takes gradient steps, so that ‖a‖₁ is defined"""
    weight_decay: float
    """λ of the term (λ/2)|x|² in every f_k"""

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
    def run(self, loss: ClientLoss, problem: LocalProblem, work: Work) -> LocalResult:
        """Approximately minimise the problem with `work.steps` steps."""


def batches(samples: int, size: int | None, key: int, fresh: bool = False) -> Iterator[Batch]:
    """An endless stream of a client's minibatches, as index arrays; None stands for all samples.

    Every epoch goes through the samples in a new random order, and its last batch may be smaller.
    With `fresh`, every batch is drawn anew without replacement instead.
    """
    if size is None or size >= samples:
        while True:
            yield None
    own = np.array([key], dtype=np.uint64)
    for number in count():
        (order,) = orders(own, number, 1, samples)[0]
        if fresh:
            yield order[:size]
        else:
            yield from (order[first : first + size] for first in range(0, samples, size))


@dataclass(frozen=True)
class SGD(Solver):
    """Minibatch SGD: u ← ρu + (∇f_k + v + r(x − z));  x ← x − η_s·u.

    The linear term v, weight decay (part of f_k) and the pull r(x − z) are inside the momentum
    buffer, except the pull of FedProx and FedNova, which their papers apply outside of it:
    x ← x − η_s(u + r(x − z)). Momentum buffers start at zero in every round.

    Parameters
    ----------
    lr
        η: a number, a schedule over rounds such as `ud.Exponential(0.1, 0.998)`, or a function of
        the round, counted from 0
    batch_size
        samples per step (None: all of a client's samples); the smaller last batch of an epoch is
        kept
    epochs, steps
        the local work, in one of the two units: a number, a random number
        (`ud.UniformAmount(2, 5)`), a mapping from client ids, or a function of (client id, round),
        with rounds counted from 0
    tolerance
        ε: stop when the norm of the local problem's gradient is at most ε (checked every epoch,
        with full batches every step); `epochs` or `steps` still bound the work. A number, a
        mapping from client ids, or a function of (client id, round)
    relative
        what the tolerance is relative to: "no" (absolute), "gradient" (the norm of the gradient at
        the start) or "step" (the distance from the start times the weight r of the pull)
    momentum
        ρ, at least 0 and below 1
    nesterov
        whether to use Nesterov's form of the momentum
    weight_decay
        λ of the term (λ/2)|x|², which is part of f_k
    clip
        the largest allowed norm of ∇f_k + v; longer vectors are scaled down (None: no clipping)
    step_schedule
        γ_s: factors on η over the steps of a round, as a schedule or a function of the step,
        counted from 0
    fresh_batches
        whether to draw every batch anew instead of going through the data epoch by epoch
    """

    __repr__ = short_repr

    lr: Rate
    batch_size: int | None = 32
    epochs: Amount | None = None
    steps: Amount | None = None
    tolerance: Tolerance | None = None
    relative: str = "no"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    clip: float | None = None
    step_schedule: Factors | None = None
    fresh_batches: bool = False

    takes_steps = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_rate(f"{name}'s lr", self.lr)
        if self.batch_size is not None:
            require_whole(f"{name}'s batch_size", self.batch_size, at_least=1)
        if self.step_schedule is not None:
            require_factors(f"{name}'s step_schedule", self.step_schedule)
        require(
            self.epochs is None or self.steps is None,
            f"{name} takes either epochs or steps, not both.",
        )
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
        for unit in ("epochs", "steps"):
            amount = getattr(self, unit)
            varies = isinstance(amount, Mapping | RandomAmount) or callable(amount)
            if amount is not None and not varies:
                require_whole(f"{name}'s {unit}", amount, at_least=1)
        if isinstance(self.tolerance, Real):
            require_range(f"{name}'s tolerance", float(self.tolerance), above=0)
        require_choice(f"{name}'s relative", self.relative, ("no", "gradient", "step"))
        require_range(f"{name}'s momentum", self.momentum, at_least=0, below=1)
        require_range(f"{name}'s weight_decay", self.weight_decay, at_least=0)
        require(
            self.momentum > 0 or not self.nesterov,
            f"{name}'s nesterov needs a momentum above 0.",
        )
        if self.clip is not None:
            require_range(f"{name}'s clip", self.clip, above=0)

    def rate(self, round: int) -> float:
        return as_schedule(self.lr).at(round)

    def amount(self, client: Hashable, round: int, seed: int = 0, turn: int | None = None) -> int:
        unit = "epochs" if self.epochs is not None else "steps"
        amount = getattr(self, unit)
        if isinstance(amount, int):
            return amount
        if isinstance(amount, RandomAmount):
            return amount.of(client, round if turn is None else turn, seed)
        amount = _of_client(unit, amount, client, round)
        where = f"of client {client!r} in round {round + 1}"
        return require_whole(f"The number of {unit} {where}", amount, 1)

    def steps_of(self, amount: int, samples: int) -> int:
        return amount * self._per_epoch(samples) if self.epochs is not None else amount

    def evaluations(self, steps: int, samples: int) -> int:
        size = self.batch_of(samples)
        if self.fresh_batches:
            return steps * size
        epochs, rest = divmod(steps, self._per_epoch(samples))
        return epochs * samples + rest * size

    def steps_within(self, evaluations: float, samples: int) -> int:
        size = self.batch_of(samples)
        if self.fresh_batches:
            return int(evaluations // size)
        epochs, rest = divmod(evaluations, samples)
        return int(epochs) * self._per_epoch(samples) + int(rest // size)

    def batch_of(self, samples: int) -> int:
        """The number of samples in a full batch of a client."""
        return samples if self.batch_size is None else min(self.batch_size, samples)

    def _per_epoch(self, samples: int) -> int:
        return 1 if self.batch_size is None else -(-samples // self.batch_size)

    def run(self, loss: ClientLoss, problem: LocalProblem, work: Work) -> LocalResult:
        x = problem.start.clone()
        v, z, r, s = problem.linear, problem.center, problem.weight, problem.scale
        pulled = z is not None and bool(r != 0)
        outside = problem.pull_outside_momentum
        schedule = as_schedule(self.lr)
        factors = None if self.step_schedule is None else as_schedule(self.step_schedule)
        own_rate = schedule.at(work.round)
        buffer = torch.zeros_like(x) if self.momentum else None
        pull_rate = work.rate * float(r) if pulled else 0.0
        a_norm = ANorm(self.momentum, self.nesterov, pull_rate, outside)
        accurate = Accuracy(self._tolerance(work), self.relative, problem)
        last: Tensor | None = None
        evaluations = 0
        first = None
        if "first_gradient" in problem.ask:
            first = self._decayed(loss.full_gradient(x), x).clone()
            evaluations += loss.samples

        stream = batches(loss.samples, self.batch_size, work.key, self.fresh_batches)
        per_epoch = self._per_epoch(loss.samples)
        done = 0
        while done < work.steps:
            batch = next(stream)
            if accurate.wanted and batch is not None and done % per_epoch == 0:
                evaluations += loss.samples
                if accurate.reached(x, self._decayed(loss.full_gradient(x), x)) and done:
                    break
            g = self._decayed(loss.gradient(x, batch), x)
            evaluations += loss.samples if batch is None else len(batch)
            if accurate.wanted and batch is None and accurate.reached(x, g) and done:
                break  # never before the first step, because methods divide by ‖a‖₁
            if "last_gradient" in problem.ask:
                last = g.clone()
            if s != 1.0:
                g *= s
            if v is not None:
                g += v
            if self.clip is not None:
                g *= torch.clamp(self.clip / g.norm().clamp(min=1e-30), max=1.0)
            pull = r * (x - z) if pulled and z is not None else None
            if pull is not None and not outside:
                g += pull
            if buffer is not None:
                buffer.mul_(self.momentum).add_(g)
                g = g.add_(buffer, alpha=self.momentum) if self.nesterov else buffer
            eta = own_rate * schedule.within(work.round, done)
            if factors is not None:
                eta *= factors.at(done)
            x.add_(g, alpha=-eta)
            if pull is not None and outside:
                x.add_(pull, alpha=-eta)
            a_norm.step(eta / work.rate)
            done += 1
        # A client that stopped because it reached its tolerance has finished its work.
        expected = done if done < work.steps else work.expected
        return LocalResult(
            x=x,
            steps=done,
            expected=expected,
            a_norm=a_norm.value,
            rate=work.rate,
            first_gradient=first,
            last_gradient=last,
            evaluations=evaluations,
        )

    def _tolerance(self, work: Work) -> float | None:
        if self.tolerance is None:
            return None
        found = _of_client("tolerance", self.tolerance, work.client, work.round)
        require_range(f"The tolerance of client {work.client!r}", found, above=0)
        return found

    def _decayed(self, gradient: Tensor, x: Tensor) -> Tensor:
        """∇f_k: the data gradient plus weight decay; changes `gradient` in place."""
        return gradient.add_(x, alpha=self.weight_decay) if self.weight_decay else gradient


class GD(SGD):
    """Full-batch gradient descent: SGD in which every step uses all of a client's data."""

    def __init__(self, lr: Rate, steps: Amount | None = None, **options: object):
        require(
            "batch_size" not in options,
            "GD takes no batch_size because it uses all data in every step: use SGD for batches.",
        )
        options = {"batch_size": None, "steps": steps, **options}
        super().__init__(lr, **options)  # type: ignore[arg-type]


class ANorm:
    """‖a‖₁, the accumulated gradient weight of a solver, in units of the nominal rate η.

    With the pull r outside the momentum buffer (FedProx, FedNova), step s does

        c ← ρc + 1;   A ← (1 − ηγ_s r)A + γ_s c        (Nesterov: γ_s(1 + ρc))

    and `value` is A. With the pull inside the buffer, 1 − ηrA takes the place of the 1.

    Parameters
    ----------
    momentum, nesterov
        ρ, and whether the momentum is Nesterov's
    pull
        ηr, the nominal rate times the weight of the pull
    outside
        whether the pull is applied outside the momentum buffer
    """

    def __init__(
        self,
        momentum: float = 0.0,
        nesterov: bool = False,
        pull: float = 0.0,
        outside: bool = True,
    ):
        self._rho = momentum
        self._nesterov = nesterov
        self._pull_inside = 0.0 if outside else pull
        self._pull_outside = pull if outside else 0.0
        self._c = 0.0
        self.value = 0.0

    def step(self, factor: float = 1.0) -> None:
        """Count one step with rate γ_s·η."""
        new = 1 - self._pull_inside * self.value
        self._c = self._rho * self._c + new
        gain = new + self._rho * self._c if self._nesterov else self._c
        self.value = (1 - factor * self._pull_outside) * self.value + factor * gain


class Accuracy:
    """Tests whether a local problem is solved to a tolerance on the norm of its gradient."""

    def __init__(self, tolerance: float | None, relative: str, problem: LocalProblem):
        self.wanted = tolerance is not None
        require(
            not self.wanted or relative != "step" or problem.center is not None,
            "relative='step' needs a method whose local problem has a pull (FedProx, FedDyn, …): "
            "use relative='gradient' or 'no'.",
        )
        self._tolerance = tolerance or 0.0
        self._relative = relative
        self._problem = problem
        self._first: float | None = None

    def reached(self, x: Tensor, data_gradient: Tensor) -> bool:
        """Whether the gradient of the local problem at x is small enough, from ∇f_k(x)."""
        p = self._problem
        g = p.scale * data_gradient
        if p.linear is not None:
            g = g + p.linear
        if p.center is not None:
            g = g + p.weight * (x - p.center)
        size = float(g.norm())
        if self._first is None:
            self._first = size
        limit = self._tolerance
        if self._relative == "gradient":
            limit *= self._first
        elif self._relative == "step":
            limit *= float(p.weight) * float((x - p.start).norm())
        return size <= limit


@dataclass(frozen=True)
class Exact(Solver):
    """The exact minimiser of the local problem, for quadratic losses.

    Parameters
    ----------
    weight_decay
        λ of the term (λ/2)|x|², which is part of f_k
    """

    weight_decay: float = 0.0

    takes_steps = False

    def rate(self, round: int) -> float:
        return 1.0

    def amount(self, client: Hashable, round: int, seed: int = 0, turn: int | None = None) -> int:
        return 1

    def steps_of(self, amount: int, samples: int) -> int:
        return 1

    def evaluations(self, steps: int, samples: int) -> int:
        return steps * samples

    def steps_within(self, evaluations: float, samples: int) -> int:
        return int(evaluations // samples)

    def run(self, loss: ClientLoss, problem: LocalProblem, work: Work) -> LocalResult:
        first = loss.gradient(problem.start) if "first_gradient" in problem.ask else None
        if first is not None:
            first = first + self.weight_decay * problem.start
        if "last_gradient" in problem.ask:
            raise UndriftError(
                "Exact takes no gradient steps, so it has no last gradient: use SGD or GD."
            )
        x = loss.minimise(problem, self.weight_decay)
        return LocalResult(
            x=x,
            steps=1,
            expected=1,
            a_norm=float("nan"),
            rate=work.rate,
            first_gradient=first,
            evaluations=loss.samples,
        )


class PerClient(Local):
    """A solver for all clients, with other solvers or learning rates for some of them.

    Parameters
    ----------
    default
        the solver of all other clients; its rate is the nominal η, in whose units every client's
        ‖a‖₁ is counted, and its weight decay is the one in F
    others
        a mapping from client ids to solvers, or a function of the client id
    """

    def __init__(
        self,
        default: Solver,
        others: Mapping[Hashable, Solver] | Callable[[Hashable], Solver],
    ):
        require_type("PerClient's default", default, Solver, "a solver such as SGD")
        if isinstance(others, Mapping):
            for client, solver in others.items():
                require_type(f"PerClient's solver of {client!r}", solver, Solver, "a solver")
        else:
            require(
                callable(others),
                "PerClient's others must be a mapping from client ids or a function of the id.",
            )
        self.default = default
        self.others = others
        self.weight_decay = default.weight_decay
        named = others.values() if isinstance(others, Mapping) else ()
        for client, solver in others.items() if isinstance(others, Mapping) else ():
            self._same_decay(client, solver)
        self.takes_steps = all(solver.takes_steps for solver in (default, *named))

    def rate(self, round: int) -> float:
        return self.default.rate(round)

    def check(self, clients: Collection[Hashable]) -> None:
        if isinstance(self.others, Mapping):
            require_known("PerClient", self.others, clients)

    def of(self, client: Hashable) -> Solver:
        if isinstance(self.others, Mapping):
            return self.others.get(client, self.default)
        solver = self.others(client)
        require_type(f"PerClient's solver of {client!r}", solver, Solver, "a solver")
        return self._same_decay(client, solver)

    def _same_decay(self, client: Hashable, solver: Solver) -> Solver:
        require(
            solver.weight_decay == self.weight_decay,
            f"PerClient's solver of {client!r} has weight_decay {solver.weight_decay:g}, but it is "
            f"part of F, so every solver must have the default's {self.weight_decay:g}.",
        )
        return solver

    def __repr__(self) -> str:
        return f"PerClient({self.default!r}, {self.others!r})"


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


def _of_client(what: str, value: Any, client: Hashable, round: int) -> Any:
    """The value for a client in a round, from a number, a mapping by client id or a function."""
    if callable(value):
        return call(what, value, client, round)
    if isinstance(value, Mapping):
        require(client in value, f"The mapping for {what} has no entry for client {client!r}.")
        return value[client]
    return value
