"""Counts how often the replies of clients were used, and which clients never replied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import median
from typing import Any

from undrift.report.recorded_runs import MethodRuns, RunFiles, Runs


@dataclass(frozen=True)
class ReplyCounts:
    """How often clients replied, for methods with the same cohorts and replies."""

    methods: tuple[str, ...]
    clients: int
    """clients of the federation if known, otherwise clients that were in a cohort"""
    times: Counter[int]
    """number of clients by number of used replies, pooled over seeds"""
    never: tuple[int, ...]
    """number of clients that never replied, one per seed"""
    most_asked: tuple[Hashable, int] | None
    """the client without a used reply that was asked most often, and how often"""
    rejected: dict[str, int]
    """number of rejected replies, by method"""
    absent: dict[str, int]
    """number of times a client of a cohort did no work, by method"""
    lost: dict[str, int]
    """number of times work was lost, by method"""
    reasons: dict[str, str]
    """round, client and reason of the first rejected reply, by method"""

    @property
    def summary(self) -> tuple[int, float, int]:
        """The fewest, median and most used replies of a client."""
        every = sorted(self.times.elements())
        return (every[0], median(every), every[-1]) if every else (0, 0.0, 0)


def count_replies(runs: Runs) -> list[ReplyCounts]:
    """Count the replies of every client, one entry per group of methods with the same replies."""
    same_replies: dict[Any, list[MethodRuns]] = {}
    for group in runs.groups:
        own = [(used_replies(run), _asked(run)) for run in group.runs if run.records]
        pairs = tuple((frozenset(a.items()), frozenset(b.items())) for a, b in own)
        same_replies.setdefault((id(group.folder), pairs), []).append(group)
    return [_participation(groups) for groups in same_replies.values()]


def _participation(groups: list[MethodRuns]) -> ReplyCounts:
    clients = clients_of(groups[0])
    times: Counter[int] = Counter()
    never = []
    most_asked: Counter[Hashable] = Counter()
    for run in groups[0].runs:
        if run.records:
            used, asked = used_replies(run), _asked(run)
            times.update(used.values())
            never.append(clients - len(used))
            times[0] += never[-1]
            most_asked.update({client: n for client, n in asked.items() if client not in used})
    records = {g.label: [r for run in g.runs for r in run.records] for g in groups}
    return ReplyCounts(
        methods=tuple(group.label for group in groups),
        clients=clients,
        times=+times,
        never=tuple(never),
        most_asked=next(iter(most_asked.most_common(1)), None),
        rejected={m: sum(len(r.rejected) for r in own) for m, own in records.items()},
        absent={m: sum(len(r.absent) for r in own) for m, own in records.items()},
        lost={m: sum(len(r.lost) for r in own) for m, own in records.items()},
        reasons={
            m: f"round {r.round}, client {client!r}: {reason}"
            for m, own in records.items()
            for r in [next((r for r in own if r.rejected), None)]
            if r is not None
            for client, reason in r.rejected[:1]
        },
    )


def clients_of(group: MethodRuns) -> int:
    """Return the number of clients, as far as it is known."""
    seen = {client for run in group.runs for client in _asked(run)}
    return max(group.folder.clients, len(seen))


def used_replies(run: RunFiles) -> Counter[Hashable]:
    """Return the number of used replies of each client."""
    return Counter(client for record in run.records for client in record.replied)


def _asked(run: RunFiles) -> Counter[Hashable]:
    """Return how often each client was in a cohort."""
    return Counter(client for record in run.records for client in record.cohort)
