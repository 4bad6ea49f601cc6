"""Curves over seeds: what was spent after each record, and values where all seeds have one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from undrift.core.records import Record

History = tuple[Sequence[Record], Sequence[float]]
"""The records of one seed, and what it had spent after each of them."""


def cumulative_costs(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return what had been spent after each record: rounds, bytes, gradients and seconds."""
    sent = (sum(r.bytes_down.values()) + sum(r.bytes_up.values()) for r in records)
    return {
        "rounds": [r.round for r in records],
        "bytes": list(accumulate(sent)),
        "gradients": list(accumulate(r.gradients for r in records)),
        "virtual_seconds": [r.virtual_seconds for r in records],
        "seconds": list(accumulate(r.seconds for r in records)),
    }


def align_seeds(seeds: Sequence[History], name: str) -> tuple[list[float], list[list[float]]]:
    """Return the mean cost and the values of a metric or diagnostic, one per seed, by round.

    Only rounds in which every seed has a value count: a mean over fewer seeds would jump.
    """
    by_round: list[dict[int, tuple[float, float]]] = []
    for records, spent in seeds:
        own = {}
        for record, cost in zip(records, spent, strict=True):
            values = record.metrics if name in record.metrics else record.diagnostics
            if name in values:
                own[record.round] = (cost, values[name])
        by_round.append(own)
    common = [t for t in (by_round[0] if by_round else ()) if all(t in own for own in by_round)]
    x = [fmean(own[t][0] for own in by_round) for t in common]
    return x, [[own[t][1] for own in by_round] for t in common]
