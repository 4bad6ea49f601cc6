"""The steps that many clients take together: what a solver does, for `[C, …]` parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.engines.vectorised.layers import Sink
from undrift.solvers import SGD

Lists = list[Tensor]
"""A tensor per parameter of the network, `[C, …]` each."""


@dataclass
class Terms:
    """The terms of the local problems besides the data: s·f + ⟨v, x⟩ + (r/2)|x − z|².

    Numbers are `[C]` tensors, or floats where all clients have the same.
    """

    scale: Tensor | float
    weight: Tensor | float
    """r"""
    linear: Lists | None
    """v, each `[C, …]` or `[1, …]` where all clients have the same"""
    center: Lists | None
    """z"""
    outside: bool
    """whether the pull is applied to each step by itself"""

    @property
    def pulled(self) -> bool:
        """Whether there is a pull towards a centre."""
        r = self.weight
        return self.center is not None and bool((r != 0).any() if isinstance(r, Tensor) else r != 0)


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


class Gradients(Sink):
    """Gradients in memory, one tensor per parameter."""

    def __init__(self, parameters: Lists):
        self.values = [torch.empty_like(each) for each in parameters]

    def keep(self, active: int) -> None:
        """Go on with the first clients only."""
        self.values = [each[:active] for each in self.values]

    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        torch.bmm(left, right, out=self.values[number])

    def plain(self, number: int, gradient: Tensor) -> None:
        self.values[number].copy_(gradient)


class Fused(Sink):
    """Plain SGD in the backward pass: x ← (1 − η(s·λ + r))x − η·s·∇f − η(v − r·z).

    The scale s is in the loss. The gradient of a weight is never in memory.
    """

    def __init__(self, parameters: Lists, terms: Terms, decay: float):
        self._parameters = parameters
        self._shrink = terms.scale * decay + (terms.weight if terms.pulled else 0.0)
        self._constant: Lists | None = None
        if terms.linear is not None:
            self._constant = terms.linear
        if terms.pulled:
            assert terms.center is not None
            pulls = [-each(terms.weight, z) * z for z in terms.center]
            if self._constant is None:
                self._constant = pulls
            else:
                self._constant = [v + p for v, p in zip(self._constant, pulls, strict=True)]
        self.rate = 0.0

    def keep(self, active: int) -> None:
        """Go on with the first clients only."""
        self._parameters = [each[:active] for each in self._parameters]
        self._shrink = first(self._shrink, active)
        self._constant = firsts(self._constant, active)

    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        x = self._parameters[number]
        x.baddbmm_(left, right, beta=self._kept(x), alpha=-self.rate)
        self._tilt(x, number)

    def plain(self, number: int, gradient: Tensor) -> None:
        x = self._parameters[number]
        kept = self._kept(x)
        if kept != 1.0:
            x.mul_(kept)
        x.add_(gradient, alpha=-self.rate)
        self._tilt(x, number)

    def _kept(self, x: Tensor) -> float:
        """1 − η(s·λ + r); where clients differ, the parameter is multiplied here."""
        if isinstance(self._shrink, Tensor):
            x.mul_(each(1 - self.rate * self._shrink, x))
            return 1.0
        return 1 - self.rate * self._shrink

    def _tilt(self, x: Tensor, number: int) -> None:
        if self._constant is not None:
            x.add_(self._constant[number], alpha=-self.rate)


class Stepper:
    """SGD with all its options, on gradients in memory."""

    def __init__(self, solver: SGD, parameters: Lists, terms: Terms):
        self._solver = solver
        self._x = parameters
        self._terms = terms
        self._momentum = [torch.zeros_like(x) for x in parameters] if solver.momentum else None

    def keep(self, active: int) -> None:
        """Go on with the first clients only."""
        t = self._terms
        self._x = [each[:active] for each in self._x]
        self._terms = Terms(
            first(t.scale, active),
            first(t.weight, active),
            firsts(t.linear, active),
            firsts(t.center, active),
            t.outside,
        )
        if self._momentum is not None:
            self._momentum = [each[:active] for each in self._momentum]

    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """One step from the gradients of s·f, which may be overwritten."""
        s, t, solver = self._terms.scale, self._terms, self._solver
        for number, (x, g) in enumerate(zip(self._x, gradients, strict=True)):
            if solver.weight_decay:
                g.addcmul_(x, _column(s, x), value=solver.weight_decay)
            if t.linear is not None:
                g.add_(t.linear[number])
        if solver.clip is not None:
            self._clip(gradients, solver.clip)
        for number, (x, g) in enumerate(zip(self._x, gradients, strict=True)):
            pull = None
            if t.pulled:
                assert t.center is not None
                pull = each(t.weight, x) * (x - t.center[number])
                if not t.outside:
                    g.add_(pull)
            if self._momentum is not None:
                u = self._momentum[number].mul_(solver.momentum).add_(g)
                g = g.add_(u, alpha=solver.momentum) if solver.nesterov else u
            x.add_(g, alpha=-rate)
            if pull is not None and t.outside:
                x.add_(pull, alpha=-rate)

    @staticmethod
    def _clip(gradients: Sequence[Tensor], most: float) -> None:
        squares = sum(g.flatten(1).square().sum(1) for g in gradients)
        assert isinstance(squares, Tensor)
        factor = (most / squares.sqrt().clamp(min=1e-30)).clamp(max=1.0)
        for g in gradients:
            g.mul_(each(factor, g))


def _column(value: Tensor | float, like: Tensor) -> Tensor:
    found = each(value, like)
    return found if isinstance(found, Tensor) else like.new_tensor(found)
