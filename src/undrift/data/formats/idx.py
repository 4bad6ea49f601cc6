"""The idx format of MNIST and its relatives: arrays of any shape.

Two zero bytes, the type, the number of dimensions, each dimension as four bytes, and the
values row by row; everything with the highest byte first.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from undrift.data.formats.contents import contents
from undrift.utils.errors import require

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_DIMENSIONS = 32


def read_idx(path: Path) -> np.ndarray:
    """The array in an idx file, gzipped if its name ends in .gz; it may be written to."""
    content = contents(path)
    zeros, kind, dimensions = content[:2], *content[2:4].ljust(2, b"\0")
    require(
        zeros == b"\0\0" and kind in _TYPES and dimensions <= _MOST_DIMENSIONS,
        f"{path} is no idx file: it begins with {content[:4].hex(' ') or 'nothing'}, but must "
        f"begin with 00 00, a type from {', '.join(f'{type:02x}' for type in _TYPES)} and at "
        f"most {_MOST_DIMENSIONS} dimensions.",
    )
    header = 4 + 4 * dimensions
    require(
        len(content) >= header,
        f"{path} is truncated: it has {len(content)} bytes of a header of {header}.",
    )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    dtype = np.dtype(_TYPES[kind])
    found, wanted = len(content), header + math.prod(shape) * dtype.itemsize
    fault = "is truncated" if found < wanted else "has too much content"
    require(
        found == wanted,
        f"{path} {fault}: it has {found} bytes, but {wanted} belong to an array of shape "
        f"{list(shape)} of {dtype.newbyteorder('=').name}.",
    )
    # A copy, because the bytes themselves cannot be written to.
    values = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return values.astype(dtype.newbyteorder("="))
