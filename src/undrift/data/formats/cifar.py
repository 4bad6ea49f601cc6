"""Readers of CIFAR-10's and CIFAR-100's python and binary batches: images of 3 × 32 × 32 bytes.

A python batch is a pickle file; it is read without executing anything it contains.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data.formats.reading import read_bytes
from undrift.utils.errors import UndriftError, first_line, require

_IMAGE_BYTES = 3 * 32 * 32


def read_cifar_python(path: Path, label_key: str | bytes) -> tuple[np.ndarray, np.ndarray]:
    """The images `[n, 3, 32, 32]` and the labels `[n]` of a python batch.

    The label key is `labels` in CIFAR-10, and `fine_labels` or `coarse_labels` in CIFAR-100.
    The pickle may contain only numbers, strings and arrays; anything else is rejected.
    """
    try:
        batch = _Unpickler(io.BytesIO(read_bytes(path)), path).load()
    except UndriftError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UndriftError(
            f"{path} is truncated, damaged or not a python batch: {first_line(error)}."
        ) from error
    require(
        isinstance(batch, dict),
        f"{path} is not a python batch: its pickle must contain a dictionary.",
    )
    batch = {_text(key): value for key, value in batch.items()}
    key = _text(label_key)
    keys = ", ".join(map(repr, batch)) or "nothing"
    for wanted in ("data", key):
        require(wanted in batch, f"{path} has no key {wanted!r}, only {keys}.")
    images, labels = (_values(batch[name], f"The {name} of {path}") for name in ("data", key))
    require(
        images.dtype == np.uint8 and images.ndim == 2 and images.shape[1] == _IMAGE_BYTES,
        f"The images of {path} are {images.dtype.name} of shape {list(images.shape)}, but must "
        f"be uint8 of shape [n, {_IMAGE_BYTES}].",
    )
    require(
        (labels.dtype.kind in "iu" or labels.size == 0) and labels.ndim == 1,
        f"The {key} of {path} are {labels.dtype.name} of shape {list(labels.shape)}, but must "
        "be whole numbers of shape [n].",
    )
    require(
        len(images) == len(labels),
        f"{path} has {len(images)} images but {len(labels)} {key}.",
    )
    return np.array(images).reshape(-1, 3, 32, 32), labels.astype(np.int64)


def read_cifar_binary(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The images `[n, 3, 32, 32]` and the labels `[n, label_bytes]` of a binary batch.

    CIFAR-10 has one label per image, CIFAR-100 two: first the coarse one, then the fine one.
    """
    content = read_bytes(path)
    record = label_bytes + _IMAGE_BYTES
    require(
        len(content) > 0 and len(content) % record == 0,
        f"{path} is empty, truncated or not a binary batch: it has {len(content)} bytes, but must "
        f"have a multiple of {record}.",
    )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    images = records[:, label_bytes:].copy().reshape(-1, 3, 32, 32)
    return images, records[:, :label_bytes].astype(np.int64)


def _text(name: Any) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


def _values(found: Any, what: str) -> np.ndarray:
    """A value of a batch as an array; batches store arrays or lists of numbers."""
    try:
        return found.array if isinstance(found, _Array) else np.asarray(found)
    except ValueError as error:
        raise UndriftError(f"{what} must all have the same shape.") from error


class _Dtype:
    """Stands in for a pickled numpy.dtype: the kind, size and byte order of numbers."""

    def __init__(self, code: Any, *_: object) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def numpy(self) -> np.dtype:
        if self.code[:1] not in tuple("biuf"):
            raise pickle.UnpicklingError(f"an array of type {self.code!r} instead of numbers")
        return np.dtype(self.order.strip("|") + self.code)


class _Array:
    """Stands in for a pickled numpy.ndarray: its shape, its type and its bytes."""

    array = np.empty(0)

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, content = state
        self.array = _from_bytes(content, dtype, shape, "F" if by_columns else "C").array


def _from_bytes(content: Any, dtype: _Dtype, shape: Any, order: Any) -> _Array:
    made = _Array()
    by_columns = _text(order) == "F"
    flat = np.frombuffer(content, dtype.numpy())
    made.array = flat.reshape(shape, order="F" if by_columns else "C")
    return made


def _latin1(text: str, encoding: Any) -> bytes:
    if _text(encoding) != "latin1":
        raise pickle.UnpicklingError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


class _Unpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
    """Reads batches that any version of NumPy wrote, and calls only the functions above.

    It extends Python's unpickler and not the one in C, which allocates any amount of memory that a
    few crafted bytes ask for. It does not use NumPy's own functions, because a crafted dtype can
    crash them.
    """

    allowed = {
        ("numpy", "dtype"): _Dtype,
        ("numpy", "ndarray"): _Array,
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy.core.numeric", "_frombuffer"): _from_bytes,
        ("numpy._core.numeric", "_frombuffer"): _from_bytes,
        ("_codecs", "encode"): _latin1,
    }

    def __init__(self, content: io.BytesIO, path: Path) -> None:
        super().__init__(content, encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        require(
            (module, name) in self.allowed,
            f"{self.path} is rejected: its pickle asks for {module}.{name}, but only arrays of "
            "numbers are allowed.",
        )
        return self.allowed[module, name]
