"""The folder of data files, and downloads into it with checksums.

Downloads are resumed after a dropped connection, verified, and put in place atomically, so that
several processes may ask for the same file.
"""

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

_TIMEOUT_SECONDS = 30.0  # longest time without a byte
_RETRY_SECONDS = (1.0, 2.0, 4.0)  # pauses before the retries after a dropped connection
_BLOCK_BYTES = 1 << 18


def data_folder() -> Path:
    """The default folder of data files: `UNDRIFT_DATA` if it is set, else in the user's cache."""
    chosen = os.environ.get("UNDRIFT_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return user_cache_path("undrift", appauthor=False) / "data"


def chosen_folder(folder: str | Path | None) -> Path:
    """The folder that the user names, or the default one."""
    if folder is None:
        return data_folder()
    require_type("folder", folder, (str, Path), "a folder")
    return Path(folder).expanduser()


@dataclass(frozen=True)
class StandardFile:
    """A published file: its path in the data folder, its URLs and its checksum."""

    path: str
    """path relative to the data folder"""
    urls: tuple[str, ...]
    """URLs to try, in this order"""
    checksum: str
    """`sha256:` or `md5:`, followed by the digest in hexadecimal digits"""
    size: int | None = None
    """size in bytes, if known"""

    def __post_init__(self) -> None:
        require(len(self.urls) > 0, f"{self.path} needs at least one URL.")
        require(
            self.checksum.startswith(("sha256:", "md5:")),
            f"The checksum of {self.path} is {self.checksum!r}, but must begin with 'sha256:' "
            "or 'md5:'.",
        )


def fetch(file: StandardFile, folder: Path | None = None, verify: bool = True) -> Path:
    """The path of a file in a folder, after a download if the file is missing.

    Parameters
    ----------
    file
        the file
    folder
        where to look and to download to; by default `data_folder()`
    verify
        whether to check a file that already exists; a download is always checked
    """
    target = (data_folder() if folder is None else folder) / file.path
    if target.is_file():
        if verify:
            _verify(file, target)
        return target
    try:
        with _locked(target):
            if not target.is_file():  # another process may have downloaded it meanwhile
                _download(file, target)
    except OSError as error:
        raise UndriftError(
            f"{file.path} is missing, and cannot be written to {target.parent} "
            f"({first_line(error)}): download it from {file.urls[0]}, or set UNDRIFT_DATA to "
            f"another folder."
        ) from error
    return target


def unpack(archive: Path, into: Path, members: Callable[[str], bool] = lambda name: True) -> Path:
    """Unpack a .tar.gz or .zip into a new folder atomically, and return the folder.

    An existing folder is complete, and is left unchanged. `members` says which members to unpack.
    """
    if into.is_dir():
        return into
    is_zip = archive.name.endswith(".zip")
    require(
        is_zip or archive.name.endswith((".tar.gz", ".tgz")),
        f"{archive} cannot be unpacked: it must be a .tar.gz or a .zip.",
    )
    require(archive.is_file(), f"There is no archive {archive}.")
    partial = into.with_name(f".{into.name}.part")
    try:
        with _locked(into):
            if into.is_dir():
                return into
            shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
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
        while content.read(_BLOCK_BYTES):  # gzip's checksum is at its end, behind the end of tar
            pass


def _unzip(archive: Path, folder: Path, members: Callable[[str], bool]) -> None:
    root = folder.resolve()
    with zipfile.ZipFile(archive) as packed:
        for name in filter(members, packed.namelist()):
            if not (root / name).resolve().is_relative_to(root):
                raise zipfile.BadZipFile(f"{name!r} is outside the destination")
            packed.extract(name, folder)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Create the target's folder and hold a lock, so that only one process writes the target.

    If the target is not written, the lock and folders created here are removed again.
    """
    created = [folder for folder in target.parents if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    try:
        with FileLock(lock):
            yield
    finally:
        if not target.exists():
            lock.unlink(missing_ok=True)
            with suppress(OSError):  # a folder with a partial download is not empty, and stays
                for folder in created:
                    folder.rmdir()


def _checksum(path: Path, like: str) -> str:
    """A file's checksum, by the algorithm of the checksum `like`."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _verify(file: StandardFile, path: Path) -> None:
    """Raise unless a file has the published size and checksum."""
    remedy = "delete it so that it is downloaded again"
    try:
        length, found = path.stat().st_size, _checksum(path, file.checksum)
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    if file.size is not None and length < file.size:
        raise UndriftError(f"{path} is truncated to {length} of {file.size} bytes; {remedy}.")
    if found != file.checksum.lower():
        raise UndriftError(
            f"{path} has the checksum {found}, but must have {file.checksum}; {remedy}."
        )


class _DownloadFailed(Exception):
    """A URL cannot be read."""


class _ConnectionDropped(_DownloadFailed):
    """The connection broke before the end of the file."""


def _download(file: StandardFile, target: Path) -> None:
    """Download a file to the target, from the first URL that gives the right bytes.

    A partial download that a dropped connection or a killed process left is continued, from
    whichever URL: the checksum of the whole decides.
    """
    part = target.with_name(f".{target.name}.part")
    failures, wrong = [], []
    for url in file.urls:
        # The checksum may be wrong because of an old partial download: then start anew once.
        for _ in range(2 if part.exists() else 1):
            try:
                _receive_with_retries(url, part, file)
            except _DownloadFailed as failed:
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
        f"{file.path} is missing and cannot be downloaded ({'; '.join(failures)}): download it "
        f"from {file.urls[0]} to {target.parent}, or set UNDRIFT_DATA to the folder that has it."
    )


def _receive_with_retries(url: str, part: Path, file: StandardFile) -> None:
    """Continue a partial download to the end, with retries after dropped connections."""
    dropped = False
    for pause in (*_RETRY_SECONDS, None):
        try:
            return _receive(url, part, file)
        except _DownloadFailed as failed:
            # A URL that never answered will not answer a few seconds later; one that did may.
            dropped |= isinstance(failed, _ConnectionDropped)
            if pause is None or not dropped:
                raise
            time.sleep(pause)


def _receive(url: str, part: Path, file: StandardFile) -> None:
    """Continue a partial download over one connection."""
    start = part.stat().st_size if part.exists() else 0
    response = _open(url, start)
    if response is None:  # there are no more bytes: the part is complete or wrong
        if _checksum(part, file.checksum) == file.checksum.lower():
            return
        response = _open(url, 0)
    with response, _bar() as bar:
        if response.status != 206:  # the server ignores the range and sends the whole file
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else file.size
        task = bar.add_task(file.path, total=total, completed=start)
        with part.open("ab" if start else "wb") as out:
            for block in _blocks(response):
                out.write(block)
                out.flush()  # so that a killed process leaves all bytes it received
                bar.advance(task, len(block))
            if total is not None and out.tell() < total:
                raise _ConnectionDropped(
                    f"the connection dropped after {out.tell()} of {total} bytes"
                )


def _bar() -> Progress:
    """A progress bar for bytes, drawn only if someone can see it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    return progress(*columns, transient=True)


def _open(url: str, start: int) -> Any:
    """The server's response from byte `start` on, or None if the file has no bytes after it."""
    headers = {"User-Agent": "undrift"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            return None
        raise _DownloadFailed(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None)  # urllib wraps the cause in this attribute
        raise _DownloadFailed(
            first_line(reason if isinstance(reason, Exception) else error)
        ) from error


def _blocks(response: Any) -> Iterator[bytes]:
    """The bytes of a response, block by block as they arrive."""
    try:
        while block := response.read1(_BLOCK_BYTES):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionDropped(first_line(error)) from error
