"""Arrays in files that are mapped into memory: npy, safetensors and Arrow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift.data.samples.sources import SampleSource
from undrift.data.samples.structure import Tree
from undrift.utils.errors import UndriftError, first_line, require

SAFETENSORS_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
"""NumPy's names of the types in safetensors files."""


def mapped(file: str | Path) -> Any:
    """The arrays of a file, mapped into memory: a batch reads its own rows from the disk.

    Give the result to `FederatedData.from_clients` or `from_arrays` in the place of arrays.

    Parameters
    ----------
    file
        "….npy" gives one array, "….safetensors" named arrays, "….arrow" or "….feather"
        (uncompressed Arrow IPC) the columns of a table by name
    """
    path = Path(file)
    require(path.is_file(), f"There is no file {path}.")
    readers = {
        ".npy": lambda: np.load(path, mmap_mode="r"),
        ".safetensors": lambda: _safetensors(path),
        ".arrow": lambda: ArrowSource(path),
        ".feather": lambda: ArrowSource(path),
    }
    require(
        path.suffix in readers,
        f"{path} must be one of {', '.join(readers)} to be mapped into memory.",
    )
    try:
        return readers[path.suffix]()
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(f"{path} cannot be mapped into memory: {first_line(error)}.") from error


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file: its header says where in the file each of them is."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        require(length <= path.stat().st_size, f"{path} is not a safetensors file.")
        header = json.loads(file.read(length))
    found: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        require(
            entry["dtype"] in SAFETENSORS_DTYPES,
            f"The tensor {name!r} of {path} is {entry['dtype']}, which NumPy cannot map.",
        )
        dtype, shape = SAFETENSORS_DTYPES[entry["dtype"]], tuple(entry["shape"])
        first = 8 + length + entry["data_offsets"][0]
        found[name] = np.memmap(path, dtype, "r", first, shape)
    return found


class ArrowSource(SampleSource):
    """The columns of an Arrow file by name; columns of lists become rows of numbers."""

    def __init__(self, path: Path):
        self._path = path
        self._open()

    def _open(self) -> None:
        import pyarrow as pa

        with pa.memory_map(str(self._path)) as file:
            self._table = pa.ipc.open_file(file).read_all()

    def __len__(self) -> int:
        return self._table.num_rows

    def read(self, rows: Sequence[int], key: int) -> Tree:
        found = self._table.take(list(rows))
        return {name: _column(found.column(name), name) for name in found.column_names}

    def __repr__(self) -> str:
        return f"Arrow table {self._table.schema.to_string()}, {len(self)} rows"

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path}  # another process maps the file itself

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._path = state["_path"]
        self._open()


def _column(column: Any, name: str) -> torch.Tensor:
    """A column of some rows as a tensor."""
    values = column.to_numpy()
    if values.dtype == object:
        values = np.stack([np.asarray(each) for each in values])
    require(
        values.dtype.kind in "biuf",
        f"The column {name!r} has values of type {values.dtype}, but must have numbers.",
    )
    return torch.from_numpy(np.array(values))
