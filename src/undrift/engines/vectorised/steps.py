"""Steps of SGD and Adam of many clients at once, on parameters `[C, …]`.

A network calls `product` or `plain` of a step with every parameter's gradient, from the last layer
to the first. `FusedStep` updates the parameter right there; `FullStep` stores all gradients and
updates at the end, which momentum, clipping and Adam need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undrift.engines.vectorised.factored import FactoredWeight
from undrift.engines.vectorised.stacked.layers import Sink
from undrift.local.adaptive import FIRST, SECOND, STEPS, Adam
from undrift.local.minibatches import MinibatchSolver
from undrift.local.solvers import SGD
from undrift.utils import products

ALIGNED_NUMBERS = 16
"""The vectors of clients begin at multiples of this many numbers: 64 bytes in single precision,
a cache line."""

PIECE_BYTES = 1 << 20
"""Large weights change by pieces of at most this size, which stay in a core's cache."""

ParameterList = list[Tensor]
"""A tensor for each parameter of the network, `[C, …]`, or `[1, …]` if clients share it."""


@dataclass(frozen=True)
class ProblemTerms:
    """The local problems without their data: s·f + ⟨v, x⟩ + (r/2)|x − z|².

    Numbers are `[C]` tensors, or floats if all clients have the same; vectors are `[C, …]`, or
    `[1, …]` if all clients have the same.
    """

    scale: Tensor | float
    """s"""
    weight: Tensor | float
    """r, zero if there is no center"""
    linear: ParameterList | None
    """v"""
    center: ParameterList | None
    """z"""
    pull_outside_momentum: bool
    """whether r(x − z) is applied beside the momentum instead of entering it"""

    def keep(self, active: int) -> ProblemTerms:
        """The terms of the first `active` clients."""
        return replace(
            self,
            scale=first_numbers(self.scale, active),
            weight=first_numbers(self.weight, active),
            linear=first_vectors(self.linear, active),
            center=first_vectors(self.center, active),
        )


def broadcastable(value: Tensor | float, like: Tensor) -> Tensor | float:
    """Numbers of clients `[C]` as `[C, 1, …]`, to be multiplied with a parameter `[C, …]`."""
    return value.view(-1, *[1] * (like.ndim - 1)) if isinstance(value, Tensor) else value


def first_numbers(value: Tensor | float, active: int) -> Tensor | float:
    """The numbers of the first `active` clients."""
    return value[:active] if isinstance(value, Tensor) else value


def first_vectors(vectors: ParameterList | None, active: int) -> ParameterList | None:
    """The vectors of the first `active` clients; shared ones, `[1, …]`, stay."""
    if vectors is None:
        return None
    return [each if len(each) == 1 else each[:active] for each in vectors]


def vectors_like(x: Tensor, clients: int) -> Tensor:
    """Uninitialised vectors of some clients, `[C, P]`, each aligned for the processor."""
    size = x.shape[-1]
    padded = -(-size // ALIGNED_NUMBERS) * ALIGNED_NUMBERS
    return torch.empty(clients, padded, dtype=x.dtype, device=x.device)[:, :size]


class Gradients(Sink):
    """Stores gradients, one tensor per parameter."""

    def __init__(self, x: ParameterList):
        self.values = [torch.empty_like(each) for each in x]

    def keep(self, active: int) -> None:
        """Continue with the first `active` clients only."""
        self.values = [each[:active] for each in self.values]

    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        torch.bmm(left, right, out=self.values[number])

    def plain(self, number: int, gradient: Tensor) -> None:
        self.values[number].copy_(gradient)


class Step(Sink):
    """Takes one step of all clients from the gradients of s·f, and again for every batch.

    The first step reads from `start` and writes to `x`, whose contents are undefined before. That
    saves a copy of every client's parameters, since clients usually share their start, `[1, …]`.
    """

    rate: float = 0.0
    """the learning rate η_s of the step; the caller sets it before each step"""

    def __init__(self, x: ParameterList, start: ParameterList):
        self._x = x
        self._start: ParameterList | None = start

    def finish(self) -> None:
        """Finish the step; every parameter's gradient has been given."""
        self._start = None

    def keep(self, active: int) -> None:
        """Continue with the first `active` clients only."""
        self._x = [each[:active] for each in self._x]


class FusedStep(Step):
    """Plain SGD inside the backward pass: x ← (1 − η(s·λ + r))x − η·s·∇f − η(v − r·z).

    The terms of the local problem are regrouped so that each parameter needs one product with
    accumulation (`baddbmm`) and at most one addition. A weight's gradient is never stored, which
    saves writing and reading as many numbers as the model has.

    A layer must compute the gradient of its inputs before it gives its weight's gradient here,
    since that changes the weight.
    """

    def __init__(
        self,
        x: ParameterList,
        start: ParameterList,
        decay: Tensor | float,
        constant: ParameterList | None,
        factored: Mapping[int, FactoredWeight] | None = None,
        pull: float = 0.0,
    ) -> None:
        super().__init__(x, start)
        self._decay = decay
        """s·λ + r"""
        self._constant = constant
        """v − r·z"""
        self._factored = factored or {}
        """weights that are not formed, by number; their constants do not include −r·z if z is the
        start"""
        self._pull = pull
        """r if z is the start, otherwise zero"""

    def keep(self, active: int) -> None:
        super().keep(active)
        self._decay = first_numbers(self._decay, active)
        self._constant = first_vectors(self._constant, active)

    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        if number in self._factored:
            gradient = left.transpose(1, 2)
            self._factored[number].step(gradient, self.rate, self._decay, self._pull)
            return
        if products.pays(left.shape[1], left.shape[2], right.shape[2], left):
            self._large_product(number, left, right)
            return
        x, factor = self._started(number)
        x.baddbmm_(left, right, beta=factor, alpha=-self.rate)
        self._add_constant(x, number)

    def plain(self, number: int, gradient: Tensor) -> None:
        x, factor = self._started(number)
        if factor != 1.0:
            x.mul_(factor)
        x.add_(gradient, alpha=-self.rate)
        self._add_constant(x, number)

    def _large_product(self, number: int, left: Tensor, right: Tensor) -> None:
        """The same with a library that cannot add the product to a matrix: piece by piece.

        A piece of the gradient is still in the cache when it is applied.
        """
        x, rate, decay = self._x[number], self.rate, self._decay
        source = x if self._start is None else self._start[number].expand_as(x)
        constant = self._constant
        constants = None if constant is None else constant[number].expand_as(x).unbind()
        decays = decay.tolist() if isinstance(decay, Tensor) else [decay] * len(x)
        pieces = -(-x[0].numel() * x.element_size() // PIECE_BYTES)
        rows = -(-x.shape[1] // pieces)
        each = zip(x.unbind(), source.unbind(), left.unbind(), right.unbind(), decays, strict=True)
        for k, (own, before, outputs, inputs, own_decay) in enumerate(each):
            inputs = inputs.t()
            for first in range(0, len(own), rows):
                piece = slice(first, first + rows)
                change = products.product(outputs[piece], inputs)
                if constants is not None:
                    change.add_(constants[k][piece])
                if own_decay:
                    # (1 − ηd)x − ηg in one pass: a share ηd of the way from x to −g/d
                    change.mul_(-1 / own_decay)
                    torch.lerp(before[piece], change, rate * own_decay, out=own[piece])
                else:
                    torch.add(before[piece], change, alpha=-rate, out=own[piece])

    def _started(self, number: int) -> tuple[Tensor, float]:
        """A parameter before the step, and the factor 1 − η(s·λ + r) still to be applied to it.

        `baddbmm` takes one factor only; if clients have different ones, they are applied here.
        """
        x = self._x[number]
        if self._start is not None:
            x.copy_(self._start[number])
        if isinstance(self._decay, Tensor):
            return x.mul_(broadcastable(1 - self.rate * self._decay, x)), 1.0
        return x, 1 - self.rate * self._decay

    def _add_constant(self, x: Tensor, number: int) -> None:
        if self._constant is not None:
            x.add_(self._constant[number], alpha=-self.rate)


class FullStep(Step):
    """Steps on stored gradients; subclasses have the solvers' rules.

    The order of operations is that of the solver's `run`, so that results agree with the serial
    engine.
    """

    def __init__(
        self, solver: MinibatchSolver, x: ParameterList, start: ParameterList, terms: ProblemTerms
    ):
        super().__init__(x, start)
        self._solver = solver
        self._terms = terms
        self._gradients = Gradients(x)

    def keep(self, active: int) -> None:
        super().keep(active)
        self._terms = self._terms.keep(active)
        self._gradients.keep(active)

    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        self._gradients.product(number, left, right)

    def plain(self, number: int, gradient: Tensor) -> None:
        self._gradients.plain(number, gradient)

    def add(self, gradients: ParameterList, factor: Tensor | float) -> None:
        """Add multiples of gradients to those that were given."""
        for own, g in zip(self._gradients.values, gradients, strict=True):
            own.add_(g * broadcastable(factor, g))

    def gradient(self, clients: slice) -> ParameterList:
        """∇f of some clients before the step is finished; f includes weight decay."""
        found = []
        for x, g in zip(self._start or self._x, self._gradients.values, strict=True):
            x = (x.expand_as(g) if len(x) == 1 else x)[clients]
            scale = self._terms.scale
            scale = scale[clients] if isinstance(scale, Tensor) else scale
            g = g[clients] / broadcastable(scale, g)  # the network gave the gradient of s·f
            found.append(g.add_(x, alpha=self._solver.penalty))
        return found

    def finish(self) -> None:
        if self._start is not None:
            for x, start in zip(self._x, self._start, strict=True):
                x.copy_(start)
        t, solver, gradients = self._terms, self._solver, self._gradients.values
        for number, (x, g) in enumerate(zip(self._x, gradients, strict=True)):
            if solver.penalty:
                g.addcmul_(x, _as_tensor(t.scale, x), value=solver.penalty)
            if t.linear is not None:
                g.add_(t.linear[number])
        if solver.clip is not None:
            # The norm is that over all parameters, so this needs a loop of its own.
            _clip(gradients, solver.clip)
        for number, (x, g) in enumerate(zip(self._x, gradients, strict=True)):
            pull = None
            if t.center is not None:
                pull = broadcastable(t.weight, x) * (x - t.center[number])
            self._move(number, x, g, pull)
        super().finish()

    @abstractmethod
    def _move(self, number: int, x: Tensor, g: Tensor, pull: Tensor | None) -> None:
        """Take the step of one parameter; `pull` is r(x − z)."""

    def state(self) -> Mapping[str, ParameterList | Tensor]:
        """What clients keep for their solver: lists of parameters, or numbers `[C, 1]`."""
        return {}


class SGDStep(FullStep):
    """SGD with all its options."""

    _solver: SGD

    def __init__(self, solver: SGD, x: ParameterList, start: ParameterList, terms: ProblemTerms):
        super().__init__(solver, x, start, terms)
        self._momentum = [torch.zeros_like(x) for x in x] if solver.momentum else None

    def keep(self, active: int) -> None:
        super().keep(active)
        if self._momentum is not None:
            self._momentum = [each[:active] for each in self._momentum]

    def _move(self, number: int, x: Tensor, g: Tensor, pull: Tensor | None) -> None:
        t, solver = self._terms, self._solver
        if pull is not None and not t.pull_outside_momentum:
            g.add_(pull)
        if self._momentum is not None:
            u = self._momentum[number].mul_(solver.momentum).add_(g)
            g = g.add_(u, alpha=solver.momentum) if solver.nesterov else u
        x.add_(g, alpha=-self.rate)
        if pull is not None and t.pull_outside_momentum:
            x.add_(pull, alpha=-self.rate)


class AdamStep(FullStep):
    """Adam and AdamW.

    Parameters
    ----------
    solver, x, start, terms
        as for `FullStep`
    kept
        the moments and the numbers of steps `[C, 1]` that clients kept; None to start at zero
    """

    _solver: Adam

    def __init__(
        self,
        solver: Adam,
        x: ParameterList,
        start: ParameterList,
        terms: ProblemTerms,
        kept: tuple[ParameterList, ParameterList, Tensor] | None = None,
    ):
        super().__init__(solver, x, start, terms)
        if kept is None:
            self._all_first = [torch.zeros_like(each) for each in x]
            self._all_second = [torch.zeros_like(each) for each in x]
            self._all_steps = x[0].new_zeros(len(x[0]), 1)
        else:
            self._all_first, self._all_second, self._all_steps = kept
        # The lists of all clients stay for `state`; those of active clients are views of them.
        self._first, self._second = self._all_first, self._all_second
        self._steps = self._all_steps

    def keep(self, active: int) -> None:
        super().keep(active)
        self._first = [each[:active] for each in self._first]
        self._second = [each[:active] for each in self._second]
        self._steps = self._steps[:active]

    def finish(self) -> None:
        self._steps += 1
        super().finish()

    def _move(self, number: int, x: Tensor, g: Tensor, pull: Tensor | None) -> None:
        solver, (beta1, beta2) = self._solver, self._solver.betas
        if pull is not None:
            g.add_(pull)
        if solver.decoupled_decay:
            x.mul_(1 - self.rate * solver.decoupled_decay)
        first = self._first[number].lerp_(g, 1 - beta1)
        second = self._second[number].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = second.sqrt().div_(self._correction(beta2, x).sqrt()).add_(solver.eps)
        x.sub_(first / root * (self.rate / self._correction(beta1, x)))

    def _correction(self, beta: float, like: Tensor) -> Tensor:
        """1 − β^t of each client, in a shape that broadcasts with a parameter."""
        exact = 1 - beta ** self._steps.double().flatten()
        return exact.to(like.dtype).view(-1, *[1] * (like.ndim - 1))

    def state(self) -> Mapping[str, ParameterList | Tensor]:
        if not self._solver.keep_state:
            return {}
        return {FIRST: self._all_first, SECOND: self._all_second, STEPS: self._all_steps}


def _clip(gradients: Sequence[Tensor], most: float) -> None:
    """Scale every client's gradient so that its norm is at most `most`, in place."""
    squares = sum(g.flatten(1).square().sum(1) for g in gradients)
    assert isinstance(squares, Tensor)
    factor = (most / squares.sqrt().clamp(min=1e-30)).clamp(max=1.0)
    for g in gradients:
        g.mul_(broadcastable(factor, g))


def _as_tensor(value: Tensor | float, like: Tensor) -> Tensor:
    """Numbers as a tensor that broadcasts with `like`."""
    found = broadcastable(value, like)
    return found if isinstance(found, Tensor) else like.new_tensor(found)
