"""Named tensors and numbers as bytes in the safetensors format; nothing is pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import save
from torch import Tensor

from undrift.utils.errors import UndriftError, first_line

NUMBERS, ORDER = "numbers", "order"


def pack(values: Mapping[str, Any]) -> bytes:
    """Serialize tensors; numbers, strings and None travel as JSON in the header."""
    return _pack(values) if values else _nothing()


@cache
def _nothing() -> bytes:
    """Bytes of no values, which every client of a method without states has."""
    return _pack({})


def _pack(values: Mapping[str, Any]) -> bytes:
    tensors: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, value in values.items():
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            place = value.untyped_storage().data_ptr()
            # safetensors refuses tensors that share memory, so a second name gets a copy.
            tensors[name] = value.clone() if place in places else value
            places.add(place)
    numbers = {name: value for name, value in values.items() if name not in tensors}
    return save(tensors, metadata={ORDER: json.dumps([*values]), NUMBERS: json.dumps(numbers)})


def unpack(content: bytes | memoryview, where: str, device: torch.device) -> dict[str, Any]:
    """The values that `pack` serialized; raises if the bytes are damaged.

    `where` names the source of the bytes in the message.
    """
    try:
        whole = bytes(content)
        length = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + length])
        found: dict[str, Any] = {}
        for name, entry in deserialize(whole):
            dtype = DTYPES[entry["dtype"]]
            data = entry["data"]
            flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            found[name] = flat.reshape(entry["shape"]).to(device)
        about = {key: json.loads(text) for key, text in header["__metadata__"].items()}
        found |= about[NUMBERS]
        return {name: found[name] for name in about[ORDER]}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
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
