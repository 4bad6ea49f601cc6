"""Who took part: how often the replies of clients were used, and who was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from statistics import median
from typing import Any

from undrift.report.reading import MethodRuns, RunFiles, Runs


@dataclass(frozen=True)
class ReplyCounts:
    """How often clients replied, over all rounds and seeds of methods with equal replies."""

    methods: tuple[str, ...]
    clients: int
    """all that there are, if that is known, or else those that were in a cohort"""
    times: Counter[int]
    """how many clients replied how often, pooled over seeds"""
    never: tuple[int, ...]
    """clients that never replied, by seed"""
    in_vain: tuple[Hashable, int] | None
    """the one of them that was in cohorts most often, and how often"""
    rejected: dict[str, int]
    """unusable replies, by method"""
    absent: dict[str, int]
    """clients of a cohort that managed no work, by method"""
    lost: dict[str, int]
    """work that came to nothing, by method"""
    reasons: dict[str, str]
    """the first rejection's, by method"""

    @property
    def summary(self) -> tuple[int, float, int]:
        """The fewest, median and most replies of a client."""
        every = sorted(self.times.elements())
        return (every[0], median(every), every[-1]) if every else (0, 0.0, 0)


def count_replies(runs: Runs) -> list[ReplyCounts]:
    """Who replied how often; methods with the same cohorts and replies are together."""
    together: dict[Any, list[MethodRuns]] = {}
    for group in runs.groups:
        own = [(replied(run), _asked(run)) for run in group.runs if run.records]
        pairs = tuple((frozenset(a.items()), frozenset(b.items())) for a, b in own)
        together.setdefault((id(group.folder), pairs), []).append(group)
    return [_participation(groups) for groups in together.values()]


def _participation(groups: list[MethodRuns]) -> ReplyCounts:
    clients = clients_of(groups[0])
    times: Counter[int] = Counter()
    never = []
    in_vain: Counter[Hashable] = Counter()
    for run in groups[0].runs:
        if run.records:
            used, asked = replied(run), _asked(run)
            times.update(used.values())
            never.append(clients - len(used))
            times[0] += never[-1]
            in_vain.update({client: n for client, n in asked.items() if client not in used})
    records = {g.label: [r for run in g.runs for r in run.records] for g in groups}
    return ReplyCounts(
        methods=tuple(group.label for group in groups),
        clients=clients,
        times=+times,
        never=tuple(never),
        in_vain=next(iter(in_vain.most_common(1)), None),
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
    """How many clients there are, as far as that is known."""
    seen = {client for run in group.runs for client in _asked(run)}
    return max(group.folder.clients, len(seen))


def replied(run: RunFiles) -> Counter[Hashable]:
    """How many replies of each client were used."""
    return Counter(client for record in run.records for client in record.replied)


def _asked(run: RunFiles) -> Counter[Hashable]:
    """How often each client was in a cohort."""
    return Counter(client for record in run.records for client in record.cohort)
