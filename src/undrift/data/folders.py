"""Reader of a user's folder: npz, csv or parquet files of one client each, or LEAF json files."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data.federated import FederatedData
from undrift.data.formats import read_leaf
from undrift.utils.errors import UndriftError, first_line, require, require_choice

Pair = tuple[np.ndarray, np.ndarray]
DEFAULT_TARGETS = ("label", "target", "y")
"""Names that a target column may have if the user names none."""


def from_folder(
    folder: Path,
    target: str | None,
    inputs: Sequence[str] | None,
    name: str | None,
    classes: Sequence[str] | None,
) -> FederatedData:
    """The implementation of `FederatedData.from_folder`, which explains the parameters."""
    require(folder.exists(), f"There is no folder {folder}.")
    require(folder.is_dir(), f"{folder} is a file, but must be a folder with one file per client.")
    train, test = folder / "train", folder / "test"
    both = [train, test] if train.is_dir() and test.is_dir() else []
    places = both or [train if train.is_dir() else folder]
    parts = [_files(place) for place in places]
    for id in parts[-1]:
        require(
            id in parts[0],
            f"Client {id!r} has test samples in {test}, but no training samples in {train}.",
        )
    kinds = {type(each) for part in parts for each in part.values()}
    require(
        len(kinds) == 1,
        f"{folder} has both tables and arrays, but all files must be of one kind.",
    )
    if kinds == {Table}:
        columns = Columns(next(iter(parts[0].values())), target, inputs, classes)
        pairs = [{id: columns.pair(table) for id, table in part.items()} for part in parts]
        classes = columns.classes
    else:
        for word, value in (("target", target), ("inputs", inputs)):
            require(value is None, f"The files of {folder} have no columns, so leave {word} out.")
        pairs = parts
    held = None  # the test samples of each client
    if both:
        like = next(iter(pairs[0].values()))
        no_samples = like[0][:0], like[1][:0]
        held = {id: pairs[1].get(id, no_samples) for id in pairs[0]}
    title = folder.resolve().name if name is None else name
    return FederatedData.from_clients(pairs[0], held, title, classes=classes)


class Table:
    """The columns of a client's csv or parquet file.

    Parameters
    ----------
    path
        the file
    columns
        the values of each column, by name
    row, first
        what error messages call a row ("Line" or "Row"), and the number of the first one
    """

    def __init__(self, path: Path, columns: dict[str, list[Any]], row: str, first: int):
        self.path = path
        self.columns = columns
        self.row = row
        self.first = first

    def require_filled(self, column: str) -> None:
        """Raise if the column has missing values."""
        for place, value in enumerate(self.columns[column]):
            require(
                value is not None and str(value).strip() != "",
                f"{self.row} {self.first + place} of {self.path} has no value in column "
                f"{column!r}: fill it in, or leave the row out.",
            )

    def numbers(self, column: str, remedy: str) -> np.ndarray:
        """A column's values as numbers; the error message ends with the remedy."""
        self.require_filled(column)
        found = np.empty(len(self.columns[column]))
        for place, value in enumerate(self.columns[column]):
            where = f"{self.row} {self.first + place} of {self.path}"
            try:
                found[place] = float(value)
            except (TypeError, ValueError):
                raise UndriftError(
                    f"{where} has {value!r} in column {column!r}, which must be a number; {remedy}."
                ) from None
            require(
                math.isfinite(found[place]),
                f"{where} has {value!r} in column {column!r}, which must be a finite number: fill "
                f"it in, or leave the row out.",
            )
        return found


class Columns:
    """The input columns and the target column, which are the same in every file."""

    def __init__(
        self,
        first: Table,
        target: str | None,
        inputs: Sequence[str] | None,
        classes: Sequence[str] | None,
    ):
        known = [target] if target is not None else DEFAULT_TARGETS
        named = next((name for name in known if name in first.columns), None)
        if named is None:
            hint = (
                " (are its columns separated by ';' instead of ','?)"
                if any(";" in n for n in first.columns)
                else ""
            )
            raise UndriftError(
                f"{first.path} has no column {' or '.join(map(repr, known))} to predict; name one "
                f"of its columns {', '.join(map(repr, first.columns))} as the target{hint}."
            )
        self.target = named
        self.first = first.path
        if isinstance(inputs, str):
            inputs = [inputs]
        for name in inputs or ():
            require_choice("A column of inputs", name, first.columns)
        self.inputs = list(inputs) if inputs else [n for n in first.columns if n != named]
        require(bool(self.inputs), f"{first.path} has no column except the target {named!r}.")
        self.classes = None if classes is None else [str(each) for each in classes]
        values = first.columns[named]
        first.require_filled(named)
        self.words = any(not _is_number(value) for value in values)
        if self.words and self.classes is None:
            shown = next(value for value in values if not _is_number(value))
            raise UndriftError(
                f"The target {named!r} of {first.path} has words such as {shown!r}: give "
                f"classes=[…] with all of them, in the order of their numbers 0, 1, …"
            )

    def pair(self, table: Table) -> Pair:
        """Inputs and targets of a client; whole numbers as targets are class numbers."""
        for name in [*self.inputs, self.target]:
            require(
                name in table.columns,
                f"{table.path} has no column {name!r}, which {self.first.name} has.",
            )
        remedy = "to leave the column out, name the others in inputs"
        columns = [table.numbers(name, remedy) for name in self.inputs]
        x = np.stack(columns, axis=1).astype(np.float32)
        values = table.columns[self.target]
        table.require_filled(self.target)
        if self.words:
            return x, np.array(
                [self._class_number(value, table) for value in values], dtype=np.int64
            )
        y = table.numbers(self.target, f"the targets of {self.first} are numbers")
        whole = np.equal(np.mod(y, 1), 0).all() and not any(map(_is_fraction, values))
        whole = whole and np.abs(y).max() < 2**53
        return x, y.astype(np.int64 if whole else np.float32)

    def _class_number(self, word: Any, table: Table) -> int:
        assert self.classes is not None
        require_choice(f"A target in {table.path}", str(word), self.classes)
        return self.classes.index(str(word))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_fraction(value: Any) -> bool:
    """Whether a whole number is written 1.0 instead of 1: then it is a measurement, not a class."""
    return isinstance(value, float) or "." in str(value)


def _files(folder: Path) -> dict[Hashable, Any]:
    """A table or a pair of arrays for each client, by the file's name or LEAF's user name."""
    visible = [file for file in folder.iterdir() if not file.name.startswith(".")]
    files = sorted(file for file in visible if file.suffix in READERS and file.is_file())
    leaf = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    require(
        bool(files or leaf), f"There are no files *{', *'.join(READERS)} or *.json in {folder}."
    )
    require(
        not (files and leaf),
        f"{folder} has both {files[0].name if files else ''} and {leaf[0].name if leaf else ''}, "
        f"but must have either one file per client or LEAF json files.",
    )
    if leaf:
        return {id: _leaf(id, pair, folder) for id, pair in read_leaf(leaf).items()}
    clients: dict[Hashable, Any] = {}
    for file in files:
        require(
            file.stem not in clients, f"{folder} has more than one file for client {file.stem!r}."
        )
        clients[file.stem] = READERS[file.suffix](file)
    return clients


def _leaf(id: str, pair: tuple[Any, Any], folder: Path) -> Pair:
    """The samples of a LEAF user, after a check that they are numbers."""
    require(
        all(isinstance(values, np.ndarray) for values in pair),
        f"The samples of {id!r} in {folder} are text, but must be numbers (for Shakespeare use "
        f"ud.data.shakespeare).",
    )
    return pair


def _npz(path: Path) -> Pair:
    """The arrays `x` and `y` of an npz file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            names = list(found)
            require(
                "x" in names and "y" in names,
                f"{path} must have arrays 'x' and 'y', but has {', '.join(map(repr, names))}.",
            )
            x, y = found["x"], found["y"]
    except UndriftError:
        raise
    except Exception as error:  # a damaged file may raise anything
        raise UndriftError(f"{path} is damaged or not an npz file: {first_line(error)}.") from error
    require(x.ndim > 0 and y.ndim > 0 and len(y) > 0, f"{path} has no samples.")
    return x, y


def _csv(path: Path) -> Table:
    """A csv file: a line with the names of the columns, then a line per sample."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise UndriftError(f"{path} cannot be read as csv: {first_line(error)}.") from error
    require(bool(rows), f"{path} is empty, but must begin with a line of column names.")
    header, *lines = [row for row in rows if row]  # skips empty lines
    twice = next((name for name in header if header.count(name) > 1), None)
    require(twice is None, f"{path} has two columns named {twice!r}.")
    require(bool(lines), f"{path} has no samples.")
    for number, line in enumerate(lines, 2):
        require(
            len(line) == len(header),
            f"Line {number} of {path} has {len(line)} values for {len(header)} columns.",
        )
    columns = zip(header, zip(*lines, strict=True), strict=True)
    return Table(path, {name: list(values) for name, values in columns}, "Line", 2)


def _parquet(path: Path) -> Table:
    """A parquet file, a column per input and target."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UndriftError(
            f"Reading {path.name} needs pyarrow: pip install 'undrift[data]'."
        ) from None
    try:
        columns = parquet.read_table(path).to_pydict()
    except (ArrowException, OSError) as error:
        raise UndriftError(
            f"{path} is damaged or not a parquet file: {first_line(error)}."
        ) from error
    require(any(columns.values()), f"{path} has no samples.")
    return Table(path, columns, "Row", 1)


READERS: dict[str, Callable[[Path], Table | Pair]] = {
    ".npz": _npz,
    ".csv": _csv,
    ".parquet": _parquet,
}
