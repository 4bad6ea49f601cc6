"""Named tensors and numbers as bytes in the safetensors format; nothing is pickled.

The format is read and written here, not by the safetensors package, which makes three copies of
every tensor on the way: here it is one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from undrift.utils.errors import UndriftError, first_line

NUMBERS, ORDER = "numbers", "order"
METADATA = "__metadata__"
LENGTH_BYTES = 8
"""The size of the header's length, which comes first."""
ALIGNMENT = 8
"""The header is filled up with spaces to a multiple of this, so that tensors are aligned."""


def pack(values: Mapping[str, Any], room: int = 0) -> bytearray:
    """Serialize tensors; numbers, strings and None travel as JSON in the header.

    `room` is the number of bytes that stay free at the end, for the caller.
    """
    if not values:
        return bytearray(_nothing()) + bytearray(room)
    tensors = {
        name: value.detach().cpu().contiguous()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    numbers = {name: value for name, value in values.items() if name not in tensors}
    about = {ORDER: json.dumps([*values]), NUMBERS: json.dumps(numbers)}
    header: dict[str, Any] = {METADATA: about}
    # Large numbers first: then every tensor begins at a multiple of its numbers' size.
    placed = sorted(tensors, key=lambda name: -tensors[name].element_size())
    end = 0
    for name in placed:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": NAMES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    found = bytearray(LENGTH_BYTES + len(text) + end + room)
    found[:LENGTH_BYTES] = len(text).to_bytes(LENGTH_BYTES, "little")
    start = LENGTH_BYTES + len(text)
    found[LENGTH_BYTES:start] = text
    whole = memoryview(found)
    for name in placed:
        begin, end = header[name]["data_offsets"]
        whole[start + begin : start + end] = _bytes_of(tensors[name])
    return found


@cache
def _nothing() -> bytes:
    """Bytes of no values, which every client of a method without states has."""
    text = json.dumps({METADATA: {ORDER: "[]", NUMBERS: "{}"}}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def unpack(content: bytes | memoryview, where: str, device: torch.device) -> dict[str, Any]:
    """The values that `pack` serialized; raises if the bytes are damaged.

    `where` names the source of the bytes in the message.
    """
    try:
        whole = memoryview(content)
        start = LENGTH_BYTES + int.from_bytes(whole[:LENGTH_BYTES], "little")
        header = json.loads(bytes(whole[LENGTH_BYTES:start]))
        about = {key: json.loads(text) for key, text in header.pop(METADATA).items()}
        data, expected = whole[start:], 0
        found: dict[str, Any] = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (begin, end) = (
                DTYPES[entry["dtype"]],
                entry["shape"],
                entry["data_offsets"],
            )
            size = math.prod(shape) * dtype.itemsize
            if (
                begin != expected
                or end != begin + size
                or end > len(data)
                or min(shape, default=0) < 0
            ):
                raise ValueError(f"the place of {name!r} is wrong")
            value = torch.empty(shape, dtype=dtype)
            _bytes_of(value)[:] = data[begin:end]
            found[name] = value.to(device)
            expected = end
        if expected != len(data):
            raise ValueError(f"it has {len(data)} bytes of data instead of {expected}")
        found |= about[NUMBERS]
        return {name: found[name] for name in about[ORDER]}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UndriftError(f"{where} is damaged: {first_line(error)}.") from error


DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""torch's types by their names in safetensors' headers."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}
