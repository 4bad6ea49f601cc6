"""Attackers among the clients of a simulated run: the loop replaces what they send.

Engines put the attackers' replies aside, unchecked. Here the attack changes them, and they are
added up like all others, within the same bounds on norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.round_result import RoundResult
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.engines.base import Job
from undrift.robust.attacks import Attack


def add_attackers(
    attack: Attack | None,
    job: Job,
    method: Method,
    result: RoundResult,
    assignments: Sequence[Assignment],
    diagnosed: bool,
    limits: NormLimits | None,
) -> None:
    """Add the forged replies of a round's attackers to its result."""
    if attack is None or not result.held:
        return
    turns = {assignment.client.id: assignment.work.turn for assignment in assignments}
    # In the order of the cohort, whatever the order in which an engine computed them.
    places = {client: place for place, client in enumerate(turns)}
    held = sorted(result.held, key=lambda reply: places[reply.client.id])
    replies = result.replies.count + len(held)
    ordered = [turns[reply.client.id] for reply in held]
    forged = attack.forged(method, held, ordered, replies, job.seed)
    honest = replace(job, attackers=frozenset())
    more = honest.result(method, assignments[0].work.round, diagnosed, limits)
    for reply in forged:
        more.take(reply)
    result.held = []
    result.merge(more)
    result.arrange(list(turns))


def attacked(
    attack: Attack | None, job: Job, method: Method, reply: Reply, turn: int, replies: int
) -> Reply:
    """The reply that arrives from one client, in asynchronous training."""
    if attack is None or reply.client.id not in job.attackers:
        return reply
    return attack.forged(method, [reply], [turn], replies, job.seed)[0]
