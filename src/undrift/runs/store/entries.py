"""`Entries`, an LMDB database with checksums, versions of values, and a digest of everything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import lmdb

from undrift.runs.store.checksums import as_text, seal, sealed, summand, unsealed
from undrift.runs.store.contents import FORMAT_VERSION, Contents, examine
from undrift.runs.store.keys import META, ROUND, SUFFIX_BYTES, described, versioned
from undrift.runs.store.pages import Damage
from undrift.utils.errors import UndriftError, first_line, require, require_choice
from undrift.utils.files import DURABILITIES

INITIAL_MAP_BYTES = 1 << 28
"""Address space reserved for a new store; the file takes only what is written."""
LOW_DISK_BYTES = 1 << 20
"""With less free space than this, a failed write is explained by a full disk."""
DATA_FILE = "data.mdb"

Stored = bytes | memoryview
"""A value as LMDB returns it."""
Content = Callable[[], bytes | bytearray]
"""Gives a value to store: bytes, or a bytearray with room for the checksum at its end."""


class Entries:
    """The entries of a store: what is written is sealed, and what is read is checked.

    Parameters
    ----------
    folder
        the folder of its files
    meta
        facts of the run; opening a store of a run with other facts raises an error
    durability
        what a commit survives: "power" (a power loss) or "process" (a killed process)
    """

    def __init__(self, folder: Path, meta: Mapping[str, Any], durability: str = "power"):
        require_choice("durability", durability, DURABILITIES)
        self.folder = folder
        self._closed = False
        self._reading_clients = Lock()
        """held while client states are read, which another thread may do: `close` waits for it"""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._contents = self._examined()
            self._env = lmdb.open(
                str(folder), map_size=self._map_bytes(), sync=durability == "power", max_readers=8
            )
        except (lmdb.Error, OSError) as error:
            raise UndriftError(f"The store {folder} cannot be opened: {_reason(error)}.") from error
        try:
            self._check({"format": FORMAT_VERSION, **meta})
        except BaseException:
            self._env.close()
            raise

    def _examined(self) -> Contents:
        """What the file has; raises if any of it is damaged, before LMDB maps it into memory."""
        file = self.folder / DATA_FILE
        if not file.exists() or not file.stat().st_size:
            return Contents()

        def refuse(damage: Damage) -> None:
            raise self._damaged(str(damage)) from None

        return examine(file, refuse)

    def _damaged(self, what: str) -> UndriftError:
        run = self.folder.parent
        return UndriftError(
            f"The store {self.folder} is damaged: {what}; undrift check {run} says what is intact, "
            f"and without the folder {run} the run begins again."
        )

    def _map_bytes(self) -> int:
        """The size of the memory map: room for the existing file and more."""
        file = self.folder / DATA_FILE
        return max(INITIAL_MAP_BYTES, 2 * file.stat().st_size if file.exists() else 0)

    def _check(self, meta: dict[str, Any]) -> None:
        """Write the facts of the run into a new store, or compare them with those of an old one."""
        before = self._contents.meta
        if before is None:
            self._contents.meta = meta
            self._write({META: json.dumps(meta, sort_keys=True).encode})
            return
        for name, value in meta.items():
            require(
                name == "format" or name not in before or before[name] == value,
                f"The store {self.folder} belongs to another run: its {name} was "
                f"{before.get(name)!r}, not {value!r}.",
            )

    @property
    def _has_checksums(self) -> bool:
        return self._contents.format == FORMAT_VERSION

    @property
    def meta(self) -> Mapping[str, Any]:
        """The facts of the run."""
        return self._contents.meta or {}

    @property
    def round(self) -> int | None:
        """The last committed round, or None for a new store."""
        return self._contents.round

    @property
    def oldest(self) -> int | None:
        """The oldest round that the run can go back to, or None for a new store."""
        return self._contents.oldest

    def _newest(
        self, txn: lmdb.Transaction, name: bytes, round: int | None = None
    ) -> tuple[bytes, Stored] | None:
        """The key and the stored bytes of the newest version of a value, or that of a round."""
        if not self._has_checksums:
            value = txn.get(name)
            return None if value is None else (name, value)
        after = versioned(name, 1 << 47 if round is None else round + 1)
        with txn.cursor() as cursor:
            there = cursor.prev() if cursor.set_range(after) else cursor.last()
            key = bytes(cursor.key()) if there else b""
            return (key, cursor.value()) if key[:-SUFFIX_BYTES] == name else None

    def _content(self, key: bytes, value: Stored) -> Stored:
        """A stored value without its checksum, which must fit."""
        content = unsealed(key, value) if self._has_checksums else value
        if content is None:
            raise self._damaged(f"the checksum of {described(key)} does not fit its content")
        return content

    def _checked(self, cursor: lmdb.Cursor) -> Stored:
        return self._content(bytes(cursor.key()), cursor.value())

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        """All keys that begin with a prefix; values, which may be large, are not read."""
        for cursor in self._scan(prefix):
            yield bytes(cursor.key())

    def _scan(self, prefix: bytes) -> Iterator[lmdb.Cursor]:
        """A cursor at each key that begins with a prefix, in the order of keys."""
        with self._explained(), self._env.begin(buffers=True) as txn, txn.cursor() as cursor:
            found = cursor.set_range(prefix) if prefix else cursor.first()
            while found and bytes(cursor.key()).startswith(prefix):
                yield cursor
                found = cursor.next()

    def close(self) -> None:
        """Close the files, once no thread reads from them."""
        with self._reading_clients:
            self._env.close()
            self._closed = True

    @contextmanager
    def _environment(self) -> Iterator[lmdb.Environment]:
        """The database; a closed one is opened again to read.

        A result in Python still reads client states after its run has ended and closed the store.
        """
        if not self._closed:
            yield self._env
            return
        with lmdb.open(str(self.folder), readonly=True, lock=False) as env:
            yield env

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the errors of reading a damaged store into one sentence."""
        try:
            yield
        except (lmdb.Error, ValueError) as error:
            if isinstance(error, UndriftError):
                raise
            raise self._damaged(_reason(error)) from error

    def _write(
        self,
        values: Mapping[bytes, Content],
        remove: Collection[bytes] = (),
        round: int | None = None,
        oldest: int | None = None,
    ) -> None:
        """Put and delete values in one transaction, with the head; enlarge the map if it is full.

        `round` and `oldest` are the last committed round and the oldest one to go back to.
        """
        while True:
            try:
                digest, entries = self._put(values, remove, round, oldest)
                break
            except lmdb.MapFullError:
                # The transaction is undone: enlarge the map and write everything again. No thread
                # of this process may read meanwhile, which `StoredStates.changed` sees to.
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except (lmdb.Error, OSError) as error:
                full = shutil.disk_usage(self.folder).free < LOW_DISK_BYTES
                cause = "the disk is full" if full else _reason(error)
                raise UndriftError(
                    f"The round could not be written to {self.folder} ({cause}); only this round "
                    f"is lost."
                ) from error
        self._contents.digest, self._contents.entries = digest, entries
        self._contents.round, self._contents.oldest = round, oldest

    def _put(
        self,
        values: Mapping[bytes, Content],
        remove: Collection[bytes],
        round: int | None,
        oldest: int | None,
    ) -> tuple[int, int]:
        """One transaction; returns the digest and the number of entries after it."""
        known = self._contents if self._has_checksums else Contents()
        digest, entries = known.digest, known.entries
        with self._env.begin(write=True, buffers=True) as txn:
            for key, value in values.items():
                before = txn.get(key) if self._has_checksums else None
                if before is not None:
                    digest, entries = digest - summand(key, before), entries - 1
                content = value()
                stored: bytes | bytearray
                if isinstance(content, bytearray):  # it has room for the checksum at its end
                    stored = seal(key, content)
                else:
                    stored = sealed(key, content)
                txn.put(key, stored)
                digest, entries = digest + summand(key, stored), entries + 1
            for key in remove:
                before = txn.get(key) if self._has_checksums else None
                if before is not None:
                    digest, entries = digest - summand(key, before), entries - 1
                txn.delete(key)
            head = {
                "round": round,
                "oldest": oldest,
                "entries": entries,
                "digest": as_text(digest),
            }
            txn.put(ROUND, sealed(ROUND, json.dumps(head).encode()))
        return digest, entries


def _reason(error: Exception) -> str:
    """The message of an error of LMDB without the name of the failed call."""
    return first_line(error).partition(": ")[2] or first_line(error)
