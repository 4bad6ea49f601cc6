"""The small complete app that a deployment begins with."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.files import written_whole

FILES = ("experiment.toml", "site.py")
"""What an app consists of."""


def init(folder: Path) -> list[Path]:
    """Write the starter app into a new or empty folder; gives the files written."""
    try:
        there = sorted(each.name for each in folder.iterdir()) if folder.exists() else []
        # A folder under version control is empty, too.
        there = [name for name in there if not name.startswith(".")]
        require(
            not there,
            f"{folder} has {there[0] if there else ''} in it, and nothing is overwritten: name a "
            f"new or an empty folder.",
        )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UndriftError(f"The folder {folder} cannot be made: {first_line(error)}.") from error
    for name in FILES:
        with written_whole(folder / name) as partial:
            partial.write_bytes(starter(name).encode())
    return [folder / name for name in FILES]


def starter(name: str) -> str:
    """The text of one of the starter's files."""
    return files("undrift").joinpath("deploy", "starter", name).read_text(encoding="utf-8")
