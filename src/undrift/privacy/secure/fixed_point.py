"""Numbers as integers modulo 2^64, so that masks cancel exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undrift.utils.errors import UndriftError, require

Words = NDArray[np.uint64]
"""Integers modulo 2^64; the sum of two arrays wraps around."""
SIGNED_BITS = 63


@dataclass(frozen=True)
class FixedPoint:
    """Fixed point with f fractional bits.

    The sum of n encoded vectors, each within ±R, decodes to their sum with an error of at most
    n·2^−(f+1) in each coordinate: n·R·2^f < 2^63, so that no sum wraps around.

    Parameters
    ----------
    sites
        n, the largest number of vectors in a sum
    bound
        R, the largest absolute value of a coordinate
    bits
        f, the number of fractional bits
    """

    sites: int
    bound: float
    bits: int

    def __post_init__(self) -> None:
        largest = self.sites * self.bound * 2.0**self.bits
        require(
            self.bits >= 0 and self.bound > 0 and largest < 2.0**SIGNED_BITS,
            f"Sums of {self.sites} vectors within ±{self.bound:g} do not fit into 64 bits with "
            f"{self.bits} fractional bits.",
        )

    @staticmethod
    def finest(sites: int, bound: float) -> FixedPoint:
        """The encoding with the most fractional bits."""
        return FixedPoint(sites, bound, SIGNED_BITS - 1 - math.ceil(math.log2(sites * bound)))

    @property
    def error(self) -> float:
        """The largest error of a decoded sum, in each coordinate."""
        return self.sites * 2.0 ** -(self.bits + 1)

    def encode(self, values: NDArray[np.float64]) -> Words:
        """The values as integers; raises if one is outside of ±R or not a number."""
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= self.bound:
            raise UndriftError(
                f"An upload has a coordinate of {largest:g}, but secure aggregation is set to a "
                f"range of ±{self.bound:g}: raise 'range' in [privacy]."
            )
        # A product with a power of two is exact, so that only the rounding changes the value.
        return np.rint(values * 2.0**self.bits).astype(np.int64).view(np.uint64)

    def decode(self, words: Words) -> NDArray[np.float64]:
        """The values of a sum."""
        return words.view(np.int64).astype(np.float64) * 2.0**-self.bits
