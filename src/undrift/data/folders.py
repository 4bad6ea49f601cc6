"""A user's folder of client files: npz, csv or parquet for one client each, LEAF json for many."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data.federated import FederatedData
from undrift.data.formats import read_leaf
from undrift.errors import UndriftError, first_line, require

Clients = dict[Hashable, tuple[np.ndarray, np.ndarray]]
TARGETS = ("label", "target", "y")
"""What a target column may be called if the user does not say."""


def from_folder(
    folder: Path, target: str | None, name: str | None, classes: Sequence[str] | None
) -> FederatedData:
    """See `FederatedData.from_folder`."""
    require(folder.is_dir(), f"There is no folder {folder}.")
    train, test = folder / "train", folder / "test"
    if train.is_dir():
        clients = _clients(train, target)
        others = _clients(test, target) if test.is_dir() else None
    else:
        clients, others = _clients(folder, target), None
    held = None
    if others is not None:
        for id in others:
            require(
                id in clients,
                f"Client {id!r} has test samples in {test}, but no training samples in {train}.",
            )
        like = next(iter(clients.values()))
        nothing = like[0][:0], like[1][:0]
        held = {id: others.get(id, nothing) for id in clients}
    title = folder.resolve().name if name is None else name
    return FederatedData.from_clients(clients, held, title, classes=classes)


def _clients(folder: Path, target: str | None) -> Clients:
    """The samples of each client in a folder, by the name of its file or LEAF's name of it."""
    files = sorted(file for file in folder.iterdir() if file.suffix in READERS and file.is_file())
    leaf = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    require(
        bool(files or leaf),
        f"There are no files *{', *'.join(READERS)} or *.json in {folder}.",
    )
    require(
        not (files and leaf),
        f"{folder} has both {files[0].name if files else ''} and {leaf[0].name if leaf else ''}, "
        f"but must have either a file per client or LEAF json.",
    )
    if leaf:
        return {id: _numbers(id, pair, folder) for id, pair in read_leaf(leaf).items()}
    clients: Clients = {}
    for file in files:
        require(
            file.stem not in clients, f"{folder} has more than one file for client {file.stem!r}."
        )
        x, y = READERS[file.suffix](file, target)
        require(len(y) > 0, f"{file} has no samples.")
        clients[file.stem] = x, y
    return clients


def _numbers(id: str, pair: tuple[Any, Any], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    require(
        all(isinstance(values, np.ndarray) for values in pair),
        f"The samples of {id!r} in {folder} are texts: turn them into numbers first (for "
        f"Shakespeare use ud.data.shakespeare).",
    )
    return pair


def _npz(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Arrays `x` and `y`."""
    try:
        with np.load(path, allow_pickle=False) as found:
            names = list(found)
            wanted = [name for name in ("x", "y") if name in names]
            require(
                wanted == ["x", "y"],
                f"{path} must have arrays 'x' and 'y', but has {', '.join(map(repr, names))}.",
            )
            return found["x"], found["y"]
    except UndriftError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UndriftError(f"{path} is damaged or no npz file: {first_line(error)}.") from error


def _csv(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray]:
    """A header line with the names of the columns, then numbers."""
    try:
        with path.open(newline="") as file:
            header, *lines = csv.reader(file)
    except (OSError, ValueError) as error:
        raise UndriftError(f"{path} cannot be read, or is empty: {first_line(error)}.") from error
    for number, line in enumerate(lines, 2):
        require(
            len(line) == len(header),
            f"Line {number} of {path} has {len(line)} values for {len(header)} columns.",
        )
    columns = dict(zip(header, zip(*lines, strict=True), strict=True)) if lines else {}
    require(bool(columns), f"{path} has no samples.")
    return _columns({name: list(values) for name, values in columns.items()}, path, target)


def _parquet(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Columns of numbers."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UndriftError(
            f"{path.name} needs pyarrow to be read: pip install 'undrift[data]'."
        ) from None
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise UndriftError(f"{path} is damaged or no parquet file: {first_line(error)}.") from error
    return _columns(table.to_pydict(), path, target)


READERS: dict[str, Callable[[Path, str | None], tuple[np.ndarray, np.ndarray]]] = {
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _columns(
    columns: dict[str, list[Any]], path: Path, target: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and target of named columns; whole numbers as targets are classes."""
    known = [target] if target is not None else TARGETS
    named = next((name for name in known if name in columns), None)
    if named is None:
        raise UndriftError(
            f"{path} has no column {' or '.join(map(repr, known))} to predict; its columns are "
            f"{', '.join(map(repr, columns))}."
        )
    inputs = [name for name in columns if name != named]
    require(bool(inputs), f"{path} has no column besides the target {named!r}.")
    x = np.stack([_values(columns[name], name, path) for name in inputs], axis=1)
    y = _values(columns[named], named, path)
    if np.equal(np.mod(y, 1), 0).all() and not _written_as_fractions(columns[named]):
        return x.astype(np.float32), y.astype(np.int64)
    return x.astype(np.float32), y.astype(np.float32)


def _values(values: list[Any], column: str, path: Path) -> np.ndarray:
    found = np.empty(len(values))
    for number, value in enumerate(values):
        try:
            found[number] = float(value)
        except (TypeError, ValueError):
            raise UndriftError(
                f"Row {number + 1} of column {column!r} in {path} is {value!r}, but must be a "
                f"number."
            ) from None
    return found


def _written_as_fractions(values: list[Any]) -> bool:
    """Whether whole values are written 1.0 rather than 1: then they are measurements."""
    return any(isinstance(value, float) or "." in str(value) for value in values)
