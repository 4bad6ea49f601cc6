"""What the clients of a site remember between rounds, on the site's own disk."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from undrift.deploy.payloads import Refused, decode, encode
from undrift.utils.errors import UndriftError, first_line, require, require_type, require_whole
from undrift.utils.files import synced, written_whole

VERSION = re.compile(r"([1-9][0-9]*)\.safetensors")
PARTIAL = re.compile(r"\.[1-9][0-9]*\.partial\.safetensors")
LARGEST = (1 << 63) - 1


class Shelf:
    """The states of a site's clients: a file for each run, client and version.

    Version 0 is that of a client which has not taken part yet: it is never here. A version is
    written whole and synced before others are removed, so that a process killed at any time leaves
    the version before it or both. Files have a checksum: a damaged one is refused.

    Parameters
    ----------
    folder
        where the files are; it is made if it is missing
    """

    def __init__(self, folder: Path):
        self.folder = folder
        _make(folder)

    def has(self, run: str, client: str, version: int) -> bool:
        """Whether that version is there."""
        return self._file(run, client, version).is_file()

    def load(self, run: str, client: str, version: int) -> dict[str, Tensor]:
        """What a client remembered at that version."""
        file = self._file(run, client, version)
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            raise UndriftError(
                f"Version {version} of client {client[:40]!r} is not in {self.folder}."
            ) from None
        except OSError as error:
            raise UndriftError(f"{file} cannot be read: {first_line(error)}.") from error
        try:
            about, tensors = decode(data, len(data))
        except Refused as error:
            raise UndriftError(f"{file} is damaged: {error}") from error
        require(
            about == _about(run, client, version, tensors),
            f"{file} is damaged: its content is not what was written there.",
        )
        return tensors

    def put(
        self,
        run: str,
        client: str,
        version: int,
        base: int,
        values: Mapping[str, Tensor],
        oldest: int | None = None,
    ) -> None:
        """Keep a version beside the one that it was made from, and those from the oldest on.

        All others are let go of.
        """
        require_whole("version", version, 1)
        file = self._file(run, client, version)
        kept = (file, self._file(run, client, base))
        since = base if oldest is None else require_whole("oldest", oldest, 0)
        require(version != base, f"Version {version} cannot take the place of its own base.")
        data = encode(_about(run, client, version, values), values)
        _make(file.parent)
        with written_whole(file) as partial:
            partial.write_bytes(data)
        for other in _files(file.parent):
            found = VERSION.fullmatch(other.name)
            between = found is not None and since <= int(found[1]) <= version
            if other not in kept and not between:
                _remove(other)

    def forget(self, run: str) -> None:
        """Remove all that the clients of a run remember."""
        folder = self.folder / _folder_name("run", run)
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UndriftError(f"{folder} cannot be removed: {first_line(error)}.") from error

    def _file(self, run: str, client: str, version: int) -> Path:
        version = require_whole("version", version, 0)
        require(version <= LARGEST, f"version is too large: it may be at most {LARGEST}.")
        folder = self.folder / _folder_name("run", run) / _folder_name("client", client)
        return folder / f"{version}.safetensors"


def _folder_name(what: str, name: str) -> str:
    """A folder's name for any text: a part to read, and a hash that makes it differ from others.

    Letters are small, as some file systems take large and small ones for the same.
    """
    require_type(what, name, str, "text")
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
    readable = re.sub(r"[^a-z0-9]+", "-", name[:40].lower()).strip("-")
    return f"{readable}-{digest}" if readable else digest


def _about(
    run: str, client: str, version: int, tensors: Mapping[str, Tensor]
) -> dict[str, str | int]:
    """What is written beside the tensors, by which a damaged or misplaced file is known."""
    return {
        "run": _folder_name("run", run),
        "client": _folder_name("client", client),
        "version": int(version),
        "checksum": _checksum(tensors),
    }


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """One for names, types, shapes and contents, whatever the order."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous()
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The versions in a client's folder, and what a killed process left half-written."""
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise UndriftError(f"{folder} cannot be read: {first_line(error)}.") from error
    return (file for file in found if VERSION.fullmatch(file.name) or PARTIAL.fullmatch(file.name))


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UndriftError(f"{file} cannot be removed: {first_line(error)}.") from error


def _make(folder: Path) -> None:
    """Make a folder and those around it, so that a power loss does not take them away."""
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            synced(each.parent)
        require(folder.is_dir(), f"{folder} is not a folder.")
    except OSError as error:
        raise UndriftError(f"The folder {folder} cannot be made: {first_line(error)}.") from error
