"""The wire format of a deployment: encodes messages of tensors and plain values, and decodes them.

A message is a safetensors file with the plain values as JSON in its metadata; nothing is pickled.
Decoding does not trust the sender: it checks the whole header in Python, and rejects a message with
any deviation before it allocates memory for a tensor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.formatting import size as bytes_in_words
from undrift.utils.serialization import DTYPES

MAX_HEADER_BYTES = 1_000_000
"""The largest header of a message: names, types and shapes of tensors, and the plain values."""
MAX_DEPTH = 20
"""How deep lists and dictionaries may be nested; the dictionary of all values is level 1."""
MAX_DIMENSIONS = 64
"""The most dimensions of a tensor that torch supports."""
SHOWN_CHARACTERS = 40
"""Error messages quote at most this much of a name that a peer sent."""
METADATA, VALUES = "__metadata__", "values"
FIELDS = {"dtype", "shape", "data_offsets"}
TYPES = DTYPES | {
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
"""The allowed types of tensors, by their names in a safetensors header."""


class InvalidMessage(UndriftError):
    """A message that is malformed, or not the one that was asked for."""


@dataclass(frozen=True)
class TensorSpec:
    """The type and shape that a tensor must have."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def size_bytes(expected: Mapping[str, TensorSpec]) -> int:
    """The bytes of all these tensors; a message of them has at most `MAX_HEADER_BYTES` + 8 more."""
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in expected.values())


# Sending


def encode(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A message of plain values and tensors, in any order; `decode` returns both."""
    fault = _value_fault(dict(values), 1)
    require(fault is None, f"The values cannot be sent: {fault}.")
    ready: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        if name == METADATA:
            fault = "its name is reserved"
        else:
            fault = _value_fault(name, 1) or _tensor_fault(tensor)
        require(fault is None, f"Tensor {_shown(name)} cannot be sent: {fault}.")
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        address = tensor.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory, such as one vector under two names.
        ready[name] = tensor.clone() if address in addresses else tensor
        addresses.add(address)
    text = json.dumps(dict(values), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    try:
        data = save(ready, metadata={VALUES: text})
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise UndriftError(f"The message cannot be encoded: {first_line(error)}.") from error
    length = int.from_bytes(data[:8], "little")
    require(
        length <= MAX_HEADER_BYTES,
        f"The names and values of the message take {bytes_in_words(length)}, but the limit is "
        f"{bytes_in_words(MAX_HEADER_BYTES)}.",
    )
    return data


def _tensor_fault(tensor: Tensor) -> str | None:
    """Why a tensor cannot be sent, or None."""
    if tensor.layout != torch.strided:
        return "it is sparse"
    if tensor.dtype not in TYPES.values():
        return f"its type is {_name(tensor.dtype)}, which is not supported"
    if tensor.dim() > MAX_DIMENSIONS:
        return f"it has more than {MAX_DIMENSIONS} dimensions"
    return None


# Receiving


def decode(data: bytes, max_bytes: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The values and tensors of a message of at most `max_bytes`; else raises `InvalidMessage`."""
    if len(data) > max_bytes:
        _reject(f"it has {bytes_in_words(len(data))}, but the limit is {bytes_in_words(max_bytes)}")
    if len(data) < 8:
        _reject("it is truncated")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        _reject(f"its header is longer than {bytes_in_words(MAX_HEADER_BYTES)}")
    start = 8 + length
    if start > len(data):
        _reject("it is truncated")
    try:
        header = data[8:start].decode()
    except UnicodeDecodeError:
        _reject("its header is not text")
    entries = _parsed(header, "header")
    values = _values(entries.pop(METADATA, None))
    slices = {name: _slice(name, entry) for name, entry in entries.items()}
    # Neither gaps nor overlaps: otherwise a small message could describe any amount of tensors.
    end = 0
    for name, found in sorted(slices.items(), key=lambda item: (item[1].begin, item[1].end)):
        if found.begin != end:
            _reject(f"tensor {_shown(name)} does not begin where the previous one ends")
        end = found.end
    if end != len(data) - start:
        _reject("its tensors are not as long as its data")
    body = memoryview(data)[start:]
    return values, {name: _tensor(name, found, body) for name, found in slices.items()}


@dataclass(frozen=True)
class _Slice:
    """Where a tensor is in the data of a message, from `begin` to `end`, and its type and shape."""

    spec: TensorSpec
    begin: int
    end: int


def _slice(name: str, entry: Any) -> _Slice:
    """What the header says about a tensor; a description that contradicts itself is rejected."""
    shown = f"tensor {_shown(name)}"
    if _value_fault(name, 1):
        _reject(f"the name of {shown} is not valid text")
    if not isinstance(entry, dict) or entry.keys() != FIELDS:
        _reject(f"{shown} is not described by exactly dtype, shape and data_offsets")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        _reject(f"{shown} has an unknown type")
    if not _counts(shape) or len(shape) > MAX_DIMENSIONS:
        _reject(f"{shown} has an invalid shape")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _reject(f"{shown} has invalid data_offsets")
    dtype = TYPES[kind]
    # torch multiplies the sides of an empty tensor as well, in 64 bits, leaving out zeros.
    if math.prod(max(side, 1) for side in shape) * dtype.itemsize >= 1 << 63:
        _reject(f"{shown} has an invalid shape")
    if math.prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        _reject(f"{shown} does not have the length of its shape")
    return _Slice(TensorSpec(dtype, tuple(shape)), offsets[0], offsets[1])


def _counts(numbers: Any) -> bool:
    """Whether this is a list of integers that are not negative."""
    return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)


def _tensor(name: str, found: _Slice, body: memoryview) -> Tensor:
    """A tensor that owns its memory, so that it is aligned and writable."""
    spec = found.spec
    if found.begin == found.end:
        return torch.empty(spec.shape, dtype=spec.dtype)
    content = bytearray(body[found.begin : found.end])
    # Other bytes than 0 and 1 are undefined behaviour in torch.
    if spec.dtype == torch.bool and torch.frombuffer(content, dtype=torch.uint8).max() > 1:
        _reject(f"tensor {_shown(name)} has a bool that is neither 0 nor 1")
    return torch.frombuffer(content, dtype=spec.dtype).reshape(spec.shape)


def _values(metadata: Any) -> dict[str, Any]:
    """The plain values in the metadata of a header."""
    if not isinstance(metadata, dict) or metadata.keys() != {VALUES}:
        _reject("it has no values")
    text = metadata[VALUES]
    if not isinstance(text, str):
        _reject("its values are not text")
    values = _parsed(text, "values")
    fault = _value_fault(values, 1)
    if fault is not None:
        _reject(f"in its values, {fault}")
    return values


def _parsed(text: str, what: str) -> dict[str, Any]:
    """A JSON object without repeated names, NaN or infinity."""
    if not text.startswith("{"):
        _reject(f"its {what} are not a JSON object" if what == VALUES else "it has no header")
    try:
        found: dict[str, Any] = json.loads(
            text, object_pairs_hook=_without_repeats, parse_float=_finite, parse_constant=_finite
        )
    except InvalidMessage:
        raise
    except (ValueError, RecursionError) as error:
        _reject(f"the JSON of its {what} is invalid", error)
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; one with a repeated name is rejected."""
    found = dict(pairs)
    if len(found) < len(pairs):
        _reject("a name is repeated")
    return found


def _finite(text: str) -> float:
    """A finite number; NaN, infinity and numbers that overflow to it are rejected."""
    number = float(text)
    if not math.isfinite(number):
        _reject("a number is not finite")
    return number


def _value_fault(value: Any, depth: int) -> str | None:
    """Why a value at this depth is not allowed, or None."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if abs(value) < 1 << 64 else "an integer has more than 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "a number is not finite"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "a text is not valid Unicode"
        return None
    if not isinstance(value, list | dict):
        return f"{type(value).__name__} is not a type of plain values"
    if depth > MAX_DEPTH:
        return f"a value is nested deeper than {MAX_DEPTH} levels"
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return "a name is not text"
        value = [*value.keys(), *value.values()]
    faults = (_value_fault(item, depth + 1) for item in value)
    return next((fault for fault in faults if fault is not None), None)


# Checking


def check_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, TensorSpec], finite: bool = True
) -> None:
    """Reject tensors unless their names, types and shapes are the expected ones, and all finite."""
    for name in tensors:
        if name not in expected:
            raise InvalidMessage(f"Tensor {_shown(name)} was not asked for.")
    for name, spec in expected.items():
        shown = f"Tensor {_shown(name)}"
        if name not in tensors:
            raise InvalidMessage(f"{shown} is missing.")
        found = tensors[name]
        if found.dtype != spec.dtype:
            raise InvalidMessage(
                f"{shown} has the type {_name(found.dtype)}, but must have {_name(spec.dtype)}."
            )
        if tuple(found.shape) != tuple(spec.shape):
            raise InvalidMessage(
                f"{shown} has the shape {_cut(str(list(found.shape)))}, but must have "
                f"{list(spec.shape)}."
            )
        if finite and not _all_finite(found):
            raise InvalidMessage(f"{shown} has values that are not finite.")


def check_numbers(values: Mapping[str, Any], expected: Collection[str]) -> dict[str, float]:
    """The values as floats; rejected unless they have the expected names and are finite numbers."""
    for name in values:
        if name not in expected:
            raise InvalidMessage(f"The number {_shown(name)} was not asked for.")
    found = {}
    for name in expected:
        if name not in values:
            raise InvalidMessage(f"The number {_shown(name)} is missing.")
        value = values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidMessage(
                f"{_shown(name)} is a {type(value).__name__}, but must be a number."
            )
        try:
            found[name] = float(value)
        except OverflowError:
            raise InvalidMessage(f"{_shown(name)} is too large.") from None
        if not math.isfinite(found[name]):
            raise InvalidMessage(f"{_shown(name)} is not a finite number.")
    return found


def _all_finite(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.dtype.itemsize == 1:  # torch has no isfinite for 8-bit floats
        tensor = tensor.float()
    return bool(tensor.isfinite().all())


def _reject(why: str, cause: Exception | None = None) -> NoReturn:
    raise InvalidMessage(f"The message is rejected: {why}.") from cause


def _shown(name: Any) -> str:
    """A name that a peer may have sent, shortened and escaped for an error message."""
    return _cut(repr(name[: SHOWN_CHARACTERS + 1] if isinstance(name, str) else name))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
