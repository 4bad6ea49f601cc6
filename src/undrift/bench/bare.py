"""The yardstick: a round of FedAvg in plain PyTorch, with nothing around it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undrift.bench.timing import interleaved, seconds_of, torch_threads
from undrift.bench.workloads import Workload
from undrift.data.federated import FederatedData

PIECE, TRIALS = 0.1, 4
"""Numbers of threads are tried on about so many seconds of work, so often."""
HOPELESS = 2.0
"""A number of threads with which the best trial takes so many times as long is not timed."""


class Visit(NamedTuple):
    """A client's samples, its weight in the average, and its batches: which samples, in turn."""

    x: Tensor
    y: Tensor
    weight: float
    batches: Iterable[Tensor]


@torch.no_grad()
def bare_round(
    module: nn.Module, weights: list[Tensor], visits: Iterable[Visit], lr: float
) -> list[Tensor]:
    """The weighted mean of the models that the clients come to from the given weights."""
    parameters: list[Tensor] = list(module.parameters())
    total = [torch.zeros_like(each) for each in weights]
    for x, y, weight, batches in visits:
        torch._foreach_copy_(parameters, weights)
        for batch in batches:
            with torch.enable_grad():
                loss = nn.functional.cross_entropy(module(x[batch]), y[batch])
            torch._foreach_add_(parameters, torch.autograd.grad(loss, parameters), alpha=-lr)
        torch._foreach_add_(total, parameters, alpha=weight)
    return total


class BareLoop:
    """Rounds of `bare_round` on a workload, each with a cohort and batches of its own."""

    def __init__(self, workload: Workload, data: FederatedData):
        self.workload = workload
        self.module = workload.model()
        self.weights = [p.detach().clone() for p in self.module.parameters()]
        self._population = len(data)
        self._x, self._y = data.train.x, data.train.y

    def settings(self, most: int) -> list[int]:
        """The numbers of threads to time: one and `most`, unless one of them is hopeless.

        Where other processes keep the cores busy, threads that wait for each other may make the
        work ten times as slow, or not, from one moment to the next: a few trials say little.
        """
        found = list(dict.fromkeys((1, most)))
        self.timed(1, 1)  # the first time is not counted
        one = self.timed(1, 1)
        piece = max(1, min(self.workload.cohort, round(PIECE / one)))
        best = interleaved([partial(self.timed, each, piece) for each in found], TRIALS)
        tried = zip(found, best, strict=True)
        return [each for each, seconds in tried if seconds <= HOPELESS * min(best)]

    def timed(self, threads: int, cohort: int | None = None) -> float:
        """One round with so many threads; gives its seconds."""
        with torch_threads(threads):
            return seconds_of(lambda: self._do(cohort or self.workload.cohort))

    def _do(self, cohort: int) -> None:
        self.weights = bare_round(self.module, self.weights, self._visits(cohort), self.workload.lr)

    def _visits(self, cohort: int) -> Iterator[Visit]:
        n = self.workload.samples
        for k in random.sample(range(self._population), cohort):
            first = k * n % len(self._y)
            own = slice(first, first + n)
            yield Visit(self._x[own], self._y[own], 1 / cohort, self._batches(n))

    def _batches(self, n: int) -> Iterator[Tensor]:
        for _ in range(self.workload.epochs):
            yield from torch.randperm(n).split(self.workload.batch)
