"""Medians over clients that keep their values: counts in cells around the mean, level by level.

A median lies within one standard deviation σ of the mean. The interval [mean − σ, mean + σ] is cut
into 16 cells, the clients count their values in each, and the cell that holds the median is cut
again, four times in all. The middle of the last cell is within σ/16⁴ = 1.6e-5 σ of the lower median
(of an even number of values, the smaller of the two in the middle). No client reveals its smallest
or largest value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

CELLS = 16
"""Number of cells into which an interval is cut."""
LEVELS = 4
"""How often the interval is cut."""
MARGIN = 1e-6
"""The first interval is this much wider than σ: rounding must not leave the median outside."""


def edges(mean: float, deviation: float, path: Sequence[int]) -> np.ndarray:
    """The `CELLS + 1` edges of the interval that a path of cells leads to."""
    half = deviation * (1 + MARGIN)
    low, high = mean - half, mean + half
    for cell in path:
        found = _cut(low, high)
        low, high = float(found[cell]), float(found[cell + 1])
    return _cut(low, high)


def _cut(low: float, high: float) -> np.ndarray:
    return low + (high - low) * (np.arange(CELLS + 1) / CELLS)


def counts_in_cells(values: np.ndarray, bounds: np.ndarray) -> list[int]:
    """How many values are below the first edge, and in each cell."""
    positions = np.searchsorted(bounds, values, side="right")
    counts = np.bincount(positions, minlength=len(bounds) + 1)
    return [int(each) for each in counts[: len(bounds)]]


def median_cell(counts: Sequence[Mapping[str, Sequence[int]]], name: str, present: int) -> int:
    """The cell with the lower median of all clients' values, from the counts of each client.

    Where dishonest counts leave the median outside all cells, it is the nearest cell.
    """
    total = [sum(own[name][place] for own in counts) for place in range(CELLS + 1)]
    rank, below = (present - 1) // 2, total[0]
    for cell, count in enumerate(total[1:]):
        below += count
        if below > rank:
            return cell
    return CELLS - 1


def middle(mean: float, deviation: float, path: Sequence[int]) -> float:
    """The median that a complete path leads to: the middle of its last cell."""
    bounds = edges(mean, deviation, path[:-1])
    return float((bounds[path[-1]] + bounds[path[-1] + 1]) / 2)
