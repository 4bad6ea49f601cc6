"""Reads the records of a run, one line of JSON per round."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from undrift.core.records import Record
from undrift.utils.errors import UndriftError, first_line


def read_records(path: Path) -> list[Record]:
    """Read a file of records; a last line that was cut off is left out."""
    try:
        # A line that was cut off may end inside a multi-byte character.
        lines = path.read_bytes().decode(errors="replace").split("\n")
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    whole, rest = lines[:-1], lines[-1]
    found = [_record(line, path, number + 1) for number, line in enumerate(whole)]
    if rest.strip():
        with suppress(UndriftError):  # the last line is complete except for its newline
            found.append(_record(rest, path, len(lines)))
    return found


def _record(line: str, path: Path, number: int) -> Record:
    try:
        return Record.from_json(line)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UndriftError(
            f"Line {number} of {path} is not a record: {first_line(error)}."
        ) from error
