"""Pack whole numbers of few bits into bytes, and unpack them.

Compressors use it for indices and quantised values, so that a message really has that many bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PIECE_CODES = 1 << 20
"""How many numbers are packed at a time: each takes a byte per bit meanwhile."""


def packed_bytes(codes: int, bits: int) -> int:
    """The bytes of `codes` numbers of `bits` bits."""
    return -(-codes * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Numbers in [0, 2**bits), `[n]`, as bytes; the lowest bit of the first number comes first."""
    values = codes.cpu().numpy().astype(np.uint64)
    shifts = np.arange(bits, dtype=np.uint64)
    pieces = [
        np.packbits(((piece[:, None] >> shifts) & np.uint64(1)).astype(np.uint8), bitorder="little")
        for piece in _pieces(values)
    ]
    return torch.from_numpy(np.concatenate(pieces) if pieces else np.empty(0, np.uint8))


def unpack(data: Tensor, codes: int, bits: int) -> Tensor | None:
    """The numbers that `pack` packed, as int64; None if the bits after the last one are not 0."""
    raw = data.cpu().numpy()
    flat = np.unpackbits(raw, bitorder="little")
    if flat[codes * bits :].any():
        return None
    weights = np.int64(1) << np.arange(bits, dtype=np.int64)
    planes = flat[: codes * bits].reshape(codes, bits)
    found = np.empty(codes, dtype=np.int64)
    for first in range(0, codes, PIECE_CODES):
        piece = slice(first, first + PIECE_CODES)
        found[piece] = planes[piece].astype(np.int64) @ weights
    return torch.from_numpy(found)


def _pieces(values: np.ndarray) -> list[np.ndarray]:
    # A multiple of 8 numbers fills whole bytes, so that the pieces join without a gap.
    return [values[k : k + PIECE_CODES] for k in range(0, len(values), PIECE_CODES)]
