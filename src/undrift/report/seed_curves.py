"""Curves over seeds: what was spent after each record, and values where all seeds have one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import fmean, stdev

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


def mean_and_band(
    values: Sequence[Sequence[float]],
) -> tuple[list[float], list[float], list[float]]:
    """Return the mean, mean − std and mean + std (n − 1) of values over seeds, point by point."""
    mean = [fmean(each) for each in values]
    spread = [
        stdev(each) if len(each) > 1 and all(map(math.isfinite, each)) else 0.0 for each in values
    ]
    low = [m - s for m, s in zip(mean, spread, strict=True)]
    high = [m + s for m, s in zip(mean, spread, strict=True)]
    return mean, low, high


def band_title(seeds: Iterable[int]) -> str | None:
    """Return what lines and bands mean, from each curve's number of seeds; None without bands."""
    several = {number for number in seeds if number > 1}
    if not several:
        return None
    of = f"of {several.pop()} seeds" if len(several) == 1 else "over seeds"
    return f"mean ± standard deviation {of}"


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
