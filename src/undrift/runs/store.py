"""`Store`, the LMDB database of a run: server state, client states and records.

LMDB is memory-mapped and transactional. A round is written in one transaction, so that it is in the
store completely or not at all, whatever happens to the process, and the store may be larger than
memory. A commit is synced to the disk and survives a power loss, unless the run has
`durability = "process"`: then a killed process loses nothing, but a power loss may damage the
store.

Keys are the names of the parts of a run (`Loop.saved`), "client:<id as JSON>", "record:<round>",
"lasting:<name>" for parts that are written once, "round" for the last committed round, and "meta"
for the facts of the run. They are a file format: they must not change.
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

FORMAT_VERSION = 3
INITIAL_MAP_BYTES = 1 << 28
"""Address space reserved for a new store; the file takes only what is written."""
LOW_DISK_BYTES = 1 << 20
"""With less free space than this, a failed write is explained by a full disk."""
MAX_KEY_BYTES = 511
"""LMDB's limit on the length of a key."""
ROUND, META, CLIENT, RECORD, WRITE_ONCE = b"round", b"meta", b"client:", b"record:", b"lasting:"


class Store:
    """The database of one run.

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
            self._env = lmdb.open(
                str(folder), map_size=self._map_bytes(), sync=durability == "power", max_readers=8
            )
            self._extend_truncated_file()
        except (lmdb.Error, OSError) as error:
            raise UndriftError(f"The store {folder} cannot be opened: {_reason(error)}.") from error
        self._check({"format": FORMAT_VERSION, **meta})

    def _extend_truncated_file(self) -> None:
        """Append zeros to a file that was cut off.

        Reading a mapped page beyond the end of the file would kill the process with SIGBUS. A page
        of zeros is recognised as damaged instead.
        """
        file = self.folder / "data.mdb"
        size = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
        if file.stat().st_size < size:
            os.truncate(file, size)

    def _map_bytes(self) -> int:
        """The size of the memory map: room for the existing file and more."""
        file = self.folder / "data.mdb"
        return max(INITIAL_MAP_BYTES, 2 * file.stat().st_size if file.exists() else 0)

    def _check(self, meta: dict[str, Any]) -> None:
        """Write the facts of the run into a new store, or compare them with those of an old one."""
        found = self._get(META)
        if found is None:
            self._write({META: json.dumps(meta, sort_keys=True).encode})
            return
        with self._explained():
            before = json.loads(found)
        for name, value in meta.items():
            require(
                name not in before or before[name] == value,  # older versions wrote fewer facts
                f"The store {self.folder} belongs to another run: its {name} was "
                f"{before.get(name)!r}, not {value!r}.",
            )

    @property
    def round(self) -> int | None:
        """The last committed round, or None for a new store."""
        found = self._get(ROUND)
        with self._explained():
            return None if found is None else int(found)

    def commit(
        self,
        round: int,
        parts: Mapping[str, Mapping[str, Any]],
        clients: Mapping[Hashable, Mapping[str, Any]],
        record: str,
        write_once: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write a round in one transaction.

        Parameters
        ----------
        round
            the number of the round
        parts
            the parts of the run, which replace the stored ones
        clients
            the new states of clients, by id
        record
            the round's record, as a line of JSON
        write_once
            parts that never change: those not stored yet are written, and stored ones that are not
            given any more are removed
        """
        # Functions, called one by one in the transaction: packed all at once, the states of a
        # large cohort would be in memory twice.
        values: dict[bytes, Callable[[], bytes]] = {}
        for name, part in parts.items():
            values[name.encode()] = partial(pack, part)
        for id, state in clients.items():
            values[_client_key(id)] = partial(pack, state)
        values[RECORD + b"%010d" % round] = record.encode
        values[ROUND] = (b"%d" % round).strip
        stored = set(self._keys(WRITE_ONCE))
        wanted = {WRITE_ONCE + name.encode(): part for name, part in (write_once or {}).items()}
        for key in wanted.keys() - stored:
            values[key] = partial(pack, wanted[key])
        self._write(values, remove=stored - wanted.keys())

    def part(self, name: str, device: torch.device) -> dict[str, Any]:
        """A part of the run, with its tensors on a device."""
        found = self._get(name.encode())
        found = self._get(WRITE_ONCE + name.encode()) if found is None else found
        if found is None:
            raise UndriftError(f"The store {self.folder} has no part {name!r}: it is damaged.")
        return unpack(found, f"{name} in {self.folder}", device)

    def client_state(self, id: Hashable, device: torch.device) -> dict[str, Any] | None:
        """A client's state, or None if it has not taken part."""
        return self.client_states([id], device).get(id)

    def client_states(
        self, ids: Iterable[Hashable], device: torch.device
    ) -> dict[Hashable, dict[str, Any]]:
        """The states of those of the clients that have taken part, read in one transaction."""
        found = {}
        with (
            self._reading_clients,
            self._explained(),
            self._environment() as env,
            env.begin() as txn,
        ):
            for id in ids:
                packed = txn.get(_client_key(id))
                if packed is not None:
                    where = f"The state of client {id!r} in {self.folder}"
                    found[id] = unpack(packed, where, device)
        return found

    def clients(self) -> Iterator[Hashable]:
        """The ids of the clients that have taken part."""
        with self._explained():
            for key in self._keys(CLIENT):
                yield json.loads(key[len(CLIENT) :])

    def records(self) -> Iterator[str]:
        """The records of all rounds, as lines of JSON."""
        for cursor in self._scan(RECORD):
            yield bytes(cursor.value()).decode()

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        """All keys that begin with a prefix; values, which may be large, are not read."""
        for cursor in self._scan(prefix):
            yield bytes(cursor.key())

    def _scan(self, prefix: bytes) -> Iterator[lmdb.Cursor]:
        """A cursor at each key that begins with a prefix, in the order of keys."""
        with self._explained(), self._env.begin() as txn, txn.cursor() as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
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

    def _get(self, key: bytes) -> bytes | None:
        with self._explained(), self._env.begin() as txn:
            return txn.get(key)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the errors of reading a damaged store into one sentence."""
        try:
            yield
        except (lmdb.Error, ValueError) as error:
            if isinstance(error, UndriftError):
                raise
            raise UndriftError(f"The store {self.folder} is damaged: {_reason(error)}.") from error

    def _write(
        self, values: Mapping[bytes, Callable[[], bytes]], remove: Collection[bytes] = ()
    ) -> None:
        """Put and delete values in one transaction; enlarge the map if it is full."""
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    for key, value in values.items():
                        txn.put(key, value())
                    for key in remove:
                        txn.delete(key)
                return
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


def require_storable(ids: Sequence[Hashable]) -> None:
    """Raise if an id is too long for the store, before anything runs."""
    for id in ids:
        if isinstance(id, str) and len(id) > 100:
            _client_key(id)


def _client_key(id: Hashable) -> bytes:
    """The key of a client; JSON tells the number 1 from the string "1"."""
    key = CLIENT + json.dumps(id, ensure_ascii=False).encode()
    require(
        len(key) <= MAX_KEY_BYTES,
        f"The id of client {str(id)[:40]!r}… is too long for the store: it may have at most "
        f"{MAX_KEY_BYTES - len(CLIENT)} bytes as JSON.",
    )
    return key


def _reason(error: Exception) -> str:
    """The message of an error of LMDB without the name of the failed call."""
    return first_line(error).partition(": ")[2] or first_line(error)
