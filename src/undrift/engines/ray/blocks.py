"""Groups the assignments of a round into blocks, one for each call to a worker.

Blocks depend on the cohort only, not on the number of workers: results are added up per block, so
the same blocks give the same bits on any cluster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from undrift.core.messages import Assignment
from undrift.engines.base import Job

TARGET_BLOCKS = 16
"""A round has about this many blocks, if there are as many clients."""
MIN_BLOCKS = 8
"""A round has at least this many blocks, if there are as many clients."""
BLOCK_MULTIPLE = 4
"""The number of blocks is a multiple of this, so that 2 or 4 workers get equally many."""
MIN_BLOCK_GRADIENTS = 200
"""Gradients of single samples that a block should have: sending its sums back takes as long as a
few samples do."""


@dataclass(frozen=True)
class Block:
    """Assignments whose replies one worker adds up."""

    assignments: list[Assignment]
    cost: float
    """gradients of single samples in all of its work"""


def block_size(job: Job, assignments: Sequence[Assignment], together: int = 1) -> int:
    """How many clients a block has: what an engine prefers, within the limits above.

    `together` is how many assignments the workers' engine prefers to get at once.
    """
    clients = len(assignments)
    mean_cost = sum(_cost(job, assignment) for assignment in assignments) / clients
    worthwhile = math.ceil(MIN_BLOCK_GRADIENTS / max(mean_cost, 1))
    preferred = min(together, -(-clients // TARGET_BLOCKS))
    return max(1, min(max(preferred, worthwhile), -(-clients // MIN_BLOCKS)))


def make_blocks(job: Job, assignments: Sequence[Assignment], size: int) -> list[Block]:
    """Blocks of at most `size` clients, about equally large, those with the longest work first.

    Longest first, because a long block that starts last would keep all other workers waiting.
    Clients with equally long work stay in their order, so that the blocks are well defined.
    """
    costs = [_cost(job, assignment) for assignment in assignments]
    order = sorted(range(len(assignments)), key=lambda k: -costs[k])
    number = min(len(order), -(-len(order) // (size * BLOCK_MULTIPLE)) * BLOCK_MULTIPLE)
    ends = [len(order) * piece // number for piece in range(number + 1)]
    pieces = [order[first:last] for first, last in pairwise(ends)]
    return [Block([assignments[k] for k in some], sum(costs[k] for k in some)) for some in pieces]


def _cost(job: Job, assignment: Assignment) -> float:
    solver = job.local.of(assignment.client.id)
    return solver.evaluations(assignment.work.steps, int(assignment.client.samples))
