"""What travels between the server and the sites: tensors and plain values, as safetensors.

Nothing is pickled, and nothing that arrives is believed: a message is taken apart here, in Python,
and whatever is not exactly as it should be is refused before any memory is asked for.
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

HEADER = 1_000_000
"""The most bytes that names, shapes and values may take in a message."""
DEPTH = 20
"""How deep lists and dictionaries may be nested in the values, which are the first of them."""
DIMENSIONS = 64
"""The most dimensions that torch computes with."""
SHOWN = 40
"""The most characters that are shown of what a peer has sent."""
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
"""The types of tensors that may travel, by their names in a header."""


class Refused(UndriftError):
    """A message that is not what was asked for."""


@dataclass(frozen=True)
class Like:
    """What a tensor must be like."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def size(expected: Mapping[str, Like]) -> int:
    """The bytes that such tensors have; a message of them has at most `HEADER` + 8 more."""
    return sum(math.prod(like.shape) * like.dtype.itemsize for like in expected.values())


# Sending


def encode(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A message of plain values and tensors; `decode` gives both back, whatever their order."""
    wrong = _fault(dict(values), 1)
    require(wrong is None, f"The values cannot be sent: {wrong}.")
    ready: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        wrong = "its name is taken" if name == METADATA else _fault(name, 1) or _unfit(tensor)
        require(wrong is None, f"Tensor {_shown(name)} cannot be sent: {wrong}.")
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        place = tensor.untyped_storage().data_ptr()
        # Two names for one vector are two vectors when they arrive.
        ready[name] = tensor.clone() if place in places else tensor
        places.add(place)
    text = json.dumps(dict(values), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    try:
        data = save(ready, metadata={VALUES: text})
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise UndriftError(f"The message cannot be made: {first_line(error)}.") from error
    length = int.from_bytes(data[:8], "little")
    require(
        length <= HEADER,
        f"The names and values of the message take {bytes_in_words(length)}, but may take at most "
        f"{bytes_in_words(HEADER)}.",
    )
    return data


def _unfit(tensor: Tensor) -> str | None:
    """Why a tensor cannot travel, or None."""
    if tensor.layout != torch.strided:
        return "it is sparse"
    if tensor.dtype not in TYPES.values():
        return f"its type is {_name(tensor.dtype)}"
    if tensor.dim() > DIMENSIONS:
        return f"it has more than {DIMENSIONS} dimensions"
    return None


# Receiving


def decode(data: bytes, most: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The values and tensors of a message of at most `most` bytes; anything else is `Refused`."""
    if len(data) > most:
        _refuse(f"it has {bytes_in_words(len(data))}, but may have at most {bytes_in_words(most)}")
    if len(data) < 8:
        _refuse("it is cut off")
    length = int.from_bytes(data[:8], "little")
    if length > HEADER:
        _refuse(f"its header is longer than {bytes_in_words(HEADER)}")
    start = 8 + length
    if start > len(data):
        _refuse("it is cut off")
    try:
        header = data[8:start].decode()
    except UnicodeDecodeError:
        _refuse("its header is not text")
    entries = _parsed(header, "header")
    values = _values(entries.pop(METADATA, None))
    places = {name: _place(name, entry) for name, entry in entries.items()}
    end = 0
    for name, place in sorted(places.items(), key=lambda item: (item[1].begin, item[1].end)):
        if place.begin != end:
            _refuse(f"tensor {_shown(name)} does not begin where the one before it ends")
        end = place.end
    if end != len(data) - start:
        _refuse("its tensors are not as long as its data")
    body = memoryview(data)[start:]
    return values, {name: _tensor(name, place, body) for name, place in places.items()}


@dataclass(frozen=True)
class _Place:
    """Where a tensor is in the data of a message, and what it is like."""

    like: Like
    begin: int
    end: int


def _place(name: str, entry: Any) -> _Place:
    """What the header says of a tensor, if it does not contradict itself."""
    shown = f"tensor {_shown(name)}"
    if _fault(name, 1):
        _refuse(f"the name of {shown} is not text")
    if not isinstance(entry, dict) or entry.keys() != FIELDS:
        _refuse(f"{shown} is not described by its type, shape and place")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        _refuse(f"{shown} is of an unknown type")
    if not _counts(shape) or len(shape) > DIMENSIONS:
        _refuse(f"{shown} has no shape that a tensor can have")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(f"{shown} has no place in the data")
    dtype = TYPES[kind]
    # An empty tensor may have long sides too, whose product torch must be able to count.
    if math.prod(max(side, 1) for side in shape) * dtype.itemsize >= 1 << 63:
        _refuse(f"{shown} has no shape that a tensor can have")
    if math.prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
        _refuse(f"{shown} is not as long as its shape says")
    return _Place(Like(dtype, tuple(shape)), offsets[0], offsets[1])


def _counts(numbers: Any) -> bool:
    """Whether this is a list of whole numbers from 0 upwards."""
    return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)


def _tensor(name: str, place: _Place, body: memoryview) -> Tensor:
    """A tensor in memory of its own, which is aligned and may be written to."""
    like = place.like
    if place.begin == place.end:
        return torch.empty(like.shape, dtype=like.dtype)
    content = bytearray(body[place.begin : place.end])
    if like.dtype == torch.bool and torch.frombuffer(content, dtype=torch.uint8).max() > 1:
        _refuse(f"tensor {_shown(name)} is neither true nor false somewhere")
    return torch.frombuffer(content, dtype=like.dtype).reshape(like.shape)


def _values(metadata: Any) -> dict[str, Any]:
    """The plain values in a header's metadata."""
    if not isinstance(metadata, dict) or metadata.keys() != {VALUES}:
        _refuse("it has no values")
    text = metadata[VALUES]
    if not isinstance(text, str):
        _refuse("its values are not text")
    values = _parsed(text, "values")
    wrong = _fault(values, 1)
    if wrong is not None:
        _refuse(f"in its values, {wrong}")
    return values


def _parsed(text: str, what: str) -> dict[str, Any]:
    """A JSON object in which no name is there twice, and every number is one."""
    if not text.startswith("{"):
        _refuse(f"its {what} are not a JSON object" if what == VALUES else "it has no header")
    try:
        found: dict[str, Any] = json.loads(
            text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite
        )
    except Refused:
        raise
    except (ValueError, RecursionError) as error:
        raise Refused(f"The message is refused: the JSON of its {what} is damaged.") from error
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        _refuse("a name is there twice")
    return found


def _finite(text: str) -> float:
    """A number, which infinity and what is too large to be told from it are not."""
    number = float(text)
    if not math.isfinite(number):
        _refuse("a number is not finite")
    return number


def _fault(value: Any, depth: int) -> str | None:
    """What is wrong with a plain value, or None."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if abs(value) < 1 << 64 else "a whole number is too large"
    if isinstance(value, float):
        return None if math.isfinite(value) else "a number is not finite"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "a text has half a character"
        return None
    if not isinstance(value, list | dict):
        return f"a {type(value).__name__} is not a plain value"
    if depth > DEPTH:
        return f"something is nested deeper than {DEPTH}"
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            return "a name is not text"
        value = [*value.keys(), *value.values()]
    faults = (_fault(item, depth + 1) for item in value)
    return next((fault for fault in faults if fault is not None), None)


# Checking


def check_tensors(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Like], finite: bool = True
) -> None:
    """Refuse tensors that are not exactly the expected ones, or not finite."""
    for name in tensors:
        if name not in expected:
            raise Refused(f"Tensor {_shown(name)} was not asked for.")
    for name, like in expected.items():
        shown = f"Tensor {_shown(name)}"
        if name not in tensors:
            raise Refused(f"{shown} is missing.")
        found = tensors[name]
        if found.dtype != like.dtype:
            raise Refused(
                f"{shown} is of type {_name(found.dtype)}, but must be {_name(like.dtype)}."
            )
        if tuple(found.shape) != tuple(like.shape):
            raise Refused(
                f"{shown} has the shape {_cut(str(list(found.shape)))}, but must have "
                f"{list(like.shape)}."
            )
        if finite and not _all_finite(found):
            raise Refused(f"{shown} has values that are not finite.")


def check_numbers(values: Mapping[str, Any], expected: Collection[str]) -> dict[str, float]:
    """The numbers of these names; refuses others, and what is not a finite number."""
    for name in values:
        if name not in expected:
            raise Refused(f"The number {_shown(name)} was not asked for.")
    found = {}
    for name in expected:
        if name not in values:
            raise Refused(f"The number {_shown(name)} is missing.")
        value = values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(f"{_shown(name)} is a {type(value).__name__}, but must be a number.")
        try:
            found[name] = float(value)
        except OverflowError:
            raise Refused(f"{_shown(name)} is too large a number.") from None
        if not math.isfinite(found[name]):
            raise Refused(f"{_shown(name)} is not a finite number.")
    return found


def _all_finite(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.dtype.itemsize == 1:  # torch cannot tell it of numbers of eight bits
        tensor = tensor.float()
    return bool(tensor.isfinite().all())


def _refuse(why: str) -> NoReturn:
    raise Refused(f"The message is refused: {why}.")


def _shown(name: Any) -> str:
    """A name that may come from a peer, cut and without characters that do not print."""
    return _cut(repr(name[: SHOWN + 1] if isinstance(name, str) else name))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
