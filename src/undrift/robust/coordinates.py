"""Statistics of each coordinate on its own: the median and the trimmed mean."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.replies import accumulator_dtype
from undrift.core.uploads.statistic import Statistic
from undrift.utils.errors import require_range

PIECE_NUMBERS = 4_000_000
"""How many numbers are sorted at a time, so that the sorted copy stays small."""


class _ByCoordinate(Statistic):
    """A statistic of the sorted values of each coordinate."""

    def of(self, rows: Tensor) -> Tensor:
        width = max(1, PIECE_NUMBERS // len(rows))
        pieces = rows.split(width, dim=1)
        return torch.cat([self._of_sorted(piece.sort(dim=0).values) for piece in pieces])

    @abstractmethod
    def _of_sorted(self, rows: Tensor) -> Tensor:
        """The statistic of rows that increase in every column."""


@dataclass(frozen=True)
class Median(_ByCoordinate):
    """The median of every coordinate (Yin et al., ICML 2018).

    With fewer than half of the replies arbitrary, every coordinate of the result lies within the
    range of the honest replies.
    """

    def tolerates(self, replies: int) -> int:
        return (replies - 1) // 2

    def _of_sorted(self, rows: Tensor) -> Tensor:
        below, above = rows[(len(rows) - 1) // 2], rows[len(rows) // 2]
        return below / 2 + above / 2  # their sum could overflow


@dataclass(frozen=True)
class TrimmedMean(_ByCoordinate):
    """The mean of every coordinate without its largest and smallest values (Yin et al., ICML 2018).

    Parameters
    ----------
    share
        the share of the replies that is cut off at each end, at least 0 and below 0.5; of n
        replies, the whole part of share·n
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        require_range("TrimmedMean's share", self.share, at_least=0, below=0.5)

    def tolerates(self, replies: int) -> int:
        return int(self.share * replies + 1e-9)

    def _of_sorted(self, rows: Tensor) -> Tensor:
        cut = self.tolerates(len(rows))
        return rows[cut : len(rows) - cut].mean(0, dtype=accumulator_dtype(rows)).to(rows.dtype)
