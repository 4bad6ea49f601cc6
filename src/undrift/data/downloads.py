"""Where data files are, and how they get there."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from typing import Any

from filelock import FileLock
from platformdirs import user_cache_path
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from undrift.utils.display import progress
from undrift.utils.errors import UndriftError, first_line, require, require_type

_TIMEOUT = 30.0  # seconds without a byte
_PAUSES = (1.0, 2.0, 4.0)  # seconds before each new try after a dropped connection
_BLOCK = 1 << 18


def data_folder() -> Path:
    """The folder of all data files: `UNDRIFT_DATA` if that is set, else the user's cache."""
    chosen = os.environ.get("UNDRIFT_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return user_cache_path("undrift", appauthor=False) / "data"


def chosen_folder(folder: str | Path | None) -> Path:
    """The folder a user names, or the one of all data files."""
    if folder is None:
        return data_folder()
    require_type("folder", folder, (str, Path), "a folder")
    return Path(folder).expanduser()


@dataclass(frozen=True)
class StandardFile:
    """A published file: where it belongs, where it can be had, and how to know it."""

    path: str
    """Relative to the data folder."""
    urls: tuple[str, ...]
    """Tried in order."""
    checksum: str
    """`sha256:` or `md5:`, and the digest in hexadecimal digits."""
    size: int | None = None
    """In bytes, if known."""

    def __post_init__(self) -> None:
        require(len(self.urls) > 0, f"{self.path} has no url, but needs at least one.")
        require(
            self.checksum.startswith(("sha256:", "md5:")),
            f"The checksum of {self.path} is {self.checksum!r}, but must begin with 'sha256:' "
            "or 'md5:'.",
        )


def fetch(file: StandardFile, folder: Path | None = None, verify: bool = True) -> Path:
    """The path of a file in the folder (the data folder), downloaded if it is not there yet.

    A download is always verified; `verify` says whether a file that was there is, too.
    """
    target = (data_folder() if folder is None else folder) / file.path
    if target.is_file():
        if verify:
            _verify(file, target)
        return target
    try:
        with _alone(target):
            if not target.is_file():  # another process may have been faster
                _download(file, target)
    except OSError as error:
        raise UndriftError(
            f"{file.path} is missing, and cannot be written to {target.parent} "
            f"({first_line(error)}): get it from {file.urls[0]}, or let UNDRIFT_DATA name another "
            f"folder for the data."
        ) from error
    return target


def unpack(archive: Path, into: Path, members: Callable[[str], bool] = lambda name: True) -> Path:
    """Unpack those members of a .tar.gz or .zip into a new folder, whole or not at all.

    A folder that is there already is complete, and stays as it is.
    """
    if into.is_dir():
        return into
    is_zip = archive.name.endswith(".zip")
    require(
        is_zip or archive.name.endswith((".tar.gz", ".tgz")),
        f"{archive} cannot be unpacked: it must be a .tar.gz or a .zip.",
    )
    require(archive.is_file(), f"There is no archive {archive} to unpack.")
    partial = into.with_name(f".{into.name}.part")
    try:
        with _alone(into):
            if into.is_dir():
                return into
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            partial.mkdir()
            (_unzip if is_zip else _untar)(archive, partial, members)
            partial.rename(into)
    except (tarfile.TarError, zipfile.BadZipFile, BadGzipFile, zlib.error, EOFError) as error:
        raise UndriftError(
            f"{archive} is damaged and cannot be unpacked ({first_line(error)}); "
            "delete it so that it is downloaded again."
        ) from error
    except OSError as error:
        raise UndriftError(f"{archive} cannot be unpacked: {first_line(error)}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return into


def _untar(archive: Path, folder: Path, members: Callable[[str], bool]) -> None:
    with gzip.open(archive) as content, tarfile.open(fileobj=content, mode="r:") as tar:
        wanted = (member for member in tar if members(member.name))
        tar.extractall(folder, wanted, filter="data")
        while content.read(_BLOCK):  # gzip finds damage at its very end, after that of tar
            pass


def _unzip(archive: Path, folder: Path, members: Callable[[str], bool]) -> None:
    root = folder.resolve()
    with zipfile.ZipFile(archive) as packed:
        for name in filter(members, packed.namelist()):
            if not (root / name).resolve().is_relative_to(root):
                raise zipfile.BadZipFile(f"{name!r} is outside the destination")
            packed.extract(name, folder)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Make the target's folder, and let one process at a time write the target.

    Where nothing came of it, no empty folder or lock is left behind.
    """
    made = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    try:
        with FileLock(lock):
            yield
    finally:
        if not target.exists():
            lock.unlink(missing_ok=True)
            with suppress(OSError):  # a folder with a part of the file in it stays
                for folder in made:
                    folder.rmdir()


def _checksum(path: Path, like: str) -> str:
    """A file's checksum, by the same algorithm as another one."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _verify(file: StandardFile, path: Path) -> None:
    """Refuse a file that is not the published one."""
    again = "delete it so that it is downloaded again"
    try:
        length, found = path.stat().st_size, _checksum(path, file.checksum)
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    if file.size is not None and length < file.size:
        raise UndriftError(f"{path} is truncated to {length} of {file.size} bytes; {again}.")
    if found != file.checksum.lower():
        raise UndriftError(
            f"{path} has the checksum {found}, but must have {file.checksum}; {again}."
        )


class _Failed(Exception):
    """A url that gives nothing."""


class _Dropped(_Failed):
    """A url that stopped giving before the end."""


def _download(file: StandardFile, target: Path) -> None:
    """Place the target, from the first url that gives the right bytes.

    What a dropped connection or a killed process leaves behind is continued, by any url:
    the checksum decides in the end.
    """
    part = target.with_name(f".{target.name}.part")
    failures, wrong = [], []
    for url in file.urls:
        # A wrong file may come from an old beginning, and then deserves one more try.
        for _ in range(2 if part.exists() else 1):
            try:
                _receive_whole(url, part, file)
            except _Failed as failed:
                failures.append(f"{url}: {failed}")
                break
            found = _checksum(part, file.checksum)
            if found == file.checksum.lower():
                part.replace(target)
                return
            part.unlink()
            wrong.append(f"{url} gives the checksum {found}")
    if wrong:
        raise UndriftError(
            f"{file.path} was downloaded and removed again, because {wrong[-1]}, but it must be "
            f"{file.checksum}."
        )
    raise UndriftError(
        f"{file.path} is missing and cannot be downloaded ({'; '.join(failures)}): get it from "
        f"{file.urls[0]} and put it into {target.parent}, or let UNDRIFT_DATA name another folder "
        "for the data."
    )


def _receive_whole(url: str, part: Path, file: StandardFile) -> None:
    """Continue the part to the end, through a few dropped connections."""
    dropped = False
    for pause in (*_PAUSES, None):
        try:
            return _receive(url, part, file)
        except _Failed as failed:
            # A url that never answered will not do so in a few seconds; one that did may.
            dropped |= isinstance(failed, _Dropped)
            if pause is None or not dropped:
                raise
            time.sleep(pause)


def _receive(url: str, part: Path, file: StandardFile) -> None:
    """Continue the part for as long as the connection holds."""
    start = part.stat().st_size if part.exists() else 0
    response = _open(url, start)
    if response is None:  # nothing follows the part: it is whole, or useless
        if _checksum(part, file.checksum) == file.checksum.lower():
            return
        response = _open(url, 0)
    with response, _bar() as bar:
        if response.status != 206:  # the server sends the file from its beginning
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else file.size
        task = bar.add_task(file.path, total=total, completed=start)
        with part.open("ab" if start else "wb") as out:
            for block in _blocks(response):
                out.write(block)
                out.flush()  # so that a killed process leaves what it had
                bar.advance(task, len(block))
            if total is not None and out.tell() < total:
                raise _Dropped(f"the connection dropped after {out.tell()} of {total} bytes")


def _bar() -> Progress:
    """A progress bar for bytes, if there is someone to see it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    return progress(*columns, transient=True)


def _open(url: str, start: int) -> Any:
    """The server's answer, or None if it has no bytes after the start."""
    headers = {"User-Agent": "undrift"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return None
        raise _Failed(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None)  # urllib hides the cause in there
        raise _Failed(first_line(reason if isinstance(reason, Exception) else error)) from error


def _blocks(response: Any) -> Iterator[bytes]:
    """What arrives, as it arrives."""
    try:
        while block := response.read1(_BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _Dropped(first_line(error)) from error
