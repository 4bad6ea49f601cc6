"""Quantising compressors: every coordinate in a few bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from undrift.compression.compressor import (
    DENSE,
    Compressor,
    Layout,
    random_rows,
    require_encoding,
)
from undrift.compression.packing import pack, packed_bytes, unpack
from undrift.utils.errors import require, require_whole

CODES, SCALES = "codes", "scales"


@dataclass(frozen=True)
class QSGD(Compressor):
    """Round every coordinate at random to one of 2s + 1 levels (Alistarh et al., NeurIPS 2017).

    The coordinates are cut into buckets. In a bucket with the largest magnitude m, a coordinate v
    becomes ±m·l/s with l one of the two whole numbers next to s|v|/m, drawn so that the mean is v.
    s = 2**(bits − 1) − 1, so that sign and level fit into `bits` bits. E|C(v) − v|² ≤ ω|v|² with
    ω = min(B/(4s²), √B/s) for buckets of B coordinates.

    Parameters
    ----------
    bits
        bits per coordinate, from 2 to 16
    bucket
        B, how many coordinates share a scale
    """

    bits: int = 4
    bucket: int = 512
    unbiased: ClassVar[bool] = True  # type: ignore[misc]

    def __post_init__(self) -> None:
        require_whole("QSGD's bits", self.bits, at_least=2)
        require(self.bits <= 16, f"QSGD's bits is {self.bits}, but must be at most 16.")
        require_whole("QSGD's bucket", self.bucket, at_least=1)

    @property
    def levels(self) -> int:
        """s, the number of levels above 0."""
        return 2 ** (self.bits - 1) - 1

    def variance(self, size: int) -> float:
        width = min(size, self.bucket)
        return min(width / (4 * self.levels**2), math.sqrt(width) / self.levels)

    def approximate(self, rows: Tensor, keys: Sequence[int], damped: bool = False) -> Tensor:
        buckets = self._buckets(rows)
        scale = buckets.abs().amax(-1, keepdim=True)
        wanted = self._levels_of(buckets, scale)
        below = wanted.floor()
        draws = self._buckets(random_rows(keys, rows))
        level = below + (draws < wanted - below)
        scale = scale * self.damping(rows.shape[-1]) if damped else scale
        return self._values(level.copysign(buckets), scale, rows.shape[-1])

    def representable(self, rows: Tensor) -> Tensor:
        level, scale = self._codes(rows)
        return self._values(level, scale, rows.shape[-1])

    def layout(self, size: int, dtype: torch.dtype) -> dict[str, Layout]:
        buckets = -(-size // self.bucket)
        wanted = {
            CODES: Layout(torch.uint8, (packed_bytes(size, self.bits),)),
            SCALES: Layout(dtype, (buckets,)),
        }
        if sum(each.bytes for each in wanted.values()) >= size * dtype.itemsize:
            return {DENSE: Layout(dtype, (size,))}
        return wanted

    def encode(self, vector: Tensor, key: int) -> dict[str, Tensor]:
        if DENSE in self.layout(len(vector), vector.dtype):
            return {DENSE: vector}
        level, scale = self._codes(vector[None])
        codes = level.flatten()[: len(vector)].long() + self.levels
        return {CODES: pack(codes, self.bits), SCALES: scale.flatten()}

    def decode(
        self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype, key: int
    ) -> Tensor:
        if DENSE in parts:
            return parts[DENSE]
        codes = unpack(parts[CODES], size, self.bits)
        require_encoding(codes is not None, "the bits after its last code are not 0")
        assert codes is not None
        require_encoding(
            int(codes.max()) <= 2 * self.levels, f"its codes must be at most {2 * self.levels}"
        )
        scale = parts[SCALES]
        require_encoding(
            bool((scale.isfinite() & (scale >= 0)).all()),
            "its scales must be finite and at least 0",
        )
        level = self._buckets((codes - self.levels).to(dtype)[None])
        return self._values(level, scale[None, :, None], size)[0]

    def _buckets(self, rows: Tensor) -> Tensor:
        """The rows as `[C, buckets, B]`, with zeros behind the last coordinate."""
        size = rows.shape[-1]
        return pad(rows, (0, -size % self.bucket)).unflatten(-1, (-1, self.bucket))

    def _levels_of(self, buckets: Tensor, scale: Tensor) -> Tensor:
        """s|v|/m, 0 where a bucket has zeros only."""
        positive = torch.where(scale > 0, scale, torch.ones_like(scale))
        # NaN stays NaN: a reply with one must be rejected, not rounded.
        ratio = torch.where(scale == 0, torch.zeros_like(buckets), buckets.abs() / positive)
        ratio = torch.where(scale.isfinite(), ratio, torch.full_like(buckets, torch.nan))
        return self.levels * ratio

    def _codes(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The signed levels and the scales of rows that are on the grid, up to rounding.

        The coordinate of largest magnitude always has the level s, so the scale is its magnitude.
        """
        buckets = self._buckets(rows)
        scale = buckets.abs().amax(-1, keepdim=True)
        return self._levels_of(buckets, scale).round().copysign(buckets), scale

    def _values(self, level: Tensor, scale: Tensor, size: int) -> Tensor:
        """±m·l/s, without negative zeros."""
        # l/s first: it is 1 for the largest level, so that the largest value is m to the bit.
        values = level / self.levels * scale + 0.0
        return values.flatten(-2)[..., :size]


@dataclass(frozen=True)
class Sign(Compressor):
    """Send the sign of every coordinate, and the mean magnitude as the scale of all of them.

    It is biased, and needs error feedback (Karimireddy et al., ICML 2019):
    |C(v) − v|² = |v|² − |v|₁²/P.
    """

    def approximate(self, rows: Tensor, keys: Sequence[int], damped: bool = False) -> Tensor:
        scale = rows.abs().mean(-1, keepdim=True, dtype=torch.float64).to(rows.dtype)
        return torch.where(rows < 0, -scale, scale) + 0.0

    def layout(self, size: int, dtype: torch.dtype) -> dict[str, Layout]:
        if size < 2:
            return {DENSE: Layout(dtype, (size,))}
        return {
            CODES: Layout(torch.uint8, (packed_bytes(size, 1),)),
            SCALES: Layout(dtype, (1,)),
        }

    def encode(self, vector: Tensor, key: int) -> dict[str, Tensor]:
        if len(vector) < 2:
            return {DENSE: vector}
        return {CODES: pack((vector < 0).long(), 1), SCALES: vector[:1].abs()}

    def decode(
        self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype, key: int
    ) -> Tensor:
        if DENSE in parts:
            return parts[DENSE]
        codes = unpack(parts[CODES], size, 1)
        require_encoding(codes is not None, "the bits after its last sign are not 0")
        assert codes is not None
        scale = parts[SCALES]
        require_encoding(
            bool(scale.isfinite().all() and (scale >= 0).all()),
            "its scale must be finite and at least 0",
        )
        return torch.where(codes > 0, -scale, scale) + 0.0
