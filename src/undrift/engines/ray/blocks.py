"""Which clients are worked on together: the same blocks, however many workers there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from undrift.core.messages import Assignment
from undrift.engines.base import Job

BLOCKS = 16
"""A round is cut into about so many blocks, if there are as many clients."""
FEWEST = 8
"""… and never into fewer."""
EVEN = 4
"""There is a multiple of so many blocks, so that few workers have equally many of them."""
WORTH = 200
"""Gradients of single samples that a block's work should come to: its sums must travel, which
takes as long as a few samples do."""


@dataclass(frozen=True)
class Block:
    """Clients whose work is added up by one worker."""

    assignments: list[Assignment]
    cost: float
    """the gradients of single samples that their work comes to"""


def size(job: Job, assignments: Sequence[Assignment], together: int = 1) -> int:
    """How many clients a block has: what an engine likes to be given, but few of the cohort."""
    clients = len(assignments)
    share = sum(_cost(job, assignment) for assignment in assignments) / clients
    worthwhile = math.ceil(WORTH / max(share, 1))
    liked = min(together, -(-clients // BLOCKS))
    return max(1, min(max(liked, worthwhile), -(-clients // FEWEST)))


def cut(job: Job, assignments: Sequence[Assignment], size: int) -> list[Block]:
    """Blocks of so many clients at most, all about as large, the longest work first.

    Clients with equally long work stay in their order, so that the blocks depend on nothing else.
    """
    costs = [_cost(job, assignment) for assignment in assignments]
    order = sorted(range(len(assignments)), key=lambda k: -costs[k])
    number = min(len(order), -(-len(order) // (size * EVEN)) * EVEN)
    ends = [len(order) * piece // number for piece in range(number + 1)]
    pieces = [order[first:last] for first, last in pairwise(ends)]
    return [Block([assignments[k] for k in some], sum(costs[k] for k in some)) for some in pieces]


def _cost(job: Job, assignment: Assignment) -> float:
    solver = job.local.of(assignment.client.id)
    return solver.evaluations(assignment.work.steps, int(assignment.client.samples))
