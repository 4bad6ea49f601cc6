"""Norms of large vectors in double precision, without a copy of the vector in it."""

from __future__ import annotations

import torch
from torch import Tensor

PIECE_NUMBERS = 1 << 20
"""Numbers of a vector that are converted to double precision at a time."""


def squared_norm(x: Tensor, other: Tensor | None = None) -> float:
    """|x|², or |x − other|², in double precision."""
    total = torch.zeros((), dtype=torch.float64)
    others = None if other is None else other.reshape(-1).split(PIECE_NUMBERS)
    for number, piece in enumerate(x.reshape(-1).split(PIECE_NUMBERS)):
        moved = piece if others is None else piece - others[number]
        # On the CPU: not every device has double precision.
        total += moved.cpu().double().square().sum()
    return float(total)
