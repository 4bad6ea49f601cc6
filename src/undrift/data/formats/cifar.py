"""The python and binary batches of CIFAR-10 and CIFAR-100: images of 3 × 32 × 32 bytes."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data.formats.contents import contents
from undrift.utils.errors import UndriftError, first_line, require

_PIXELS = 3 * 32 * 32


def read_cifar_python(path: Path, label_key: str | bytes) -> tuple[np.ndarray, np.ndarray]:
    """The images `[n, 3, 32, 32]` and the labels `[n]` of a python batch.

    The label key is `labels` in CIFAR-10, and `fine_labels` or `coarse_labels` in CIFAR-100.
    A batch is a pickle, of which nothing but numbers, texts and arrays is accepted.
    """
    try:
        batch = _Unpickler(io.BytesIO(contents(path)), path).load()
    except UndriftError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UndriftError(
            f"{path} is truncated, damaged or no python batch: {first_line(error)}."
        ) from error
    require(isinstance(batch, dict), f"{path} is no python batch: it holds no dictionary.")
    batch = {_text(key): value for key, value in batch.items()}
    key = _text(label_key)
    for wanted in ("data", key):
        require(
            wanted in batch,
            f"{path} has no {wanted!r}, only {', '.join(repr(name) for name in batch)}.",
        )
    images, labels = (_values(batch[name], f"The {name} of {path}") for name in ("data", key))
    require(
        images.dtype == np.uint8 and images.ndim == 2 and images.shape[1] == _PIXELS,
        f"The images of {path} are {images.dtype.name} of shape {list(images.shape)}, but must "
        f"be uint8 of shape [n, {_PIXELS}].",
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

    CIFAR-10 has one label, CIFAR-100 two: the coarse one, and the fine one.
    """
    content = contents(path)
    record = label_bytes + _PIXELS
    require(
        len(content) > 0 and len(content) % record == 0,
        f"{path} is empty, truncated or no binary batch: it has {len(content)} bytes, but must "
        f"have a multiple of {record}.",
    )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    images = records[:, label_bytes:].copy().reshape(-1, 3, 32, 32)
    return images, records[:, :label_bytes].astype(np.int64)


def _text(name: Any) -> str:
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


def _values(found: Any, what: str) -> np.ndarray:
    """The array that a batch holds, as an array or as a list of numbers."""
    try:
        return found.array if isinstance(found, _Array) else np.asarray(found)
    except ValueError as error:
        raise UndriftError(f"{what} are not all of the same shape.") from error


class _Dtype:
    """What a pickle says of a dtype: numbers of a kind, a size and a byte order."""

    def __init__(self, code: Any, *_: object) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def numpy(self) -> np.dtype:
        if self.code[:1] not in tuple("biuf"):
            raise pickle.UnpicklingError(f"an array of {self.code!r} instead of numbers")
        return np.dtype(self.order.strip("|") + self.code)


class _Array:
    """What a pickle says of an array: its shape, its dtype and its bytes."""

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
    """Reads a batch by whatever version of NumPy, and calls nothing but the functions above.

    Python's own unpickler, not the one in C: there a few bytes can ask for any amount of memory.

    NumPy's own would do as well for honest files, but a crafted dtype can crash it.
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
            f"{self.path} is refused: its pickle asks for {module}.{name}, but only arrays of "
            "numbers are allowed.",
        )
        return self.allowed[module, name]
