"""A client's work when some parameters are personal: together with the shared ones, or before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from undrift.core.losses import Batch, ClientLoss
from undrift.core.problem import LocalProblem, LocalResult, Work
from undrift.local.base import Solver
from undrift.local.minibatches import MinibatchSolver
from undrift.nets.client_losses import ModuleLoss
from undrift.nets.personal import Personal
from undrift.utils.errors import UndriftError
from undrift.utils.keys import key


class PartOfLoss(ClientLoss):
    """A client's loss as a function of some of its parameters; the others are fixed."""

    def __init__(self, loss: ClientLoss, before: Tensor, after: Tensor):
        self.samples = loss.samples
        self.shapes = _shapes_within(loss, len(before), len(after))
        self._loss, self._before, self._after = loss, before, after

    def expect(self, gradients: Iterator[tuple[int, Batch]]) -> None:
        self._loss.expect(gradients)

    def gradient(self, x: Tensor, batch: Batch = None) -> Tensor:
        return self._part(self._loss.gradient(self._whole(x), batch), x)

    def on_batch(self, batch: Batch = None) -> Callable[[Tensor], Tensor]:
        gradient = self._loss.on_batch(batch)
        return lambda x: self._part(gradient(self._whole(x)), x)

    def full_gradient(self, x: Tensor) -> Tensor:
        return self._part(self._loss.full_gradient(self._whole(x)), x)

    def _whole(self, x: Tensor) -> Tensor:
        return torch.cat([self._before, x, self._after])

    def _part(self, gradient: Tensor, x: Tensor) -> Tensor:
        return gradient[len(self._before) : len(self._before) + len(x)]


def _shapes_within(loss: ClientLoss, before: int, after: int) -> list[torch.Size] | None:
    """The shapes of a model's parameters without the first and the last numbers of its vector."""
    if loss.shapes is None:
        return None
    ends = list(accumulate(shape.numel() for shape in loss.shapes))
    last = ends[-1] - after
    return [s for s, end in zip(loss.shapes, ends, strict=True) if before < end <= last]


def solve_with_personal(
    loss: ModuleLoss,
    solver: Solver,
    problem: LocalProblem,
    work: Work,
    kept: Tensor,
    personal: Personal,
) -> tuple[LocalResult, Tensor]:
    """The result of a client's work on the shared parameters, and its new personal state, `[p]`.

    `problem` is the method's, of the shared parameters; `kept` is the personal state.
    """
    result, own = _solve(loss, solver, problem, work, loss.load_personal(kept), personal)
    return result, loss.personal_state(own)


def _solve(
    loss: ModuleLoss,
    solver: Solver,
    problem: LocalProblem,
    work: Work,
    own: Tensor,
    personal: Personal,
) -> tuple[LocalResult, Tensor]:
    """The same, where `own` are the personal parameters alone."""
    shared = len(problem.start)
    if not personal.first_epochs:
        # Linear term and centre stay shorter than the start: they concern the shared parameters.
        start = torch.cat([problem.start, own])
        result = solver.run(loss, replace(problem, start=start), work)
        return _first(result, shared), result.x[shared:].clone()
    if not isinstance(solver, MinibatchSolver):
        raise UndriftError(
            "personal's first_epochs needs a solver that takes steps, such as SGD, GD or Adam."
        )
    steps = personal.first_epochs * solver.per_epoch(loss.samples)
    first = replace(work, steps=steps, expected=steps, key=key(work.key, "personal") % 2**64)
    nothing = own.new_empty(0)
    alone = LocalProblem(start=own)
    before = solver.run(PartOfLoss(loss, problem.start, nothing), alone, first)
    result = solver.run(PartOfLoss(loss, nothing, before.x), problem, work)
    return replace(result, evaluations=result.evaluations + before.evaluations), before.x


def _first(result: LocalResult, shared: int) -> LocalResult:
    """The result of the shared parameters alone."""

    def cut(vector: Tensor | None) -> Tensor | None:
        return None if vector is None else vector[:shared].clone()

    return replace(
        result,
        x=result.x[:shared].clone(),
        first_gradient=cut(result.first_gradient),
        last_gradient=cut(result.last_gradient),
    )
