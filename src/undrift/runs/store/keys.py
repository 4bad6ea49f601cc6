"""The keys of a run's store. They are a file format: they must not change.

| key | value |
|---|---|
| "meta" | the facts of the run, as JSON |
| "round" | the head: the last committed round and a digest of all other entries, as JSON |
| "record:<round>" | the record of a round, one line of JSON |
| "<name>" 0 <round> | a value with versions, as of the round that wrote it |

A name is that of a part of a run (`Loop.saved`), "client:<id as JSON>", or "lasting:<name>" for
parts that are written once. A version of no bytes says that the value was removed in that round.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence

from undrift.utils.errors import require

MAX_KEY_BYTES = 511
"""LMDB's limit on the length of a key."""
ROUND, META, CLIENT, RECORD, WRITE_ONCE = b"round", b"meta", b"client:", b"record:", b"lasting:"
SEPARATOR = b"\0"  # occurs in no name: JSON writes it as \u0000
ROUND_BYTES = 6
SUFFIX_BYTES = len(SEPARATOR) + ROUND_BYTES


def versioned(name: bytes, round: int) -> bytes:
    """The key of a value as of a round; keys of one name are in the order of rounds."""
    return name + SEPARATOR + round.to_bytes(ROUND_BYTES, "big")


def split(key: bytes) -> tuple[bytes, int] | None:
    """The name and the round of a key with versions; None for other keys."""
    name, separator, round = key.partition(SEPARATOR)
    return (name, int.from_bytes(round, "big")) if separator else None


def record_key(round: int) -> bytes:
    """The key of a round's record."""
    return RECORD + b"%010d" % round


def record_round(key: bytes) -> int | None:
    """The round of the key of a record; None for other keys."""
    number = key.removeprefix(RECORD)
    return int(number) if key.startswith(RECORD) and number.isdigit() else None


def client_key(id: Hashable) -> bytes:
    """The name of a client's state; JSON tells the number 1 from the string "1"."""
    # JSON of a whole number is its digits.
    text = str(id) if type(id) is int else json.dumps(id, ensure_ascii=False)
    key = CLIENT + text.encode()
    require(
        len(key) <= MAX_KEY_BYTES - SUFFIX_BYTES,
        f"The id of client {str(id)[:40]!r}… is too long for the store: it may have at most "
        f"{MAX_KEY_BYTES - SUFFIX_BYTES - len(CLIENT)} bytes as JSON.",
    )
    return key


def require_storable(ids: Sequence[Hashable]) -> None:
    """Raise if an id is too long for the store, before anything runs."""
    for id in ids:
        if isinstance(id, str) and len(id) > 100:
            client_key(id)


def described(key: bytes) -> str:
    """A key in words, for messages."""
    found, round = split(key), record_round(key)
    if round is not None:
        return f"the record of round {round}"
    if found is None:
        return {META: "the description of the run", ROUND: "the head"}.get(key, f"the key {key!r}")
    name = found[0].decode(errors="replace")
    if found[0].startswith(CLIENT):
        return f"the state of client {name[len(CLIENT) :]} of round {found[1]}"
    return f"the part {name.removeprefix(WRITE_ONCE.decode())!r} of round {found[1]}"
