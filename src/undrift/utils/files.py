"""Atomic writing of files, and names of files.

After a crash a file that is written atomically is complete or absent, never half written.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from undrift.utils.errors import UndriftError, first_line, require

DURABILITIES = ("power", "process")
"""What written data survive: a power loss, or only the end of the process."""


def slug(label: str) -> str:
    """A label as the name of a file or a folder."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", label).strip("-.") or "method"


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` when the block succeeds."""
    require(path.parent.is_dir(), f"There is no folder {path.parent} to write {path.name} to.")
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        yield partial
        synced(partial)
        partial.replace(path)
        synced(path.parent)
    except (OSError, SafetensorError) as error:
        raise UndriftError(f"{path} cannot be written: {first_line(error)}.") from error
    finally:
        partial.unlink(missing_ok=True)


def synced(path: Path) -> None:
    """Flush a file or a folder to the disk, so that a power loss leaves no empty file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # some systems cannot open folders
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
