"""Files of a deployment that nobody but their owner may read, and a check of those that exist."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE_UMASK = 0o077
"""What a deployment writes is readable and writable by its owner alone."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO
SECRET_NAMES = ("ca.key", "server.key", "key", "secret")
"""The files of certificates that must be secret."""
SECRET_BYTES = 32
SHOWN_FILES = 3


@contextmanager
def written_privately() -> Iterator[None]:
    """Have this process, and those that it starts, write files for their owner alone."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def write_secret(path: Path) -> None:
    """Write a new secret that only this user can read, unless the file exists."""
    if not path.is_file():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))


def open_files(folder: Path) -> list[Path]:
    """The files and folders that others can read or change, below and including a folder.

    What is in a folder that is closed to others cannot be reached, whatever its own mode is.
    """
    return list(_open_below(folder))


def _open_below(path: Path) -> Iterator[Path]:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode) or not mode & OTHERS:
        return
    if not stat.S_ISDIR(mode):
        yield path
        return
    yield path
    try:
        inside = sorted(path.iterdir())
    except OSError:
        return
    for each in inside:
        yield from _open_below(each)


def warning_of_open_files(folders: Iterable[Path]) -> str | None:
    """A sentence that names what others can read in the folders; None if there is nothing."""
    found = [(folder, each) for folder in folders for each in open_files(folder)]
    if not found:
        return None
    shown = ", ".join(str(each) for _, each in found[:SHOWN_FILES])
    more = f" and {len(found) - SHOWN_FILES} more" if len(found) > SHOWN_FILES else ""
    roots = " ".join(dict.fromkeys(str(folder) for folder, _ in found))
    return f"Other users of this machine can read {shown}{more}: call chmod -R go= {roots}."


def close_secrets(certs: Path) -> list[Path]:
    """Take the rights of others away from the private keys and secrets of a folder.

    A deployment that refused to start instead would leave them readable for longer.
    """
    closed = []
    for path in sorted(certs.rglob("*")):
        if path.name in SECRET_NAMES and path.is_file() and path.lstat().st_mode & OTHERS:
            path.chmod(path.lstat().st_mode & ~OTHERS & 0o777)
            closed.append(path)
    return closed
