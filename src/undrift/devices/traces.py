"""Readers of CSV files with devices and with the windows in which they are available."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from undrift.devices.quantities import DEFAULTS, LIMITS
from undrift.devices.windows import Span
from undrift.utils.errors import UndriftError, first_line, require, require_choice, require_range

NAME_COLUMNS = ("client", "device")
"""Names that the column with the name of a device may have."""


@dataclass(frozen=True)
class Row:
    """A line of a CSV file: its place for error messages, the device's name, and other cells."""

    where: str
    name: str
    cells: dict[str, str]

    def number(self, column: str) -> float:
        """A cell as a number."""
        text = self.cells[column]
        try:
            return float(text)
        except ValueError:
            raise UndriftError(
                f"{self.where} has {text!r} in column {column!r}, which must be a number."
            ) from None


def read_devices(path: Path) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """The index of each device by its name, and every quantity as an array in this order."""
    lines: dict[str, str] = {}
    values: dict[str, list[float]] = {column: [] for column in LIMITS}
    for row in _rows(path, required=("speed",), allowed=tuple(LIMITS)):
        before = lines.setdefault(row.name, row.where)
        require(
            before == row.where,
            f"{row.where} describes {row.name!r} again, after {before}.",
        )
        for column, limits in LIMITS.items():
            if row.cells.get(column):
                value = row.number(column)
                require_range(f"{row.where}: {column}", value, **limits)
            else:
                require(column in DEFAULTS, f"{row.where} has no {column} of {row.name!r}.")
                value = DEFAULTS[column]
            values[column].append(value)
    require(bool(lines), f"{path} has no rows below its header.")
    places = {name: place for place, name in enumerate(lines)}
    return places, {column: np.array(each) for column, each in values.items()}


def read_windows(
    path: Path, places: dict[str, int], repeat: float | None, devices: Path
) -> list[list[Span]]:
    """The windows of each device in chronological order.

    `places` has the index of each device, `repeat` the end of the trace if it repeats; `devices`
    names the file of devices in error messages.
    """
    found: list[list[tuple[float, float, str]]] = [[] for _ in places]
    for row in _rows(path, required=("from", "to"), allowed=("from", "to")):
        require(
            row.name in places, f"{row.where} names {row.name!r}, which has no row in {devices}."
        )
        begin, end = row.number("from"), row.number("to")
        require_range(f"{row.where}: from", begin, at_least=0)
        require_range(f"{row.where}: to", end, above=begin, at_most=repeat)
        found[places[row.name]].append((begin, end, row.where))
    for name, place in places.items():
        found[place].sort()
        for (_, end, before), (begin, _, where) in pairwise(found[place]):
            require(end <= begin, f"The windows of {name!r} overlap: {before} and {where}.")
    return [[(begin, end) for begin, end, _ in each] for each in found]


def _rows(path: Path, required: tuple[str, ...], allowed: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a CSV file with a header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = [cell.strip() for cell in next(lines, [])]
            naming = _name_column(header, path, required, allowed)
            for line in lines:
                if not line:
                    continue
                where = f"{path}, line {lines.line_num}"
                require(
                    len(line) == len(header),
                    f"{where} has {len(line)} cells, but the header has {len(header)}.",
                )
                cells = {column: cell.strip() for column, cell in zip(header, line, strict=True)}
                name = cells.pop(naming)
                require(bool(name), f"{where} has no value in column {naming!r}.")
                yield Row(where, name, cells)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UndriftError(f"{path} cannot be read as a CSV file ({first_line(error)}).") from None


def _name_column(
    header: list[str], path: Path, required: tuple[str, ...], allowed: tuple[str, ...]
) -> str:
    """The column with the names; raises if columns are missing, unknown or repeated."""
    naming = [name for name in NAME_COLUMNS if name in header]
    require(bool(naming), f"{path}, line 1 has no column 'client' (or 'device').")
    for column in required:
        require(column in header, f"{path}, line 1 has no column {column!r}.")
    for column in header:
        require_choice(f"{path}, line 1: a column", column, (naming[0], *allowed))
        require(header.count(column) == 1, f"{path}, line 1 has the column {column!r} twice.")
    return naming[0]
