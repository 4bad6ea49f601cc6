"""`Store`, the LMDB database of a run: server state, client states and records.

LMDB is memory-mapped and transactional. A round is written in one transaction, so that it is in the
store completely or not at all, whatever happens to the process, and the store may be larger than
memory. A commit is synced to the disk and survives a power loss, unless the run has
`durability = "process"`: then a killed process loses nothing, but a power loss may damage the
store.

A damaged file is never used: opening a store examines all of it (`contents`), and every value is
checked again when it is read. Values have versions (`keys`): a commit writes new ones and removes
those that no round of the last few needs, so that a run can go back.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import torch

from undrift.runs.store.checksums import CHECKSUM_BYTES
from undrift.runs.store.contents import FORMAT_VERSION, Versions
from undrift.runs.store.entries import Content, Entries
from undrift.runs.store.keys import (
    CLIENT,
    META,
    RECORD,
    ROUND,
    WRITE_ONCE,
    client_key,
    record_key,
    record_round,
    split,
    versioned,
)
from undrift.utils.errors import UndriftError, require, require_whole
from undrift.utils.serialization import pack, unpack

KEEP_ROUNDS = 3
"""How many rounds before the last one a run can go back, unless the experiment says otherwise."""
KEEP_BYTES = 1_000_000_000
"""Bytes of old versions that a store keeps for it."""
SERVER = "server"
"""The part with the server's state."""
TRANSACTION_BYTES = 1 << 27
"""A round whose client states have more bytes than this is written in several transactions."""


class Store(Entries):
    """The database of one run.

    Parameters
    ----------
    folder
        the folder of its files
    meta
        facts of the run; opening a store of a run with other facts raises an error
    durability
        what a commit survives: "power" (a power loss) or "process" (a killed process)
    keep_rounds, keep_bytes
        how many rounds before the last one stay available to `go_back`, as long as their old
        versions have at most this many bytes
    """

    def __init__(
        self,
        folder: Path,
        meta: Mapping[str, Any],
        durability: str = "power",
        keep_rounds: int = KEEP_ROUNDS,
        keep_bytes: float = KEEP_BYTES,
    ):
        super().__init__(folder, meta, durability)
        self._keep_rounds = require_whole("keep_rounds", keep_rounds, 0)
        self._keep_bytes = keep_bytes
        self._committed_parts: dict[str, CommittedPart] = {}
        if self.round is not None and self._contents.versions.latest > self.round:
            self.go_back(self.round)  # a commit with large states did not reach its end

    def commit(
        self,
        round: int,
        parts: Mapping[str, Mapping[str, Any]],
        clients: Mapping[Hashable, Mapping[str, Any]],
        record: str,
        write_once: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Write a round; its last transaction makes it the store's round.

        Large states of clients are written in transactions before it, since LMDB holds all that a
        transaction writes in memory. A process that is killed between them leaves versions of a
        round that was not committed, which opening the store removes.

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
        if not self._has_checksums:
            self._upgrade()
        # Functions, called one by one in the transaction: packed all at once, the states of a
        # large cohort would be in memory twice.
        values: dict[bytes, Content] = {}
        for name, part in parts.items():
            # Every round has a server state of its own: `undrift check` counts the intact ones.
            before = None if name == SERVER else self._committed_parts.get(name)
            if before is None or not before.equals(part):
                values[name.encode()] = partial(pack, room=CHECKSUM_BYTES, values=part)
        for id, state in clients.items():
            values[client_key(id)] = partial(pack, room=CHECKSUM_BYTES, values=state)
        versions = self._contents.versions
        wanted = {WRITE_ONCE + name.encode(): part for name, part in (write_once or {}).items()}
        for key in wanted.keys() - versions.write_once:
            values[key] = partial(pack, room=CHECKSUM_BYTES, values=wanted[key])
        gone = versions.write_once - wanted.keys()
        values |= dict.fromkeys(gone, bytes)
        superseded = self._superseded_by(values)
        superseded |= {versioned(name, round): 0 for name in gone}
        kept = {**versions.superseded, round: superseded}
        oldest = self._oldest_after(round, kept)
        stored = {versioned(name, round): value for name, value in values.items()}
        stored[record_key(round)] = record.encode
        remove = [key for r, keys in kept.items() if r <= oldest for key in keys]
        for some in self._ahead(round, clients):
            self._write({key: stored.pop(key) for key in some}, (), self.round, self.oldest)
        self._write(stored, remove, round, oldest)
        self._committed_parts = {name: CommittedPart(part) for name, part in parts.items()}
        versions.superseded = {r: keys for r, keys in kept.items() if r > oldest}
        versions.write_once = set(wanted)

    def _ahead(
        self, round: int, clients: Mapping[Hashable, Mapping[str, Any]]
    ) -> Iterator[list[bytes]]:
        """The keys of large states to write ahead of the round's transaction, some at a time."""
        sizes = {versioned(client_key(id), round): _bytes_of(s) for id, s in clients.items()}
        if self.round is None or sum(sizes.values()) <= TRANSACTION_BYTES:
            return
        some, filled = list[bytes](), 0
        for key, size in sizes.items():
            if some and filled + size > TRANSACTION_BYTES:
                yield some
                some, filled = [], 0
            some.append(key)
            filled += size
        yield some

    def _superseded_by(self, names: Iterable[bytes]) -> dict[bytes, int]:
        """The newest versions of values that are written again, with their bytes."""
        with self._explained(), self._env.begin(buffers=True) as txn:
            found = (self._newest(txn, name) for name in names)
            return {each[0]: len(each[1]) for each in found if each is not None}

    def _oldest_after(self, round: int, superseded: Mapping[int, Mapping[bytes, int]]) -> int:
        """The oldest round that stays available after a commit, by number and by bytes."""
        known = round if self.oldest is None else self.oldest
        oldest, left = round, self._keep_bytes
        while oldest > max(known, round - self._keep_rounds):
            left -= sum(superseded.get(oldest, {}).values())
            if left < 0:
                break
            oldest -= 1
        return oldest

    def go_back(self, round: int) -> None:
        """Remove everything after a round, in one transaction."""
        self.require_round(round)
        if not self._has_checksums:
            self._upgrade()
        later = []
        for cursor in self._scan(b""):
            key = bytes(cursor.key())
            version, record = split(key), record_round(key)
            if (version is not None and version[1] > round) or (record or 0) > round:
                later.append(key)
        self._write({}, later, round, self.oldest)
        versions = Versions()
        for cursor in self._scan(b""):
            value = cursor.value()
            versions.add(bytes(cursor.key()), len(value), self._checked(cursor) == b"")
        self._contents.versions = versions
        self._committed_parts = {}

    def require_round(self, round: int) -> None:
        """Raise unless the run can go back to a round; the message names those it can."""
        last, oldest = self.round, self.oldest
        if last is None or oldest is None:
            raise UndriftError(f"{self.folder.parent} has no rounds to go back to.")
        require(
            oldest <= round <= last,
            f"{self.folder.parent} cannot go back to round {round}: it has "
            + (f"the rounds {oldest} to {last}." if oldest < last else f"round {last} only."),
        )

    def _upgrade(self) -> None:
        """Rewrite a store without checksums and versions in the present format."""
        round = self.round or 0
        meta = {**self.meta, "format": FORMAT_VERSION}
        old = [key for key in self._keys(b"") if key not in (META, ROUND)]
        values: dict[bytes, Content] = {
            key if record_round(key) is not None else versioned(key, round): partial(self._raw, key)
            for key in old
        }
        values[META] = json.dumps(meta, sort_keys=True).encode
        self._write(values, [key for key in old if key not in values], self.round, self.round)
        self._contents.format, self._contents.meta = FORMAT_VERSION, meta
        self._contents.versions.write_once = {key for key in old if key.startswith(WRITE_ONCE)}

    def _raw(self, key: bytes) -> bytes:
        with self._env.begin() as txn:
            return bytes(txn.get(key, b""))

    def part(self, name: str, device: torch.device) -> dict[str, Any]:
        """A part of the run, with its tensors on a device."""
        with self._explained(), self._env.begin(buffers=True) as txn:
            found = self._newest(txn, name.encode()) or self._newest(
                txn, WRITE_ONCE + name.encode()
            )
            if found is None:
                raise self._damaged(f"it has no part {name!r}")
            return unpack(self._content(*found), f"{name} in {self.folder}", device)

    def client_state(self, id: Hashable, device: torch.device) -> dict[str, Any] | None:
        """A client's state, or None if it has not taken part."""
        return self.client_states([id], device).get(id)

    def client_states(
        self, ids: Iterable[Hashable], device: torch.device, round: int | None = None
    ) -> dict[Hashable, dict[str, Any]]:
        """The states of those of the clients that have taken part, read in one transaction.

        `round` asks for the states after that round, one that the run can go back to.
        """
        found = {}
        with (
            self._reading_clients,
            self._explained(),
            self._environment() as env,
            env.begin(buffers=True) as txn,
        ):
            for id in ids:
                stored = self._newest(txn, client_key(id), round)
                if stored is not None:
                    where = f"The state of client {id!r} in {self.folder}"
                    found[id] = unpack(self._content(*stored), where, device)
        return found

    def clients(self) -> Iterator[Hashable]:
        """The ids of the clients that have taken part."""
        last = b""
        with self._explained():
            for key in self._keys(CLIENT):
                name = (split(key) or (key, 0))[0]
                if name != last:
                    yield json.loads(name[len(CLIENT) :])
                last = name

    def records(self) -> Iterator[str]:
        """The records of all rounds, as lines of JSON."""
        for cursor in self._scan(RECORD):
            yield bytes(self._checked(cursor)).decode()


def _bytes_of(state: Mapping[str, Any]) -> int:
    return sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))


class CommittedPart:
    """What the last commit wrote of a part, to tell whether the part has changed since.

    Tensors are known by identity and by how often they were changed in place. They are not kept
    in memory.
    """

    def __init__(self, part: Mapping[str, Any]):
        self._tensors = {
            name: (ref(value), _version(value))
            for name, value in part.items()
            if isinstance(value, torch.Tensor)
        }
        self._others = self._as_text(part)

    def equals(self, part: Mapping[str, Any]) -> bool:
        """Whether a part is the same."""
        for name, (before, version) in self._tensors.items():
            now = part.get(name)
            if before() is not now or now is None or version is None or _version(now) != version:
                return False
        return self._as_text(part) == self._others

    def _as_text(self, part: Mapping[str, Any]) -> str:
        """Numbers and strings of a part, which may change in place."""
        rest = [(name, value) for name, value in part.items() if name not in self._tensors]
        return json.dumps(rest, default=repr)


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was changed in place; None if torch does not count it."""
    return None if tensor.is_inference() else tensor._version
