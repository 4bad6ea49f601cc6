"""Collects, per method, virtual time, lost work, waiting and staleness."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from undrift.core.records import LOST, Record
from undrift.report.recorded_runs import MethodRuns, RunFiles, Runs
from undrift.report.reply_counts import clients_of, used_replies
from undrift.report.tables import OverSeeds


@dataclass(frozen=True)
class VirtualTime:
    """The virtual time of one method, over its seeds."""

    method: str
    clock: OverSeeds
    """virtual seconds at the end"""
    updates: OverSeeds
    """updates of the server's model"""
    skipped: OverSeeds
    """rounds without an update; empty for asynchronous training, which skips none"""
    replies: OverSeeds
    """replies that were used"""
    partial: OverSeeds
    """used replies with less work than was asked for"""
    lost: dict[str, OverSeeds]
    """how often work was lost, by the reasons of `LOST`"""
    wasted: OverSeeds
    """share of gradient evaluations that were not used"""
    idle: OverSeeds
    """waiting time as a share of waiting and working time"""
    stale: OverSeeds
    """mean staleness of replies, in updates; empty except for asynchronous training"""
    staleness: Counter[int]
    """number of replies by staleness, pooled over seeds"""
    never: OverSeeds
    """number of clients that never replied"""


def virtual_time_table(runs: Runs) -> list[VirtualTime]:
    """Return a row for every method that ran on a virtual clock."""
    table = []
    for group in runs.groups:
        begun = [run for run in group.runs if run.records]
        if any(record.virtual_seconds for run in begun for record in run.records):
            table.append(_timing(group, begun))
    return table


def _timing(group: MethodRuns, begun: list[RunFiles]) -> VirtualTime:
    def over(of: Callable[[list[Record]], float]) -> OverSeeds:
        """Return a number of each seed for which it is defined, without record 0."""
        values = (of([r for r in run.records if r.round]) for run in begun)
        return OverSeeds(tuple(value for value in values if not math.isnan(value)))

    def lost(reason: str) -> OverSeeds:
        return over(lambda rounds: sum(why == reason for r in rounds for _, why in r.lost))

    clients = clients_of(group)
    return VirtualTime(
        method=group.label,
        clock=OverSeeds(tuple(run.records[-1].virtual_seconds for run in begun)),
        updates=over(lambda rounds: sum(r.updates for r in rounds)),
        skipped=over(_skipped),
        replies=over(lambda rounds: sum(len(r.replied) for r in rounds)),
        partial=over(lambda rounds: sum(r.partial for r in rounds)),
        lost={reason: lost(reason) for reason in LOST},
        wasted=over(
            lambda rounds: _share(
                sum(r.wasted_gradients for r in rounds), sum(r.gradients for r in rounds)
            )
        ),
        idle=over(
            lambda rounds: _share(
                sum(r.idle_seconds for r in rounds), sum(r.busy_seconds for r in rounds)
            )
        ),
        stale=over(lambda rounds: _mean_of(_staleness(rounds))),
        staleness=_staleness([record for run in begun for record in run.records]),
        never=OverSeeds(tuple(clients - len(used_replies(run)) for run in begun)),
    )


def _skipped(rounds: list[Record]) -> float:
    if any(record.staleness for record in rounds):
        return math.nan
    return sum(not record.updates for record in rounds)


def _staleness(records: list[Record]) -> Counter[int]:
    found: Counter[int] = Counter()
    for record in records:
        found.update(record.staleness)
    return found


def _mean_of(times: Counter[int]) -> float:
    count = times.total()
    return sum(old * n for old, n in times.items()) / count if count else math.nan


def _share(part: float, rest: float) -> float:
    return part / (part + rest) if part + rest else math.nan


def percent(share: OverSeeds) -> str:
    """Format a share over seeds: "21.4 ± 0.3 %"."""
    if not share.values:
        return "–"
    spread = f" ± {100 * share.std:.1f}" if share.std else ""
    return f"{100 * share.mean:.1f}{spread} %"
