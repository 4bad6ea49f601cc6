"""Sparse compressors: the k largest coordinates, or k random ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from undrift.compression.compressor import DENSE, Compressor, Layout, require_encoding
from undrift.compression.packing import pack, packed_bytes, unpack
from undrift.utils.errors import require_range

INDICES = "indices"


@dataclass(frozen=True)
class _Sparse(Compressor):
    """A compressor that keeps a share of the coordinates."""

    ratio: float
    """the share of the coordinates that travel"""

    def __post_init__(self) -> None:
        require_range(f"{type(self).__name__}'s ratio", self.ratio, above=0, at_most=1)

    def kept(self, size: int) -> int:
        """k, how many of `size` coordinates travel: at least one."""
        return min(size, max(1, math.ceil(self.ratio * size - 1e-9)))

    @property
    def lossless(self) -> bool:
        return self.ratio == 1


@dataclass(frozen=True)
class TopK(_Sparse):
    """Send the k coordinates of largest magnitude, with their indices; the others count as 0.

    It is biased: without error feedback, coordinates that are never among the largest are never
    sent. |C(v) − v|² ≤ (1 − k/P)|v|² (Stich et al., NeurIPS 2018).

    Parameters
    ----------
    ratio
        k/P, the share of the coordinates that travel, above 0; 1 sends the vector as it is
    """

    def approximate(self, rows: Tensor, keys: Sequence[int], damped: bool = False) -> Tensor:
        k = self.kept(rows.shape[-1])
        if k == rows.shape[-1]:
            return rows
        places = rows.abs().topk(k, dim=-1, sorted=False).indices
        return torch.zeros_like(rows).scatter_(-1, places, rows.gather(-1, places))

    def layout(self, size: int, dtype: torch.dtype) -> dict[str, Layout]:
        k, bits = self.kept(size), _index_bits(size)
        if k * dtype.itemsize + packed_bytes(k, bits) >= size * dtype.itemsize:
            return {DENSE: Layout(dtype, (size,))}
        return {
            DENSE: Layout(dtype, (k,)),
            INDICES: Layout(torch.uint8, (packed_bytes(k, bits),)),
        }

    def encode(self, vector: Tensor, key: int) -> dict[str, Tensor]:
        size = len(vector)
        if INDICES not in self.layout(size, vector.dtype):
            return {DENSE: vector}
        places = vector.abs().topk(self.kept(size), sorted=False).indices.sort().values
        return {DENSE: vector[places], INDICES: pack(places, _index_bits(size))}

    def decode(
        self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype, key: int
    ) -> Tensor:
        if INDICES not in parts:
            return parts[DENSE]
        places = unpack(parts[INDICES], self.kept(size), _index_bits(size))
        require_encoding(places is not None, "the bits after its last index are not 0")
        assert places is not None
        require_encoding(
            bool((places.diff() > 0).all()) and int(places[-1]) < size,
            f"its indices must increase and be below {size}",
        )
        found = torch.zeros(size, dtype=dtype)
        found[places] = parts[DENSE]
        return found


@dataclass(frozen=True)
class RandomK(_Sparse):
    """Send k random coordinates; both ends draw which ones, so that no indices travel.

    Without error feedback the values are multiplied by P/k, which makes it unbiased, with
    E|C(v) − v|² = (P/k − 1)|v|².

    Parameters
    ----------
    ratio
        k/P, the share of the coordinates that travel, above 0; 1 sends the vector as it is
    shared
        whether all clients of a round send the same coordinates, so that secure aggregation can add
        up what they send; their errors then do not average out
    """

    shared: bool = False
    """whether all clients of a round send the same coordinates"""
    unbiased: ClassVar[bool] = True  # type: ignore[misc]

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.shared

    def variance(self, size: int) -> float:
        return size / self.kept(size) - 1

    def approximate(self, rows: Tensor, keys: Sequence[int], damped: bool = False) -> Tensor:
        size = rows.shape[-1]
        k = self.kept(size)
        if k == size:
            return rows
        places = torch.stack([self._places(size, key) for key in keys]).to(rows.device)
        values = rows.gather(-1, places) * (1.0 if damped else size / k)
        return torch.zeros_like(rows).scatter_(-1, places, values)

    def layout(self, size: int, dtype: torch.dtype) -> dict[str, Layout]:
        return {DENSE: Layout(dtype, (self.kept(size),))}

    def encode(self, vector: Tensor, key: int) -> dict[str, Tensor]:
        if self.kept(len(vector)) == len(vector):
            return {DENSE: vector}
        return {DENSE: vector[self._places(len(vector), key).to(vector.device)]}

    def decode(
        self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype, key: int
    ) -> Tensor:
        if self.kept(size) == size:
            return parts[DENSE]
        found = torch.zeros(size, dtype=dtype)
        found[self._places(size, key)] = parts[DENSE]
        return found

    def _places(self, size: int, key: int) -> Tensor:
        """The coordinates that travel, in increasing order."""
        drawn = torch.randperm(size, generator=torch.Generator().manual_seed(key % 2**63))
        return drawn[: self.kept(size)].sort().values


def _index_bits(size: int) -> int:
    """The bits of an index below `size`."""
    return max(1, (size - 1).bit_length())
