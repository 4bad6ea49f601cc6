"""Solvers that take steps on minibatches: what they have in common, and their loop.

A solver adds the rule of its step, an `Update`: SGD in `solvers`, others in `adaptive`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import count, islice
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from undrift.core.losses import Batch, ClientLoss
from undrift.core.problem import Ascent, Keep, LocalProblem, LocalResult, Work
from undrift.local.amounts import RandomAmount
from undrift.local.base import Amount, Solver, Tolerance, of_client, require_ascent
from undrift.local.schedules import Factors, Rate, as_schedule, require_factors, require_rate
from undrift.utils.errors import require, require_choice, require_range, require_type, require_whole
from undrift.utils.keys import orders


def batches(
    samples: int, size: int | None, key: int, fresh: bool = False, drop_last: bool = False
) -> Iterator[Batch]:
    """An endless stream of a client's minibatches, as index arrays; None stands for all samples.

    Every epoch goes through the samples in a new random order, and its last batch may be smaller,
    unless it is dropped.
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
            last = samples - samples % size if drop_last else samples
            yield from (order[first : first + size] for first in range(0, last, size))


def ascended_gradient(gradient: Callable[[Tensor], Tensor], x: Tensor, ascent: Ascent) -> Tensor:
    """(1 − a)∇f(x) + a∇f(x + ρ g/|g|), g = ∇f(x); the tensor may be overwritten."""
    g = gradient(x)
    shifted = x + g * (ascent.radius / g.norm().clamp(min=1e-30))
    if ascent.share == 1.0:
        return gradient(shifted)
    kept = g * (1 - ascent.share)
    return gradient(shifted).mul_(ascent.share).add_(kept)


class Update(ABC):
    """The rule of a solver's steps, with what it accumulates over a client's work."""

    a_norm: float = float("nan")
    """‖a‖₁ so far, where it is defined"""

    @abstractmethod
    def step(self, x: Tensor, gradient: Tensor, pull: Tensor | None, rate: float) -> None:
        """Change x in place.

        `gradient` is that of the local problem without its pull r(x − z), and may be overwritten.
        The pull concerns the shared parameters, so it is shorter than x with personal ones.
        """

    def state(self) -> dict[str, Tensor]:
        """What the client keeps for the next round."""
        return {}


class MinibatchSolver(Solver):
    """The common part of solvers that take steps on minibatches.

    Subclasses are data classes with these fields. The local problem's linear term v and pull
    r(x − z) are part of the gradient.
    """

    lr: Rate
    batch_size: int | None
    epochs: Amount | None
    steps: Amount | None
    tolerance: Tolerance | None
    relative: str
    clip: float | None
    step_schedule: Factors | None
    fresh_batches: bool
    drop_last: bool
    accumulate: int

    @abstractmethod
    def update(
        self,
        x: Tensor,
        problem: LocalProblem,
        work: Work,
        mine: Keep,
        shapes: Sequence[torch.Size] | None,
    ) -> Update:
        """The rule of the steps for a client's work, which starts at x."""

    @property
    def many_at_once(self) -> bool:
        # With a tolerance each client stops on its own.
        return self.tolerance is None and self.accumulate == 1

    @property
    def can_ascend(self) -> bool:  # type: ignore[override]
        # The shift needs the gradient of the whole batch, and the gradient of the local problem, on
        # which a tolerance is, does not vanish where sharpness-aware steps end.
        return self.accumulate == 1 and self.tolerance is None

    def _check_fields(self) -> None:
        """Raise an error if a field has a value that is not allowed."""
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
        require_range(f"{name}'s weight_decay", self.weight_decay, at_least=0)
        require_type(f"{name}'s drop_last", self.drop_last, bool, "True or False")
        require_whole(f"{name}'s accumulate", self.accumulate, at_least=1)
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
        amount = of_client(unit, amount, client, round)
        where = f"of client {client!r} in round {round + 1}"
        return require_whole(f"The number of {unit} {where}", amount, 1)

    def steps_of(self, amount: int, samples: int) -> int:
        return amount * self.per_epoch(samples) if self.epochs is not None else amount

    def evaluations(self, steps: int, samples: int) -> int:
        size = self.batch_of(samples)
        if self.fresh_batches:
            return steps * size
        epochs, rest = divmod(steps, self.per_epoch(samples))
        return epochs * self._epoch_samples(samples) + rest * size

    def steps_within(self, evaluations: float, samples: int) -> int:
        size = self.batch_of(samples)
        if self.fresh_batches:
            return int(evaluations // size)
        epochs, rest = divmod(evaluations, self._epoch_samples(samples))
        return int(epochs) * self.per_epoch(samples) + int(rest // size)

    def batch_of(self, samples: int) -> int:
        """The number of samples in a full batch of a client."""
        return samples if self.batch_size is None else min(self.batch_size, samples)

    def per_epoch(self, samples: int) -> int:
        """The number of batches in an epoch of a client."""
        size = self.batch_of(samples)
        return samples // size if self.drop_last else -(-samples // size)

    def _epoch_samples(self, samples: int) -> int:
        """The number of samples that an epoch goes through."""
        return samples - samples % self.batch_of(samples) if self.drop_last else samples

    def run(
        self, loss: ClientLoss, problem: LocalProblem, work: Work, mine: Keep = Keep()
    ) -> LocalResult:
        require_ascent(self, problem)
        x = problem.start.clone()
        v, z, r, s = problem.linear, problem.center, problem.weight, problem.scale
        pulled = z is not None and bool(r != 0)
        schedule = as_schedule(self.lr)
        factors = None if self.step_schedule is None else as_schedule(self.step_schedule)
        own_rate = schedule.at(work.round)
        update = self.update(x, problem, work, mine, loss.shapes)
        accurate = Accuracy(self._tolerance(work), self.relative, problem)
        last: Tensor | None = None
        evaluations = 0
        first = None
        if "first_gradient" in problem.ask:
            first = self._decayed(loss.full_gradient(x), x).clone()
            evaluations += loss.samples

        stream = self._batches(loss.samples, work)
        per_epoch = self.per_epoch(loss.samples)
        loss.expect(self._gradients_to_come(loss.samples, work))
        done = 0
        while done < work.steps:
            batch = next(stream)
            if accurate.wanted and batch is not None and done % per_epoch == 0:
                evaluations += loss.samples
                if accurate.reached(x, self._decayed(loss.full_gradient(x), x)) and done:
                    break
            size = loss.samples if batch is None else len(batch)
            if problem.ascent is None:
                g = self._gradient(loss, x, batch)
                evaluations += size
            else:
                g = ascended_gradient(loss.on_batch(batch), x, problem.ascent)
                evaluations += 2 * size
            g = self._decayed(g, x)
            if accurate.wanted and batch is None and accurate.reached(x, g) and done:
                break  # never before the first step, because methods divide by ‖a‖₁
            if "last_gradient" in problem.ask:
                last = g.clone()
            if s != 1.0:
                g *= s
            # With personal parameters, v and z are shorter than x: they concern the shared ones.
            if v is not None:
                g[: len(v)] += v
            if self.clip is not None:
                g *= torch.clamp(self.clip / g.norm().clamp(min=1e-30), max=1.0)
            pull = r * (x[: len(z)] - z) if pulled and z is not None else None
            eta = own_rate * schedule.within(work.round, done)
            if factors is not None:
                eta *= factors.at(done)
            update.step(x, g, pull, eta)
            done += 1
        # A client that stopped because it reached its tolerance has finished its work.
        expected = done if done < work.steps else work.expected
        return LocalResult(
            x=x,
            steps=done,
            expected=expected,
            a_norm=update.a_norm,
            rate=work.rate,
            first_gradient=first,
            last_gradient=last,
            evaluations=evaluations,
            state=update.state(),
        )

    def _batches(self, samples: int, work: Work) -> Iterator[Batch]:
        return batches(samples, self.batch_size, work.key, self.fresh_batches, self.drop_last)

    def _gradients_to_come(self, samples: int, work: Work) -> Iterator[tuple[int, Batch]]:
        """The epoch and the samples of every gradient of a client's work, in order."""
        per_epoch = 1 if self.fresh_batches else self.per_epoch(samples)
        for number, batch in enumerate(islice(self._batches(samples, work), work.steps)):
            yield from ((number // per_epoch, piece) for piece in self._pieces(batch, samples))

    def _pieces(self, batch: Batch, samples: int) -> list[Batch]:
        """A batch in the pieces from which its gradient is accumulated."""
        if self.accumulate == 1:
            return [batch]
        rows = np.arange(samples) if batch is None else batch
        return list(np.array_split(rows, min(self.accumulate, len(rows))))

    def _gradient(self, loss: ClientLoss, x: Tensor, batch: Batch) -> Tensor:
        """The mean gradient over a batch, computed piece by piece."""
        if self.accumulate == 1:
            return loss.gradient(x, batch)
        total = torch.zeros_like(x)
        samples = loss.samples if batch is None else len(batch)
        for piece in self._pieces(batch, loss.samples):
            assert piece is not None
            total.add_(loss.gradient(x, piece), alpha=len(piece) / samples)
        return total

    def _tolerance(self, work: Work) -> float | None:
        if self.tolerance is None:
            return None
        found = of_client("tolerance", self.tolerance, work.client, work.round)
        require_range(f"The tolerance of client {work.client!r}", found, above=0)
        return found

    def _decayed(self, gradient: Tensor, x: Tensor) -> Tensor:
        """∇f_k: the data gradient plus weight decay; changes `gradient` in place."""
        return gradient.add_(x, alpha=self.penalty) if self.penalty else gradient


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
        g = p.scale * data_gradient  # a new tensor
        if p.linear is not None:
            g[: len(p.linear)] += p.linear
        if p.center is not None:
            g[: len(p.center)] += p.weight * (x[: len(p.center)] - p.center)
        size = float(g.norm())
        if self._first is None:
            self._first = size
        limit = self._tolerance
        if self._relative == "gradient":
            limit *= self._first
        elif self._relative == "step":
            limit *= float(p.weight) * float((x - p.start).norm())
        return size <= limit
