"""Local training of several clients at once: the loop over steps.

The engine cuts clients into groups and chunks; `train` runs one chunk on a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from undrift.core.problem import Keep, LocalProblem, Number, Work
from undrift.engines.compiled.dense import DenseChain, MoveSums
from undrift.engines.vectorised.ascending import backward_ascending
from undrift.engines.vectorised.batches import BatchStream, batch_indices
from undrift.engines.vectorised.factored import FactoredWeight, factoring_pays
from undrift.engines.vectorised.networks import SMALL_NUMBERS, Network
from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.steps import (
    AdamStep,
    FullStep,
    FusedStep,
    Gradients,
    ParameterList,
    ProblemTerms,
    SGDStep,
    Step,
    vectors_like,
)
from undrift.local.adaptive import FIRST, SECOND, STEPS, Adam
from undrift.local.base import require_ascent
from undrift.local.minibatches import MinibatchSolver
from undrift.local.schedules import as_schedule
from undrift.local.solvers import SGD, ANorm
from undrift.nets.module_losses import ModuleLosses


class Group:
    """Clients with the same solver in the same round, those with most steps first.

    It prepares what is the same for all of them, or can be drawn for all at once. They train in
    chunks, `group.of(slice)`.

    Parameters
    ----------
    losses
        the model and the data
    solver
        the clients' solver
    places
        the clients' places in the data
    works
        the clients' work
    keys
        each client's key for dropout and augmentation, if there are any
    gatherer
        a thread that gathers the next batches while the present ones are computed with
    """

    def __init__(
        self,
        losses: ModuleLosses,
        solver: MinibatchSolver,
        places: Sequence[int],
        works: Sequence[Work],
        keys: Sequence[int] = (),
        gatherer: Executor | None = None,
    ):
        self.gatherer = gatherer
        self.losses, self.solver = losses, solver
        self.places, self.works, self.keys = places, works, keys
        self.indices = batch_indices(losses.train_part, places, works, solver)
        self.rates = Rates(solver, works[0].round)

    def of(self, some: slice) -> Group:
        """Some of the clients, to train at once."""
        found = copy(self)
        found.places, found.works = self.places[some], self.works[some]
        found.keys = self.keys[some]
        found.indices = self.indices.of(some)
        return found

    def stream(self) -> BatchStream:
        """The clients' batches."""
        losses = self.losses
        part, like = losses.train_part, losses.flat.x
        augmentations = losses.data.augmentations
        return BatchStream(part, self.indices, like, augmentations, self.keys, self.gatherer)

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class Trained:
    """The clients' final models, and what the method asked for beside them."""

    x: Tensor
    """`[C, P]`"""
    evaluations: int
    """gradients of single samples that were computed"""
    first_gradient: Tensor | None = None
    """∇f at the start, over all samples, `[C, P]`"""
    last_gradient: Tensor | None = None
    """∇f of the last step's batch, `[C, P]`"""
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """what clients keep for their solver, `[C, P]` or `[C, 1]`"""
    factored: Sequence[tuple[int, FactoredWeight]] = ()
    """weights that are not formed, each with its first column in `x`, which is undefined there"""
    sums: MoveSums | None = None
    """sums of the moves from the shared start, if they were asked for and are known"""
    form: Callable[[], None] | None = None
    """writes the models to `x`, which is undefined until then; None if it has them"""

    def formed(self) -> Trained:
        """The same with all weights written to `x`."""
        for first, weight in self.factored:
            columns = self.x[:, first : first + weight.numbers]
            weight.form(columns.view(len(self.x), *weight.shape))
        if self.form is not None:
            self.form()
        return replace(self, factored=(), form=None)


def train(
    network: Network,
    problem: LocalProblem,
    group: Group,
    mine: Keep = Keep(),
    sums: MoveSums | None = None,
    models: bool = True,
) -> Trained:
    """Train the clients of a chunk; `problem` has the local problems of all of them, stacked.

    `mine` is what the clients keep, with their solver's part of it, stacked. `sums` is memory for
    sums of the clients' moves, which the C kernel computes on the way. Unless the `models` are
    needed as well, it does not write them.

    The vectors in the result belong to the network, which reuses them for its next chunk unless
    `network.release_vectors()` is called.
    """
    losses, solver = group.losses, group.solver
    require_ascent(solver, problem)
    shapes, clients = losses.flat.shapes, len(group)

    def parameter_list(vectors: Tensor) -> ParameterList:
        return network.in_memory_order(split(vectors, shapes))

    flat = network.vectors(losses.flat.x, clients)
    usual = problem.ascent is None and not losses.data.augmentations
    if network.chain is not None and usual and _fuses(network, solver, problem):
        evaluations = int(group.indices.sizes.sum())
        by_kernel = partial(_train_by_kernel, network.chain, problem, group)
        if sums is None or problem.start.ndim > 1:
            by_kernel(flat)
            return Trained(flat, evaluations)
        by_kernel(flat if models else None, sums)
        form = None if models else partial(by_kernel, flat)
        return Trained(flat, evaluations, sums=sums, form=form)
    views = split(flat, shapes)
    x = network.parameter_tensors(views)
    start = parameter_list(problem.start)
    stream = group.stream()
    factored = _factored(network, problem, group, stream)
    step = _step(network, solver, problem, x, start, parameter_list, mine, factored)
    for layer, _ in network.flat_linears:
        layer.factored = factored.get(layer.weight)
    uses_masks = network.uses_random_numbers
    masks = RandomMasks(group.keys, losses.device) if uses_masks else None
    # The first batch is computed at the start, which clients may share, `[1, …]`; `x` holds the
    # parameters only after the first step.
    now = [each.expand(clients, *each.shape[1:]) for each in start]
    first = last = None
    evaluations = stream.evaluations * (1 if problem.ascent is None else 2)
    if "first_gradient" in problem.ask:
        first, samples = _full_gradient(network, now, group, masks)
        evaluations += samples
    if "last_gradient" in problem.ask:
        last = vectors_like(flat, clients)
    scale = number(problem.scale)
    active = clients
    for s in range(len(stream)):
        if stream.active[s] < active:
            # Some clients have finished. They are the last ones, so every tensor is cut short.
            active = stream.active[s]
            step.keep(active)
            now = [each[:active] for each in now]
            scale = scale[:active] if isinstance(scale, Tensor) else scale
            if masks is not None:
                masks.keep(active)
        batch = stream.at(s)
        if masks is not None:
            masks.sizes = batch.sizes
        step.rate = group.rates.at(s)
        if problem.ascent is None:
            network.backward(now, batch, scale, step, masks)
        else:
            backward_ascending(network, now, batch, scale, step, masks, problem.ascent)
        if last is not None:
            assert isinstance(step, FullStep)
            # The clients for whom this is the last step: active now, but not in the next one.
            after = stream.active[s + 1] if s + 1 < len(stream) else 0
            gradients = step.gradient(slice(after, active))
            for own, gradient in zip(split(last[after:active], shapes), gradients, strict=True):
                own.copy_(gradient)
        step.finish()
        if s == 0:
            now = x if active == clients else [each[:active] for each in x]
    for view, own in zip(views, x, strict=True):
        if own is not view:
            view.copy_(own)
    for layer, _ in network.flat_linears:
        layer.factored = None
    state = _solver_state(step, flat, shapes)
    columns = [0, *accumulate(shape.numel() for shape in shapes)]
    unformed = [(columns[number], weight) for number, weight in sorted(factored.items())]
    return Trained(flat, evaluations, first, last, state, unformed)


def _train_by_kernel(
    chain: DenseChain,
    problem: LocalProblem,
    group: Group,
    x: Tensor | None,
    sums: MoveSums | None = None,
) -> None:
    """Take all steps of plain SGD at once; `x`, `[C, P]`, receives the clients' models."""
    rows, counts = group.indices.rows, group.indices.sizes
    rates = [group.rates.at(step) for step in range(len(rows))]
    scale, pull = number(problem.scale), _pull(problem)
    decay, constant = scale * group.solver.penalty + pull, _constant(problem, pull)
    part, start = group.losses.train_part, problem.start
    chain.train(part, rows, counts, start, rates, scale, decay, constant, x, sums)


def _solver_state(step: Step, like: Tensor, shapes: Sequence[torch.Size]) -> dict[str, Tensor]:
    """What clients keep for their solver, as vectors `[C, P]` and numbers `[C, 1]`."""
    found: dict[str, Tensor] = {}
    for name, values in step.state().items() if isinstance(step, FullStep) else ():
        if isinstance(values, Tensor):
            found[name] = values
            continue
        found[name] = torch.empty_like(like)
        for own, value in zip(split(found[name], shapes), values, strict=True):
            own.copy_(value)
    return found


def _full_gradient(
    network: Network, x: ParameterList, group: Group, masks: RandomMasks | None
) -> tuple[Tensor, int]:
    """∇f of each client at x over all its samples, with weight decay, and the samples' number."""
    losses = group.losses
    once = [replace(work, steps=1) for work in group.works]
    all_samples = SGD(group.solver.lr, batch_size=None, steps=1)
    indices = batch_indices(losses.train_part, group.places, once, all_samples)
    stream = BatchStream(losses.train_part, indices, losses.flat.x)
    # A forward pass updates BatchNorm's statistics; they are put back, as this is no training.
    batch, before = stream.at(0), network.buffers()
    if masks is not None:
        masks.sizes = batch.sizes
    gradients = Gradients(x)
    network.backward(x, batch, 1.0, gradients, masks)
    network.load_buffers(before)
    found = vectors_like(losses.flat.x, len(group))
    for own, g, at in zip(split(found, losses.flat.shapes), gradients.values, x, strict=True):
        own.copy_(g.add_(at, alpha=group.solver.penalty))
    return found, stream.evaluations


def _step(
    network: Network,
    solver: MinibatchSolver,
    problem: LocalProblem,
    x: ParameterList,
    start: ParameterList,
    parameter_list: Callable[[Tensor], ParameterList],
    mine: Keep,
    factored: Mapping[int, FactoredWeight],
) -> Step:
    """The step that suits solver and problem: fused into the backward pass for plain SGD.

    Momentum and clipping need a parameter's whole gradient, and methods that ask for gradients
    or combine two of them need them stored.
    """
    v, z, s = problem.linear, problem.center, number(problem.scale)
    r = _pull(problem)
    if not _fuses(network, solver, problem):
        terms = ProblemTerms(
            s,
            r,
            None if v is None else parameter_list(v),
            None if z is None else parameter_list(z),
            problem.pull_outside_momentum,
        )
        if isinstance(solver, Adam):
            return AdamStep(solver, x, start, terms, _kept_moments(solver, mine, parameter_list))
        assert isinstance(solver, SGD)
        return SGDStep(solver, x, start, terms)
    constant = _constant(problem, r)
    decay = s * solver.penalty + r
    constants = None if constant is None else parameter_list(constant)
    pull = r if z is problem.start and isinstance(r, float) else 0.0
    return FusedStep(x, start, decay, constants, factored, pull)


def _fuses(network: Network, solver: MinibatchSolver, problem: LocalProblem) -> bool:
    """Whether steps are taken inside the backward pass."""
    plain = isinstance(solver, SGD) and not solver.momentum and solver.clip is None
    one_gradient = problem.ascent is None or problem.ascent.share == 1.0
    return network.supports_fused_steps and plain and one_gradient and not problem.ask


def _pull(problem: LocalProblem) -> Tensor | float:
    """r, zero without a center."""
    return number(problem.weight) if problem.center is not None else 0.0


def _constant(problem: LocalProblem, r: Tensor | float) -> Tensor | None:
    """v − r·z, the part of the local gradient that does not depend on x; None for zero."""
    v, z = problem.linear, problem.center
    if z is None or (isinstance(r, float) and r == 0.0):
        return v
    own = r[:, None] if isinstance(r, Tensor) else r
    return z * -own if v is None else v - own * z


def _factored(
    network: Network, problem: LocalProblem, group: Group, stream: BatchStream
) -> dict[int, FactoredWeight]:
    """The weights that train without being formed, by number.

    Clients must share their start and the constant of their problems: with a start or a linear
    term of its own, a client's products would again need a matrix of its own. So they would at the
    shifted points of sharpness-aware gradients.
    """
    solver, losses = group.solver, group.losses
    v, z, r, start = problem.linear, problem.center, _pull(problem), problem.start
    shared = start.ndim == 1 and (v is None or v.ndim == 1)
    constant = v
    if z is not None and not (isinstance(r, float) and r == 0.0):
        shared = shared and z.ndim == 1 and isinstance(r, float)
        if shared and z is not start:
            constant = z * -r if v is None else v - r * z
    shared = shared and problem.ascent is None
    if not (shared and len(stream) and _fuses(network, solver, problem)):
        return {}
    shapes = losses.flat.shapes
    starts = split(start, shapes)
    constants = None if constant is None else split(constant, shapes)
    found: dict[int, FactoredWeight] = {}
    for layer, reads_samples in network.flat_linears:
        shape = shapes[layer.weight]
        if shape.numel() < SMALL_NUMBERS or not factoring_pays(stream.rows, *shape):
            continue
        inputs = None
        if reads_samples and not losses.data.augmentations:
            inputs = stream.gather_inputs().flatten(2)
        found[layer.weight] = FactoredWeight(
            starts[layer.weight][0],
            None if constants is None else constants[layer.weight][0],
            len(group),
            stream.rows,
            moves_by_itself=bool(solver.penalty or constants is not None or z is not None),
            ragged=min(stream.active) < len(group),
            inputs=inputs,
        )
    return found


def _kept_moments(
    solver: Adam, mine: Keep, parameter_list: Callable[[Tensor], ParameterList]
) -> tuple[ParameterList, ParameterList, Tensor] | None:
    """Copies of the moments that clients kept, which the steps may change."""
    if not solver.keep_state:
        return None
    first, second = (parameter_list(getattr(mine, name).clone()) for name in (FIRST, SECOND))
    return first, second, getattr(mine, STEPS).clone()


def split(vectors: Tensor, shapes: Sequence[torch.Size]) -> ParameterList:
    """Vectors `[P]` (shared) or `[C, P]` as views of each parameter, `[1, …]` or `[C, …]`."""
    rows = vectors[None] if vectors.ndim == 1 else vectors
    parts = rows.split([shape.numel() for shape in shapes], dim=1)
    return [part.view(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]


def number(value: Number) -> Tensor | float:
    """A number of each client, `[C]`, or a float if all clients have the same."""
    if not isinstance(value, Tensor):
        return float(value)
    flat = value.reshape(-1)
    return float(flat[0]) if bool((flat == flat[0]).all()) else flat


class Rates:
    """The learning rates of a round's steps."""

    def __init__(self, solver: MinibatchSolver, round: int):
        self._schedule, self._round = as_schedule(solver.lr), round
        over_steps = solver.step_schedule
        self._step_schedule = None if over_steps is None else as_schedule(over_steps)
        self._rate = self._schedule.at(round)

    def at(self, step: int) -> float:
        """η_s, the learning rate of a step"""
        rate = self._rate * self._schedule.within(self._round, step)
        return rate if self._step_schedule is None else rate * self._step_schedule.at(step)


def a_norms(problem: LocalProblem, group: Group) -> list[float]:
    """‖a‖₁ of each client, which depends only on its number of steps and its pull r."""
    solver, works, rates = group.solver, group.works, group.rates
    if not isinstance(solver, SGD):
        return [float("nan")] * len(works)
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
