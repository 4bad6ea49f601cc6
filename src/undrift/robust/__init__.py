"""Robust statistics in place of the mean of uploads, and attacks to try them with.

`ud.train(..., robust=ud.robust.Median(), attack=ud.attacks.SignFlip(share=0.2))`
"""

from undrift.core.uploads.statistic import Statistic
from undrift.robust.coordinates import Median, TrimmedMean
from undrift.robust.distances import GeometricMedian, Krum, MultiKrum
from undrift.robust.settings import as_robust, check_statistic

STATISTICS: dict[str, type[Statistic]] = {
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
}
"""The robust statistics by their names in files."""

__all__ = [
    "STATISTICS",
    "GeometricMedian",
    "Krum",
    "Median",
    "MultiKrum",
    "Statistic",
    "TrimmedMean",
    "as_robust",
    "check_statistic",
]
