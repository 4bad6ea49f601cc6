"""Several clients' local work, done at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undrift.core.problem import LocalProblem, Number, Work
from undrift.engines.vectorised.batches import Stream, indices
from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.steps import (
    Fused,
    Gradients,
    Lists,
    Step,
    Stepper,
    Terms,
    vectors_like,
)
from undrift.local.schedules import as_schedule
from undrift.local.solvers import SGD, ANorm
from undrift.nets.modules import ModuleLosses


class Group:
    """Clients with the same solver in the same round, most steps first, before they work.

    What is the same for all of them or can be drawn for all at once is prepared here; they work in
    chunks, `of(slice)`.

    Parameters
    ----------
    losses
        the model and the data
    solver
        how they work
    places
        where they are in the data
    works
        what each of them does
    numbers
        the keys of what the model draws itself, where it draws anything
    ahead
        a thread that gathers the next batches while the present ones are computed with
    """

    def __init__(
        self,
        losses: ModuleLosses,
        solver: SGD,
        places: Sequence[int],
        works: Sequence[Work],
        numbers: Sequence[int] = (),
        ahead: Executor | None = None,
    ):
        self.ahead = ahead
        self.losses, self.solver = losses, solver
        self.places, self.works, self.numbers = places, works, numbers
        self.batches = indices(losses.train_part, places, works, solver)
        self.rates = Rates(solver, works[0].round)

    def of(self, some: slice) -> Group:
        """Some of them, at work at once."""
        found = copy(self)
        found.places, found.works = self.places[some], self.works[some]
        found.numbers = self.numbers[some]
        found.batches = self.batches.of(some)
        return found

    def stream(self) -> Stream:
        """Their batches."""
        losses = self.losses
        data, like = losses.train_part, losses.flat.x
        changes = losses.data.augmentations
        return Stream(data, self.batches, like, changes, self.numbers, self.ahead)

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class Trained:
    """Where clients ended, and what it took."""

    x: Tensor
    """`[C, P]`"""
    evaluations: int
    """gradients of single samples"""
    first_gradient: Tensor | None = None
    last_gradient: Tensor | None = None


def train(network: Network, problem: LocalProblem, group: Group) -> Trained:
    """Do the work of several clients; `problem` is that of all of them, stacked."""
    losses, solver = group.losses, group.solver
    shapes, clients = losses.flat.shapes, len(group)

    def lists(vectors: Tensor) -> Lists:
        return network.arranged(split(vectors, shapes))

    flat = network.vectors(losses.flat.x, clients)
    views = split(flat, shapes)
    x = network.room(views)
    start = lists(problem.start)
    step = _step(network, solver, problem, x, start, lists)
    stream = group.stream()
    draws = Draws(group.numbers, losses.device) if network.draws else None
    now = [each.expand(clients, *each.shape[1:]) for each in start]
    first = last = None
    evaluations = stream.evaluations
    if "first_gradient" in problem.ask:
        first, samples = _full_gradient(network, now, group, draws)
        evaluations += samples
    if "last_gradient" in problem.ask:
        last = vectors_like(flat, clients)
    scale = number(problem.scale)
    active = clients
    for s in range(len(stream)):
        if stream.active[s] < active:
            active = stream.active[s]
            step.keep(active)
            now = [each[:active] for each in now]
            scale = scale[:active] if isinstance(scale, Tensor) else scale
            if draws is not None:
                draws.keep(active)
        batch = stream.at(s)
        if draws is not None:
            draws.sizes = batch.sizes
        step.rate = group.rates.at(s)
        network.backward(now, batch, scale, step, draws)
        if last is not None:
            assert isinstance(step, Stepper)
            after = stream.active[s + 1] if s + 1 < len(stream) else 0
            done = step.gradient(slice(after, active))
            for own, gradient in zip(split(last[after:active], shapes), done, strict=True):
                own.copy_(gradient)
        step.take()
        if s == 0:
            now = x if active == clients else [each[:active] for each in x]
    for view, own in zip(views, x, strict=True):
        if own is not view:
            view.copy_(own)
    return Trained(flat, evaluations, first, last)


def _full_gradient(
    network: Network, x: Lists, group: Group, draws: Draws | None
) -> tuple[Tensor, int]:
    """∇f of each client at x, weight decay included, and the number of samples in it."""
    losses = group.losses
    once = [replace(work, steps=1) for work in group.works]
    whole = SGD(group.solver.lr, batch_size=None, steps=1)
    chosen = indices(losses.train_part, group.places, once, whole)
    stream = Stream(losses.train_part, chosen, losses.flat.x)
    batch, before = stream.at(0), network.buffers()
    if draws is not None:
        draws.sizes = batch.sizes
    gradients = Gradients(x)
    network.backward(x, batch, 1.0, gradients, draws)
    network.load_buffers(before)
    found = vectors_like(losses.flat.x, len(group))
    for own, g, at in zip(split(found, losses.flat.shapes), gradients.values, x, strict=True):
        own.copy_(g.add_(at, alpha=group.solver.weight_decay))
    return found, stream.evaluations


def _step(
    network: Network,
    solver: SGD,
    problem: LocalProblem,
    x: Lists,
    start: Lists,
    lists: Callable[[Tensor], Lists],
) -> Step:
    """How the clients step: in the backward pass where the solver is plain."""
    v, z, s = problem.linear, problem.center, number(problem.scale)
    r = number(problem.weight) if z is not None else 0.0
    plain = not solver.momentum and solver.clip is None and not problem.ask
    if not (network.fuses and plain):
        terms = Terms(
            s,
            r,
            None if v is None else lists(v),
            None if z is None else lists(z),
            problem.pull_outside_momentum,
        )
        return Stepper(solver, x, start, terms)
    constant = v
    if z is not None and not (isinstance(r, float) and r == 0.0):
        own = r[:, None] if isinstance(r, Tensor) else r
        constant = z * -own if v is None else v - own * z
    shrink = s * solver.weight_decay + r
    return Fused(x, start, shrink, None if constant is None else lists(constant))


def split(vectors: Tensor, shapes: Sequence[torch.Size]) -> Lists:
    """`[P]` (the same for all) or `[C, P]` as views, `[1, …]` or `[C, …]` each."""
    rows = vectors[None] if vectors.ndim == 1 else vectors
    parts = rows.split([shape.numel() for shape in shapes], dim=1)
    return [part.view(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]


def number(value: Number) -> Tensor | float:
    """A number per client, `[C]`, or one for all."""
    if not isinstance(value, Tensor):
        return float(value)
    flat = value.reshape(-1)
    return float(flat[0]) if bool((flat == flat[0]).all()) else flat


class Rates:
    """The learning rates of a round's steps."""

    def __init__(self, solver: SGD, round: int):
        self._schedule, self._round, self._within = as_schedule(solver.lr), round, solver
        self._rate = self._schedule.at(round)

    def at(self, step: int) -> float:
        """η_s"""
        rate = self._rate * self._schedule.within(self._round, step)
        over_steps = self._within.step_schedule
        return rate if over_steps is None else rate * as_schedule(over_steps).at(step)


def a_norms(problem: LocalProblem, group: Group) -> list[float]:
    """‖a‖₁ of each client; it depends on its steps and its pull only."""
    solver, works, rates = group.solver, group.works, group.rates
    r = problem.weight if problem.center is not None else 0.0
    pulls = torch.as_tensor(r, dtype=torch.float64).reshape(-1)
    totals: dict[float, list[float]] = {}
    """by pull, after 0, 1, 2, … steps"""
    rate = works[0].rate
    for r in set(pulls.tolist()):
        pull = rate * r
        a_norm = ANorm(solver.momentum, solver.nesterov, pull, problem.pull_outside_momentum)
        totals[r] = [0.0]
        for step in range(works[0].steps):
            a_norm.step(rates.at(step) / rate)
            totals[r].append(a_norm.value)
    pairs = zip(works, pulls.expand(len(works)).tolist(), strict=True)
    return [totals[r][work.steps] for work, r in pairs]
