"""The clients' states on a site's own disk, between rounds.

The server keeps only the number of the version it accepted; the vectors never leave the site.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from undrift.deploy.wire_format import InvalidMessage, decode, encode
from undrift.runs.checking import Finding
from undrift.utils.errors import UndriftError, first_line, require, require_type, require_whole
from undrift.utils.files import synced, written_whole

VERSION_FILE = re.compile(r"([1-9][0-9]*)\.safetensors")
PARTIAL_FILE = re.compile(r"\.[1-9][0-9]*\.partial\.safetensors")
MAX_VERSION = (1 << 63) - 1


class StateFiles:
    """The states of a site's clients: one file for each run, client and version.

    Version 0 means that the client has not taken part yet; it has no file. A new version is written
    completely and synced to disk before older ones are removed: a process killed at any moment
    leaves the previous version, or both. Every file has a checksum, and a damaged one is an error.

    Parameters
    ----------
    folder
        where the files are; it is created if it is missing
    """

    def __init__(self, folder: Path):
        self.folder = folder
        make_folder(folder)

    def has(self, run: str, client: str, version: int) -> bool:
        """Whether the state of a client at this version is on disk."""
        return self._file(run, client, version).is_file()

    def load(self, run: str, client: str, version: int) -> dict[str, Tensor]:
        """The state of a client at this version."""
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
            header, tensors = decode(data, len(data))
        except InvalidMessage as error:
            raise UndriftError(f"{file} is damaged: {error}") from error
        require(
            header == _header(run, client, version, tensors),
            f"{file} is damaged: its checksum does not fit its content or its place.",
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
        keep_newer: bool = False,
    ) -> None:
        """Write a version of a client's state, then remove the versions nobody can ask for.

        Parameters
        ----------
        base
            the version from which this one was computed; it is kept, since the server may reject
            this one and ask for the same work again
        oldest
            the version that a restarted server continues from; it is kept with all that follow.
            None for `base`
        keep_newer
            whether to keep later versions: this one is computed again, as it was before
        """
        require_whole("version", version, 1)
        file = self._file(run, client, version)
        kept = (file, self._file(run, client, base))
        since = base if oldest is None else require_whole("oldest", oldest, 0)
        require(
            version != base, f"Version {version} cannot replace the version it was computed from."
        )
        data = encode(_header(run, client, version, values), values)
        make_folder(file.parent)
        with written_whole(file) as partial:
            partial.write_bytes(data)
        for other in _files(file.parent):
            found = VERSION_FILE.fullmatch(other.name)
            last = MAX_VERSION if keep_newer else version
            needed = found is not None and since <= int(found[1]) <= last
            if other not in kept and not needed:
                _remove(other)

    def _file(self, run: str, client: str, version: int) -> Path:
        version = require_whole("version", version, 0)
        require(version <= MAX_VERSION, f"version is {version}, but may be at most {MAX_VERSION}.")
        folder = self.folder / _folder_name("run", run) / _folder_name("client", client)
        return folder / f"{version}.safetensors"


def _folder_name(what: str, name: str) -> str:
    """The folder for any name: a readable part, and a hash that makes different names differ.

    The readable part is in lower case, since some file systems ignore case.
    """
    require_type(what, name, str, "text")
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
    readable = re.sub(r"[^a-z0-9]+", "-", name[:40].lower()).strip("-")
    return f"{readable}-{digest}" if readable else digest


def _header(
    run: str, client: str, version: int, tensors: Mapping[str, Tensor]
) -> dict[str, str | int]:
    """The values written beside the tensors, to recognise a damaged or misplaced file."""
    return {
        "run": _folder_name("run", run),
        "client": _folder_name("client", client),
        "version": int(version),
        "checksum": checksum(tensors),
    }


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of names, types, shapes and contents that does not depend on their order."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous()
        found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The versions in a client's folder, and files that a killed process left incomplete."""
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise UndriftError(f"{folder} cannot be read: {first_line(error)}.") from error
    return (
        file
        for file in found
        if VERSION_FILE.fullmatch(file.name) or PARTIAL_FILE.fullmatch(file.name)
    )


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UndriftError(f"{file} cannot be removed: {first_line(error)}.") from error


def make_folder(folder: Path) -> None:
    """Create a folder with its parents, synced to disk so that they survive a power loss."""
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            synced(each.parent)
        require(folder.is_dir(), f"{folder} is not a folder.")
    except OSError as error:
        raise UndriftError(
            f"The folder {folder} cannot be created: {first_line(error)}."
        ) from error


def has_state_files(folder: Path) -> bool:
    """Whether a folder holds the states of a site's clients."""
    return any(VERSION_FILE.fullmatch(file.name) for file in folder.glob("*/*/*.safetensors"))


def check_state_files(folder: Path) -> list[Finding]:
    """Examine every state in a site's folder; nothing is changed."""
    files = sorted(folder.glob("*/*/*.safetensors"))
    return [_check_state(file) for file in files if VERSION_FILE.fullmatch(file.name)]


def _check_state(file: Path) -> Finding:
    try:
        data = file.read_bytes()
        header, tensors = decode(data, len(data))
    except (OSError, InvalidMessage) as error:
        return Finding(file, False, f"is damaged: {first_line(error)}.")
    expected = {
        "run": file.parent.parent.name,
        "client": file.parent.name,
        "version": int(file.stem),
        "checksum": checksum(tensors),
    }
    if header != expected:
        return Finding(file, False, "its checksum does not fit its content or its place.")
    return Finding(file, True, f"version {file.stem}, {len(data)} bytes")
