"""The yardstick of `undrift bench`: rounds of FedAvg in plain PyTorch, without any library."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undrift.bench.timing import interleaved, seconds_of, torch_threads
from undrift.bench.workloads import Workload
from undrift.data.federated import FederatedData
from undrift.utils.memory import keep_freed_memory

TRIAL_SECONDS, TRIALS = 0.1, 4
"""Length and number of the trials of a number of threads."""
HOPELESS_RATIO = 2.0
"""A number of threads whose best trial is slower by more than this factor is not timed."""


class Visit(NamedTuple):
    """One client of a round: its samples, its weight in the average, and its batches of indices."""

    x: Tensor
    y: Tensor
    weight: float
    batches: Iterable[Tensor]


@torch.no_grad()
def bare_round(
    module: nn.Module,
    weights: list[Tensor],
    visits: Iterable[Visit],
    lr: float,
    loss_of: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
) -> list[Tensor]:
    """Train every client from the given weights and return the weighted mean of their models."""
    parameters = trainable(module)
    total = [torch.zeros_like(each) for each in weights]
    for x, y, weight, batches in visits:
        torch._foreach_copy_(parameters, weights)
        for batch in batches:
            with torch.enable_grad():
                loss = loss_of(module(x[batch]), y[batch])
            torch._foreach_add_(parameters, torch.autograd.grad(loss, parameters), alpha=-lr)
        torch._foreach_add_(total, parameters, alpha=weight)
    return total


def trainable(module: nn.Module) -> list[Tensor]:
    """Return the parameters that are trained; frozen ones are not copied or averaged."""
    return [p for p in module.parameters() if p.requires_grad]


class BareLoop:
    """Runs rounds of `bare_round` on a workload, each with its own cohort and batches."""

    def __init__(self, workload: Workload, data: FederatedData):
        # The loop gets the settings of the allocator that undrift's engines make, which are better
        # for it, too. Otherwise its time would depend on what was allocated before it.
        keep_freed_memory()
        self.workload = workload
        self.module = workload.model()
        self.weights = [p.detach().clone() for p in trainable(self.module)]
        self._population = len(data)
        self._x, self._y = data.train.x, data.train.y

    def settings(self, most: int) -> list[int]:
        """Return the numbers of threads worth timing: 1 and `most`, without a hopeless one.

        Where other processes keep the cores busy, threads that wait for each other may make the
        work ten times slower, or not, from one moment to the next. So a number of threads is left
        out only if it is clearly slower, and the others are timed along with undrift.
        """
        found = list(dict.fromkeys((1, most)))
        self.timed(1, 1)  # warm-up
        one = self.timed(1, 1)
        piece = max(1, min(self.workload.cohort, round(TRIAL_SECONDS / one)))
        best = interleaved([partial(self.timed, each, piece) for each in found], TRIALS)
        tried = zip(found, best, strict=True)
        return [each for each, seconds in tried if seconds <= HOPELESS_RATIO * min(best)]

    def timed(self, threads: int, cohort: int | None = None) -> float:
        """Do one round with this number of threads and return its seconds."""
        with torch_threads(threads):
            return seconds_of(lambda: self._do(cohort or self.workload.cohort))

    def _do(self, cohort: int) -> None:
        work = self.workload
        visits = self._visits(cohort)
        self.weights = bare_round(self.module, self.weights, visits, work.lr, work.loss)

    def _visits(self, cohort: int) -> Iterator[Visit]:
        n = self.workload.samples
        for k in random.sample(range(self._population), cohort):
            first = k * n % len(self._y)
            own = slice(first, first + n)
            yield Visit(self._x[own], self._y[own], 1 / cohort, self._batches(n))

    def _batches(self, n: int) -> Iterator[Tensor]:
        for _ in range(self.workload.epochs):
            yield from torch.randperm(n).split(self.workload.batch)
