"""Numbers as integers modulo a power of two, so that masks cancel exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.utils.errors import UndriftError, require

Words = NDArray[np.unsignedinteger[Any]]
"""Integers modulo 2^b; the sum of two arrays wraps around."""
WORD_TYPES: dict[int, type[np.unsignedinteger[Any]]] = {
    16: np.uint16,
    24: np.uint32,
    32: np.uint32,
    64: np.uint64,
}
"""The widths b of words, and the types in which they are added. Adding modulo 2^32 is right for 24
bits as well: 2^24 divides 2^32."""


@dataclass(frozen=True)
class FixedPoint:
    """Fixed point with f fractional bits, in words of b bits.

    The sum of n encoded vectors, each within ±R, decodes to their sum with an error of at most
    n·2^−(f+1) in each coordinate: n·(R·2^f + ½) < 2^(b−1), so that no sum wraps around.

    Parameters
    ----------
    sites
        n, the largest number of vectors in a sum
    bound
        R, the largest absolute value of a coordinate
    bits
        f, the number of fractional bits
    word_bits
        b, the number of bits of a word: 16, 24, 32 or 64
    """

    sites: int
    bound: float
    bits: int
    word_bits: int = 64

    def __post_init__(self) -> None:
        require(
            self.bits >= 0
            and self.bound > 0
            and _fits(self.sites, self.bound, self.bits, self.word_bits),
            f"Sums of {self.sites} vectors within ±{self.bound:g} do not fit into words of "
            f"{self.word_bits} bits with {max(self.bits, 0)} fractional bits: lower privacy.range "
            f"or raise privacy.word_bits.",
        )

    @staticmethod
    def finest(sites: int, bound: float, word_bits: int = 64) -> FixedPoint:
        """The encoding with the most fractional bits."""
        bits = word_bits - 1 - math.ceil(math.log2(sites * bound))
        fits = _fits(sites, bound, bits, word_bits)
        return FixedPoint(sites, bound, bits if fits else bits - 1, word_bits)

    @property
    def error(self) -> float:
        """The largest error of a decoded sum, in each coordinate."""
        return self.sites * 2.0 ** -(self.bits + 1)

    @property
    def word_bytes(self) -> int:
        """The bytes of a word in a message."""
        return self.word_bits // 8

    def encode(self, values: NDArray[np.float64]) -> Words:
        """The values as integers; raises if one is outside of ±R or not a number."""
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= self.bound:
            raise UndriftError(
                f"An upload has a coordinate of {largest:g}, but secure aggregation is set to a "
                f"range of ±{self.bound:g}: raise 'range' in [privacy]."
            )
        # A product with a power of two is exact, so that only the rounding changes the value.
        whole = np.rint(values * 2.0**self.bits).astype(np.int64)
        return whole.astype(WORD_TYPES[self.word_bits])

    def decode(self, words: Words) -> NDArray[np.float64]:
        """The values of a sum."""
        wide = words.astype(np.uint64)
        # The sign is the highest of b bits: move it to the highest of 64 and back.
        unused = np.uint64(64 - self.word_bits)
        signed = (wide << unused).view(np.int64) >> unused.astype(np.int64)
        return signed.astype(np.float64) * 2.0**-self.bits


def _fits(sites: int, bound: float, bits: int, word_bits: int) -> bool:
    """Whether no sum of n words wraps around; rounding adds at most ½ to each of them."""
    return sites * (bound * 2.0**bits + 0.5) < 2.0 ** (word_bits - 1)
