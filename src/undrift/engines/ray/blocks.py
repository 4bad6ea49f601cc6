"""Which clients are worked on together: the same blocks, however many workers there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from undrift.engines.base import Errand, Job

BLOCKS = 16
"""A round is cut into at least so many blocks, if there are as many clients."""


@dataclass(frozen=True)
class Block:
    """Clients whose work is added up by one worker."""

    errands: list[Errand]
    cost: float
    """the gradients of single samples that their work comes to"""


def size(clients: int, together: int) -> int:
    """How many clients a block has: what an engine likes to be given, or few of the cohort."""
    return max(1, min(together, -(-clients // BLOCKS)))


def cut(job: Job, errands: Sequence[Errand], size: int) -> list[Block]:
    """Blocks of so many clients, the longest work first.

    Clients with equally long work stay in their order, so that the blocks depend on nothing else.
    """
    costs = [_cost(job, errand) for errand in errands]
    order = sorted(range(len(errands)), key=lambda k: -costs[k])
    pieces = [order[first : first + size] for first in range(0, len(order), size)]
    return [Block([errands[k] for k in some], sum(costs[k] for k in some)) for some in pieces]


def _cost(job: Job, errand: Errand) -> float:
    solver = job.local.of(errand.client.id)
    return solver.evaluations(errand.work.steps, int(errand.client.samples))
