"""Local solvers: minibatch SGD, full-batch GD, or the exact minimiser.

A solver works on the `LocalProblem` that a method poses and returns a `LocalResult`. Engines that
train several clients together compute the same steps and use a solver's parameters only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.losses import ClientLoss
from undrift.core.problem import Keep, LocalProblem, LocalResult, Work
from undrift.local.base import Amount, Local, Solver, Tolerance, call, require_ascent, require_known
from undrift.local.minibatches import MinibatchSolver, Update, batches
from undrift.local.schedules import Factors, Rate
from undrift.utils.errors import UndriftError, require, require_range, require_type
from undrift.utils.reprs import short_repr

__all__ = [
    "GD",
    "SGD",
    "ANorm",
    "Amount",
    "Exact",
    "Local",
    "PerClient",
    "Solver",
    "batches",
    "call",
    "require_known",
]


@dataclass(frozen=True)
class SGD(MinibatchSolver):
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
        kept, unless `drop_last`
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
    drop_last
        whether to leave out the last batch of an epoch if it is smaller than the others; a client
        with fewer samples than `batch_size` keeps its only batch
    accumulate
        compute the gradient of every batch in this many pieces, to save memory: the step is that
        of the whole batch (but BatchNorm sees the pieces)
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
    drop_last: bool = False
    accumulate: int = 1

    takes_steps = True

    def __post_init__(self) -> None:
        self._check_fields()
        name = type(self).__name__
        require_range(f"{name}'s momentum", self.momentum, at_least=0, below=1)
        require(
            self.momentum > 0 or not self.nesterov,
            f"{name}'s nesterov needs a momentum above 0.",
        )

    def update(
        self,
        x: Tensor,
        problem: LocalProblem,
        work: Work,
        mine: Keep,
        shapes: Sequence[torch.Size] | None,
    ) -> Update:
        return SGDUpdate(self, x, problem, work)


class SGDUpdate(Update):
    """Steps with momentum, and the accumulated gradient weight."""

    def __init__(self, solver: SGD, x: Tensor, problem: LocalProblem, work: Work):
        pulled = problem.center is not None and bool(problem.weight != 0)
        pull_rate = work.rate * float(problem.weight) if pulled else 0.0
        self._momentum, self._nesterov = solver.momentum, solver.nesterov
        self._buffer = torch.zeros_like(x) if solver.momentum else None
        self._outside = problem.pull_outside_momentum
        self._weight = ANorm(solver.momentum, solver.nesterov, pull_rate, self._outside)
        self._nominal_rate = work.rate

    @property
    def a_norm(self) -> float:  # type: ignore[override]
        """‖a‖₁ so far."""
        return self._weight.value

    def step(self, x: Tensor, gradient: Tensor, pull: Tensor | None, rate: float) -> None:
        g = gradient
        if pull is not None and not self._outside:
            g[: len(pull)] += pull
        if self._buffer is not None:
            self._buffer.mul_(self._momentum).add_(g)
            g = g.add_(self._buffer, alpha=self._momentum) if self._nesterov else self._buffer
        x.add_(g, alpha=-rate)
        if pull is not None and self._outside:
            x[: len(pull)].add_(pull, alpha=-rate)
        self._weight.step(rate / self._nominal_rate)


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

    def run(
        self, loss: ClientLoss, problem: LocalProblem, work: Work, mine: Keep = Keep()
    ) -> LocalResult:
        require_ascent(self, problem)
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
        self.can_ascend = all(solver.can_ascend for solver in (default, *named))
        for solver in (default, *named):
            _require_stateless(solver)

    @property
    def penalty(self) -> float:
        return self.default.penalty

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
            solver.penalty == self.penalty,
            f"PerClient's solver of {client!r} has weight_decay {solver.penalty:g}, but it is "
            f"part of F, so every solver must have the default's {self.penalty:g}.",
        )
        _require_stateless(solver)
        return solver

    def __repr__(self) -> str:
        return f"PerClient({self.default!r}, {self.others!r})"


def _require_stateless(solver: Solver) -> None:
    """Raise an error if a solver keeps state: all clients must keep the same."""
    require(
        not solver.keeps,
        f"PerClient cannot have {solver!r}: a solver with keep_state=True must be that of all "
        f"clients.",
    )
