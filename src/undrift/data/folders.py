"""Reader of a user's folder: npz, csv or parquet files of one client each, or LEAF json files."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data.federated import FederatedData
from undrift.data.formats import read_leaf
from undrift.data.formats.tables import Table, read_csv, read_parquet
from undrift.data.tabular.columns import Columns
from undrift.data.tabular.reading import from_tables
from undrift.utils.errors import UndriftError, first_line, require

Pair = tuple[np.ndarray, np.ndarray]


def from_folder(
    folder: Path,
    columns: Columns,
    name: str | None,
    sites: Sequence[str] | None,
    encode: bool = True,
) -> FederatedData:
    """The implementation of `FederatedData.from_folder`, which explains the parameters.

    Without `encode`, tables have no inputs until `FederatedData.encoded` gives them an encoding.
    """
    require(folder.exists(), f"There is no folder {folder}.")
    require(folder.is_dir(), f"{folder} is a file, but must be a folder with one file per client.")
    train, test = folder / "train", folder / "test"
    both = [train, test] if train.is_dir() and test.is_dir() else []
    places = both or [train if train.is_dir() else folder]
    parts = [_files(place, sites) for place in places]
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
    title = folder.resolve().name if name is None else name
    if kinds == {Table}:
        return from_tables(parts[0], parts[1] if both else None, columns, title, encode)
    for word, value in vars(columns).items():
        if word not in ("classes", "standardise"):
            require(
                value == getattr(Columns, word),
                f"The files of {folder} have no columns, so leave {word} out.",
            )
    held = None  # the test samples of each client
    if both:
        like = next(iter(parts[0].values()))
        no_samples = like[0][:0], like[1][:0]
        held = {id: parts[1].get(id, no_samples) for id in parts[0]}
    return FederatedData.from_clients(parts[0], held, title, classes=columns.classes)


def _files(folder: Path, sites: Sequence[str] | None) -> dict[Hashable, Any]:
    """A table or a pair of arrays for each client, by the file's name or LEAF's user name.

    Given `sites`, only their files are read, in this order.
    """
    visible = [file for file in folder.iterdir() if not file.name.startswith(".")]
    if sites is not None:
        visible = [file for file in visible if file.stem in sites]
        for site in sites:
            require(
                any(file.stem == site for file in visible),
                f"There is no file of the site {site!r} in {folder}: its name must be {site} with "
                f"one of the endings {', '.join(READERS)}.",
            )
    files = sorted(file for file in visible if file.suffix.lower() in READERS and file.is_file())
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
        clients[file.stem] = READERS[file.suffix.lower()](file)
    return clients if sites is None else {site: clients[site] for site in sites}


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


READERS: dict[str, Callable[[Path], Table | Pair]] = {
    ".npz": _npz,
    ".csv": read_csv,
    ".parquet": read_parquet,
}
