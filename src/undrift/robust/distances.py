"""Statistics of the distances between uploads: the geometric median, Krum and Multi-Krum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.replies import accumulator_dtype
from undrift.core.uploads.statistic import Statistic
from undrift.robust.coordinates import PIECE_NUMBERS, Median
from undrift.utils.errors import require_range, require_whole


@dataclass(frozen=True)
class GeometricMedian(Statistic):
    """The point with the least sum of distances to the replies (Pillutla et al., IEEE TSP 2022).

    Weiszfeld's iteration with distances of at least `smoothing` times the median distance. With
    fewer than half of the replies arbitrary, its distance to the honest ones is bounded by a
    multiple of theirs to each other; single coordinates may leave the range of the honest replies.

    Parameters
    ----------
    iterations
        the most iterations
    tolerance
        it ends once a step is shorter than this share of the median distance
    smoothing
        keeps weights finite where the point meets a reply
    """

    iterations: int = 100
    tolerance: float = 1e-6
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        require_whole("GeometricMedian's iterations", self.iterations, at_least=1)
        require_range("GeometricMedian's tolerance", self.tolerance, at_least=0)
        require_range("GeometricMedian's smoothing", self.smoothing, above=0)

    def tolerates(self, replies: int) -> int:
        return (replies - 1) // 2

    def of(self, rows: Tensor) -> Tensor:
        dtype = accumulator_dtype(rows)
        # The mean would be a start as far away as the farthest reply.
        point = Median().of(rows).to(dtype)
        for _ in range(self.iterations):
            distances = torch.stack([torch.linalg.vector_norm(row - point) for row in rows])
            usual = distances.median()
            if not usual > 0:  # most replies are this point
                break
            weights = 1 / distances.clamp_min(self.smoothing * float(usual))
            weights /= weights.sum()
            before = point
            point = torch.zeros_like(before)
            for weight, row in zip(weights, rows, strict=True):
                point.add_(row.to(dtype) * weight)
            if float(torch.linalg.vector_norm(point - before)) <= self.tolerance * float(usual):
                break
        return point.to(rows.dtype)


@dataclass(frozen=True)
class Krum(Statistic):
    """The one reply that is closest to its neighbours (Blanchard et al., NeurIPS 2017).

    The score of a reply is the sum of its squared distances to the n − f − 2 nearest others; the
    reply with the least score is the result. It needs n ≥ 2f + 3 replies.

    Parameters
    ----------
    f
        how many replies may be arbitrary
    """

    f: int

    def __post_init__(self) -> None:
        require_whole(f"{type(self).__name__}'s f", self.f, at_least=0)

    @property
    def min_replies(self) -> int:  # type: ignore[override]
        """2f + 3"""
        return 2 * self.f + 3

    def tolerates(self, replies: int) -> int:
        return self.f

    def of(self, rows: Tensor) -> Tensor:
        return rows[int(self.scores(rows).argmin())]

    def scores(self, rows: Tensor) -> Tensor:
        """The score of each reply, `[n]`."""
        squares = square_distances(rows)
        squares.fill_diagonal_(torch.inf)  # a reply is not its own neighbour
        nearest = squares.sort(dim=1).values[:, : len(rows) - self.f - 2]
        return nearest.sum(1)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the m replies with the least scores of `Krum` (Blanchard et al., NeurIPS 2017).

    Parameters
    ----------
    f
        how many replies may be arbitrary
    m
        how many replies are averaged; None for n − f − 2, the most that is still robust
    """

    m: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m is not None:
            require_whole("MultiKrum's m", self.m, at_least=1)

    @property
    def min_replies(self) -> int:  # type: ignore[override]
        """2f + 3, and enough for m ≤ n − f − 2"""
        return max(2 * self.f + 3, self.f + 2 + (self.m or 1))

    def of(self, rows: Tensor) -> Tensor:
        number = len(rows) - self.f - 2 if self.m is None else self.m
        best = self.scores(rows).argsort(stable=True)[:number]
        total = torch.zeros(rows.shape[1], dtype=accumulator_dtype(rows), device=rows.device)
        for row in best.tolist():
            total += rows[row]
        return (total / number).to(rows.dtype)


def square_distances(rows: Tensor) -> Tensor:
    """|u_i − u_j|² for all pairs of rows, `[n, n]` in double precision."""
    dtype = accumulator_dtype(rows)
    found = torch.zeros(len(rows), len(rows), dtype=dtype, device=rows.device)
    center = Median().of(rows)
    width = max(1, PIECE_NUMBERS // len(rows))
    for piece, middle in zip(rows.split(width, dim=1), center.split(width), strict=True):
        # Around the middle the products are small, so that little is lost when they cancel.
        shifted = piece.to(dtype) - middle
        product = shifted @ shifted.T
        square = product.diagonal()
        found += square[:, None] + square[None, :] - 2 * product
    return found.clamp_min_(0)
