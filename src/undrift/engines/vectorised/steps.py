"""The steps that many clients take together: what a solver does, for `[C, …]` parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undrift.engines.vectorised.layers import Sink
from undrift.local.solvers import SGD

ALIGNED = 16
"""The vectors of clients lie so many numbers, or a multiple, apart."""

Lists = list[Tensor]
"""A tensor per parameter of the network, `[C, …]` each."""


@dataclass(frozen=True)
class Terms:
    """The terms of the local problems besides the data: s·f + ⟨v, x⟩ + (r/2)|x − z|².

    Numbers are `[C]` tensors, or floats where all clients have the same; vectors are `[C, …]`, or
    `[1, …]` where all have the same.
    """

    scale: Tensor | float
    weight: Tensor | float
    """r, zero where there is no centre"""
    linear: Lists | None
    """v"""
    center: Lists | None
    """z"""
    outside: bool
    """whether the pull is applied to each step by itself"""

    def keep(self, active: int) -> Terms:
        """Those of the first clients."""
        return replace(
            self,
            scale=first(self.scale, active),
            weight=first(self.weight, active),
            linear=firsts(self.linear, active),
            center=firsts(self.center, active),
        )


def each(value: Tensor | float, like: Tensor) -> Tensor | float:
    """A client's number, so that it multiplies a parameter `[C, …]`."""
    return value.view(-1, *[1] * (like.ndim - 1)) if isinstance(value, Tensor) else value


def first(value: Tensor | float, active: int) -> Tensor | float:
    """The numbers of the first clients."""
    return value[:active] if isinstance(value, Tensor) else value


def firsts(lists: Lists | None, active: int) -> Lists | None:
    """The vectors of the first clients; what all share stays."""
    if lists is None:
        return None
    return [each if len(each) == 1 else each[:active] for each in lists]


def vectors_like(x: Tensor, clients: int) -> Tensor:
    """Room for a vector of every client, `[C, P]`; each begins where a processor likes it."""
    size = x.shape[-1]
    padded = -(-size // ALIGNED) * ALIGNED
    return torch.empty(clients, padded, dtype=x.dtype, device=x.device)[:, :size]


class Gradients(Sink):
    """Gradients in memory, one tensor per parameter."""

    def __init__(self, x: Lists):
        self.values = [torch.empty_like(each) for each in x]

    def keep(self, active: int) -> None:
        """Go on with the first clients only."""
        self.values = [each[:active] for each in self.values]

    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        torch.bmm(left, right, out=self.values[number])

    def plain(self, number: int, gradient: Tensor) -> None:
        self.values[number].copy_(gradient)


class Step(Sink):
    """Takes the clients' steps, from the gradients of s·f that a network puts into it.

    The first step goes from where the clients start to `x`, which holds nothing before it.
    """

    rate: float = 0.0
    """η_s"""

    def __init__(self, x: Lists, start: Lists):
        self._x = x
        self._start: Lists | None = start

    def take(self) -> None:
        """All gradients are there: finish the step."""
        self._start = None

    def keep(self, active: int) -> None:
        """Go on with the first clients only."""
        self._x = [each[:active] for each in self._x]


class Fused(Step):
    """Plain SGD in the backward pass: x ← (1 − η(s·λ + r))x − η·s·∇f − η(v − r·z).

    The gradient of a weight is never in memory.
    """

    def __init__(
        self, x: Lists, start: Lists, shrink: Tensor | float, constant: Lists | None
    ) -> None:
        super().__init__(x, start)
        self._shrink = shrink
        """s·λ + r"""
        self._constant = constant
        """v − r·z"""

    def keep(self, active: int) -> None:
        super().keep(active)
        self._shrink = first(self._shrink, active)
        self._constant = firsts(self._constant, active)

    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        x, kept = self._begun(number)
        x.baddbmm_(left, right, beta=kept, alpha=-self.rate)
        self._tilt(x, number)

    def plain(self, number: int, gradient: Tensor) -> None:
        x, kept = self._begun(number)
        if kept != 1.0:
            x.mul_(kept)
        x.add_(gradient, alpha=-self.rate)
        self._tilt(x, number)

    def _begun(self, number: int) -> tuple[Tensor, float]:
        """A parameter before the step, and by what it is to be multiplied: 1 − η(s·λ + r)."""
        x = self._x[number]
        if self._start is not None:
            x.copy_(self._start[number])
        if isinstance(self._shrink, Tensor):  # where clients differ, it is done here
            return x.mul_(each(1 - self.rate * self._shrink, x)), 1.0
        return x, 1 - self.rate * self._shrink

    def _tilt(self, x: Tensor, number: int) -> None:
        if self._constant is not None:
            x.add_(self._constant[number], alpha=-self.rate)


class Stepper(Step):
    """SGD with all its options, on gradients in memory."""

    def __init__(self, solver: SGD, x: Lists, start: Lists, terms: Terms):
        super().__init__(x, start)
        self._solver = solver
        self._terms = terms
        self._gradients = Gradients(x)
        self._momentum = [torch.zeros_like(x) for x in x] if solver.momentum else None

    def keep(self, active: int) -> None:
        super().keep(active)
        self._terms = self._terms.keep(active)
        self._gradients.keep(active)
        if self._momentum is not None:
            self._momentum = [each[:active] for each in self._momentum]

    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        self._gradients.product(number, left, right)

    def plain(self, number: int, gradient: Tensor) -> None:
        self._gradients.plain(number, gradient)

    def gradient(self, clients: slice) -> Lists:
        """∇f of some clients in this step, before it is taken; weight decay is a part of f."""
        found = []
        for x, g in zip(self._start or self._x, self._gradients.values, strict=True):
            x = (x.expand_as(g) if len(x) == 1 else x)[clients]
            scale = self._terms.scale
            g = g[clients] / each(scale[clients] if isinstance(scale, Tensor) else scale, g)
            found.append(g.add_(x, alpha=self._solver.weight_decay))
        return found

    def take(self) -> None:
        if self._start is not None:
            for x, start in zip(self._x, self._start, strict=True):
                x.copy_(start)
        t, solver, gradients = self._terms, self._solver, self._gradients.values
        for number, (x, g) in enumerate(zip(self._x, gradients, strict=True)):
            if solver.weight_decay:
                g.addcmul_(x, _column(t.scale, x), value=solver.weight_decay)
            if t.linear is not None:
                g.add_(t.linear[number])
        if solver.clip is not None:
            _clip(gradients, solver.clip)
        for number, (x, g) in enumerate(zip(self._x, gradients, strict=True)):
            pull = None
            if t.center is not None:
                pull = each(t.weight, x) * (x - t.center[number])
                if not t.outside:
                    g.add_(pull)
            if self._momentum is not None:
                u = self._momentum[number].mul_(solver.momentum).add_(g)
                g = g.add_(u, alpha=solver.momentum) if solver.nesterov else u
            x.add_(g, alpha=-self.rate)
            if pull is not None and t.outside:
                x.add_(pull, alpha=-self.rate)
        super().take()


def _clip(gradients: Sequence[Tensor], most: float) -> None:
    """Bound the norm of every client's gradient."""
    squares = sum(g.flatten(1).square().sum(1) for g in gradients)
    assert isinstance(squares, Tensor)
    factor = (most / squares.sqrt().clamp(min=1e-30)).clamp(max=1.0)
    for g in gradients:
        g.mul_(each(factor, g))


def _column(value: Tensor | float, like: Tensor) -> Tensor:
    found = each(value, like)
    return found if isinstance(found, Tensor) else like.new_tensor(found)
