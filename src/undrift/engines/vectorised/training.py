"""Several clients' local work, done at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.engines.vectorised.batches import Stream
from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.steps import Fused, Gradients, Lists, Stepper, Terms
from undrift.modules import ModuleLosses
from undrift.problem import LocalProblem, Number
from undrift.schedules import as_schedule
from undrift.solvers import SGD, Progress, Work


@dataclass(frozen=True)
class Group:
    """Clients that work at once, with the same solver and in the same round."""

    places: Sequence[int]
    """where they are in the data"""
    works: Sequence[Work]
    numbers: Sequence[int]
    """the keys of what the model draws itself"""

    def __len__(self) -> int:
        return len(self.places)

    def ordered(self, order: Sequence[int]) -> Group:
        """The same clients in another order."""
        return Group(
            [self.places[c] for c in order],
            [self.works[c] for c in order],
            [self.numbers[c] for c in order],
        )


def train(
    losses: ModuleLosses, network: Network, solver: SGD, problem: LocalProblem, group: Group
) -> tuple[Tensor, int]:
    """Where the clients end, `[C, P]`, and how many gradients of single samples that took.

    `problem` is that of all clients, stacked.
    """
    # Those with the most steps come first, so that the ones at work are always the first ones.
    order = sorted(range(len(group)), key=lambda c: -group.works[c].steps)
    mine = group.ordered(order)
    split = Split(losses.flat.shapes, order)
    whole = [each.expand(len(group), *each.shape[1:]).clone() for each in split(problem.start)]
    terms = Terms(
        split.number(problem.scale),
        split.number(problem.weight),
        None if problem.linear is None else split(problem.linear),
        None if problem.center is None else split(problem.center),
        problem.pull_outside_momentum,
    )
    stepping = Stepping(losses, network, solver, whole, terms, mine)
    evaluations = sum(stepping.step(number) for number in range(mine.works[0].steps))
    flat = torch.cat([each.flatten(1) for each in whole], dim=1)
    back = torch.empty(len(order), dtype=torch.long)
    back[order] = torch.arange(len(order))
    return (flat if order == sorted(order) else flat[back.to(flat.device)]), evaluations


class Stepping:
    """The steps of clients that work at once; those that are done drop out."""

    def __init__(
        self,
        losses: ModuleLosses,
        network: Network,
        solver: SGD,
        parameters: Lists,
        terms: Terms,
        group: Group,
    ):
        self._network, self._solver, self._works = network, solver, group.works
        self._parameters, self._scale = parameters, terms.scale
        self._stream = Stream(losses.train_part, group.places, group.works, solver)
        self._draws = Draws(group.numbers, losses.device) if network.draws else None
        self._schedule, self._round = as_schedule(solver.lr), group.works[0].round
        self._active = len(group)
        self._fused: Fused | None = None
        if network.fuses and not solver.momentum and solver.clip is None:
            self._fused = Fused(parameters, terms, solver.weight_decay)
        else:
            self._gradients = Gradients(parameters)
            self._stepper = Stepper(solver, parameters, terms)

    def step(self, number: int) -> int:
        """One step of those that are at work; gives how many samples it took."""
        active = sum(work.steps > number for work in self._works[: self._active])
        if active < self._active:
            self._keep(active)
        batch = self._stream.at(number, active)
        if self._draws is not None:
            self._draws.sizes = batch.sizes
        rate = rate_at(self._solver, self._round, number)
        sink = self._fused or self._gradients
        if self._fused is not None:
            self._fused.rate = rate
        self._network.backward(self._parameters, batch, self._scale, sink, self._draws)
        if self._fused is None:
            self._stepper.step(self._gradients.values, rate)
        return sum(batch.sizes)

    def _keep(self, active: int) -> None:
        self._active = active
        self._parameters = [each[:active] for each in self._parameters]
        if isinstance(self._scale, Tensor):
            self._scale = self._scale[:active]
        if self._draws is not None:
            self._draws.keep(active)
        if self._fused is not None:
            self._fused.keep(active)
        else:
            self._gradients.keep(active)
            self._stepper.keep(active)


class Split:
    """Flat vectors of clients as a tensor per parameter, in the order of their work."""

    def __init__(self, shapes: Sequence[torch.Size], order: Sequence[int]):
        self._shapes = shapes
        self._order = None if list(order) == sorted(order) else list(order)

    def __call__(self, vectors: Tensor) -> Lists:
        """`[P]` (the same for all) or `[C, P]` as `[1, …]` or `[C, …]` each."""
        vectors = vectors[None] if vectors.ndim == 1 else self._ordered(vectors)
        sizes = [shape.numel() for shape in self._shapes]
        parts = vectors.split(sizes, dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def number(self, value: Number) -> Tensor | float:
        """A number per client, `[C]`, or one for all."""
        if not isinstance(value, Tensor):
            return float(value)
        flat = self._ordered(value.reshape(-1))
        return float(flat[0]) if bool((flat == flat[0]).all()) else flat

    def _ordered(self, rows: Tensor) -> Tensor:
        return rows if self._order is None else rows[self._order]


def rate_at(solver: SGD, round: int, step: int) -> float:
    """η_s, the learning rate of a step."""
    schedule = as_schedule(solver.lr)
    rate = schedule.at(round) * schedule.within(round, step)
    return rate if solver.step_schedule is None else rate * solver.step_schedule.at(step)


def progress_of(solver: SGD, problem: LocalProblem, works: Sequence[Work]) -> list[float]:
    """‖a‖₁ of each client; it depends on its steps and its pull only."""
    r = problem.weight if problem.center is not None else 0.0
    pulls = torch.as_tensor(r, dtype=torch.float64).reshape(-1)
    found: dict[tuple[int, float], float] = {}
    every = []
    for work, r in zip(works, pulls.expand(len(works)).tolist(), strict=True):
        if (work.steps, r) not in found:
            progress = Progress(
                solver.momentum, solver.nesterov, work.rate * r, problem.pull_outside_momentum
            )
            for step in range(work.steps):
                progress.step(rate_at(solver, work.round, step) / work.rate)
            found[work.steps, r] = progress.total
        every.append(found[work.steps, r])
    return every
