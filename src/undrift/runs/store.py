"""The store of a run: server, client states and records, a round in one transaction.

LMDB is memory-mapped and transactional: a transaction is there whole or not at all, whatever
happens to the process, and the store may be larger than memory. A commit is synced to the disk, so
that it survives a power loss too, unless the run says `durability = "process"`: then a killed
process loses nothing, but a power loss may damage the store.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import lmdb
import torch

from undrift.utils.errors import UndriftError, first_line, require, require_choice
from undrift.utils.files import DURABILITIES
from undrift.utils.serialization import pack, unpack

FORMAT = 3
INITIAL_MAP_BYTES = 1 << 28
ROUND, META, CLIENT, RECORD, LASTING = b"round", b"meta", b"client:", b"record:", b"lasting:"


class Store:
    """The embedded database of one method and seed.

    Parameters
    ----------
    folder
        where its files are
    meta
        what the store belongs to; another one's is refused
    durability
        what a commit survives: "power" (a power loss) or "process" (a killed process)
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any], durability: str = "power"):
        require_choice("durability", durability, DURABILITIES)
        self.folder = folder
        self._closed = False
        self._busy = Lock()
        """held while the states of clients are read, which other threads may do"""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._env = lmdb.open(
                str(folder), map_size=self._size(), sync=durability == "power", max_readers=8
            )
            self._fill_up()
        except (lmdb.Error, OSError) as error:
            raise UndriftError(f"The store {folder} cannot be opened: {_said(error)}.") from error
        self._check({"format": FORMAT, **meta})

    def _fill_up(self) -> None:
        """A page beyond the end of a file that was cut off would kill the process: make it empty.

        Then it is found to be damaged when it is read.
        """
        file = self.folder / "data.mdb"
        size = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        if file.stat().st_size < size:
            os.truncate(file, size)

    def _size(self) -> int:
        """Room for what is there and more; it grows when it is full."""
        file = self.folder / "data.mdb"
        return max(INITIAL_MAP_BYTES, 2 * file.stat().st_size if file.exists() else 0)

    def _check(self, meta: dict[str, Any]) -> None:
        found = self._get(META)
        if found is None:
            self._write({META: json.dumps(meta, sort_keys=True).encode})
            return
        with self._reading():
            before = json.loads(found)
        for name, value in meta.items():
            require(
                name not in before or before[name] == value,  # older stores hold fewer facts
                f"The store {self.folder} belongs to another run: its {name} was "
                f"{before.get(name)!r}, not {value!r}.",
            )

    @property
    def round(self) -> int | None:
        """The last round that was committed, or None."""
        found = self._get(ROUND)
        with self._reading():
            return None if found is None else int(found)

    def commit(
        self,
        round: int,
        parts: Mapping[str, Mapping[str, Any]],
        clients: Mapping[Hashable, Mapping[str, Any]],
        record: str,
        lasting: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write a round: the parts of the server's state, the cohort's states and the record.

        Of `lasting` parts, which never change, those are written that are new, and those removed
        that are gone.
        """
        # Packed only when it is their turn, so that a cohort's states are not held twice.
        values: dict[bytes, Callable[[], bytes]] = {}
        for name, part in parts.items():
            values[name.encode()] = partial(pack, part)
        for id, state in clients.items():
            values[_client_key(id)] = partial(pack, state)
        values[RECORD + b"%010d" % round] = record.encode
        values[ROUND] = (b"%d" % round).strip
        kept = set(self._keys(LASTING))
        named = {LASTING + name.encode(): part for name, part in (lasting or {}).items()}
        for key in named.keys() - kept:
            values[key] = partial(pack, named[key])
        self._write(values, remove=kept - named.keys())

    def part(self, name: str, device: torch.device) -> dict[str, Any]:
        """A part of the server's state."""
        found = self._get(name.encode())
        found = self._get(LASTING + name.encode()) if found is None else found
        if found is None:
            raise UndriftError(f"The store {self.folder} has no {name}.")
        return unpack(found, f"{name} in {self.folder}", device)

    def client(self, id: Hashable, device: torch.device) -> dict[str, Any] | None:
        """A client's state, or None if it has not taken part."""
        return self.several([id], device).get(id)

    def several(
        self, ids: Iterable[Hashable], device: torch.device
    ) -> dict[Hashable, dict[str, Any]]:
        """The states of those clients that have taken part, read at once."""
        found = {}
        with self._busy, self._reading(), self._opened() as env, env.begin() as txn:
            for id in ids:
                packed = txn.get(_client_key(id))
                if packed is not None:
                    where = f"The state of client {id!r} in {self.folder}"
                    found[id] = unpack(packed, where, device)
        return found

    def clients(self) -> Iterator[Hashable]:
        """The clients that have taken part."""
        with self._reading():
            for key in self._keys(CLIENT):
                yield json.loads(key[len(CLIENT) :])

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        """All keys that begin with a prefix."""
        with self._reading(), self._env.begin() as txn, txn.cursor() as cursor:
            going = cursor.set_range(prefix)
            while going and cursor.key().startswith(prefix):
                yield bytes(cursor.key())
                going = cursor.next()

    def records(self) -> Iterator[str]:
        """The lines of all rounds."""
        with self._reading(), self._env.begin() as txn, txn.cursor() as cursor:
            going = cursor.set_range(RECORD)
            while going and cursor.key().startswith(RECORD):
                yield bytes(cursor.value()).decode()
                going = cursor.next()

    def close(self) -> None:
        """Let go of the files, once nobody reads from them."""
        with self._busy:
            self._env.close()
            self._closed = True

    @contextmanager
    def _opened(self) -> Iterator[lmdb.Environment]:
        """The database; a closed one is opened to read, since results outlive their runs."""
        if not self._closed:
            yield self._env
            return
        with lmdb.open(str(self.folder), readonly=True, lock=False) as env:
            yield env

    def _get(self, key: bytes) -> bytes | None:
        with self._reading(), self._env.begin() as txn:
            return txn.get(key)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What is wrong with the store is said in a sentence."""
        try:
            yield
        except (lmdb.Error, ValueError) as error:
            if isinstance(error, UndriftError):
                raise
            raise UndriftError(f"The store {self.folder} is damaged: {_said(error)}.") from error

    def _write(
        self, values: Mapping[bytes, Callable[[], bytes]], remove: Collection[bytes] = ()
    ) -> None:
        """Put all values in one transaction, making room if need be."""
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for key, value in values.items():
                        txn.put(key, value())
                    for key in remove:
                        txn.delete(key)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except (lmdb.Error, OSError) as error:
                full = shutil.disk_usage(self.folder).free < (1 << 20)
                cause = "the disk is full" if full else _said(error)
                raise UndriftError(
                    f"The round could not be written to {self.folder} ({cause}); nothing is lost "
                    f"but this round."
                ) from error


def require_storable(ids: Sequence[Hashable]) -> None:
    """Refuse ids that are too long for the store before anything runs."""
    for id in ids:
        if isinstance(id, str) and len(id) > 100:
            _client_key(id)


def _client_key(id: Hashable) -> bytes:
    """A number and a word that looks like one are different clients."""
    key = CLIENT + json.dumps(id, ensure_ascii=False).encode()
    require(len(key) <= 511, f"The id of client {str(id)[:40]!r}… is too long for the store.")
    return key


def _said(error: Exception) -> str:
    return first_line(error).partition(": ")[2] or first_line(error)
