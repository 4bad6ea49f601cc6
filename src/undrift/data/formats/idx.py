"""Reader of the idx format of MNIST and similar data sets: an array of any shape.

A file has two zero bytes, one byte for the type, one for the number of dimensions, four bytes for
each dimension, and then the values row by row. Numbers are big-endian.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from undrift.data.formats.reading import read_bytes
from undrift.utils.errors import require

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_DIMENSIONS = 32


def read_idx(path: Path) -> np.ndarray:
    """The array in an idx file, as a writable copy; a name that ends in .gz means gzip."""
    content = read_bytes(path)
    zeros, kind, dimensions = content[:2], *content[2:4].ljust(2, b"\0")
    require(
        zeros == b"\0\0" and kind in _TYPES and dimensions <= _MAX_DIMENSIONS,
        f"{path} is not an idx file: it begins with {content[:4].hex(' ') or 'nothing'}, but must "
        f"begin with 00 00, a type from {', '.join(f'{type:02x}' for type in _TYPES)} and at "
        f"most {_MAX_DIMENSIONS} dimensions.",
    )
    header = 4 + 4 * dimensions
    require(
        len(content) >= header,
        f"{path} is truncated: it has {len(content)} bytes, but its header alone has {header}.",
    )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    dtype = np.dtype(_TYPES[kind])
    found, wanted = len(content), header + math.prod(shape) * dtype.itemsize
    fault = "is truncated" if found < wanted else "is too long"
    require(
        found == wanted,
        f"{path} {fault}: it has {found} bytes, but an array of shape {list(shape)} of type "
        f"{dtype.newbyteorder('=').name} needs {wanted}.",
    )
    # astype makes a copy, which is needed because an array over bytes is read-only.
    values = np.frombuffer(content, dtype, offset=header).reshape(shape)
    return values.astype(dtype.newbyteorder("="))
