"""Writes the starter app of `undrift deploy init`: a small complete deployment to edit."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.files import written_whole

FILES = ("experiment.toml", "site.py")
"""The files of an app."""


def write_starter_app(folder: Path) -> list[Path]:
    """Write the starter app into a new or empty folder, and return the files written."""
    try:
        found = sorted(each.name for each in folder.iterdir()) if folder.exists() else []
        # Hidden files do not count: a fresh git repository has a .git folder.
        found = [name for name in found if not name.startswith(".")]
        require(
            not found,
            f"{folder} already has {found[0] if found else ''} in it, and nothing is overwritten: "
            f"choose a new or empty folder.",
        )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UndriftError(
            f"The folder {folder} cannot be created: {first_line(error)}."
        ) from error
    for name in FILES:
        with written_whole(folder / name) as partial:
            partial.write_bytes(starter_file(name).encode())
    return [folder / name for name in FILES]


def starter_file(name: str) -> str:
    """The text of one of the starter app's files."""
    return files("undrift").joinpath("deploy", "starter", name).read_text(encoding="utf-8")
