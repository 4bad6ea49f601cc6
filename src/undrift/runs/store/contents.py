"""Examines the whole file of a store before it is used: its structure, checksums and digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undrift.runs.store.checksums import as_text, summand, unsealed
from undrift.runs.store.keys import META, ROUND, WRITE_ONCE, described, record_round, split
from undrift.runs.store.pages import Damage, StoreFile

FORMAT_VERSION = 4
UNCHECKED_FORMAT = 3
"""The format before checksums and versions: keys have no round, values no checksum."""
MAX_NAMED = 5
"""The most damaged values that are named one by one."""


Content = bytes | memoryview


@dataclass
class Versions:
    """Which versions of values a store has besides the newest, and what they replace."""

    superseded: dict[int, dict[bytes, int]] = field(default_factory=dict)
    """by round: keys, with the bytes of their values, that are not needed after that round"""
    write_once: set[bytes] = field(default_factory=set)
    """the names of parts that are written once and still exist"""
    latest: int = 0
    """the latest round of which there is a version"""
    _last: tuple[bytes, bytes, int] = (b"", b"", 0)

    def add(self, key: bytes, size: int, removed: bool) -> None:
        """Take the next key, in the order of keys; `removed` for a version of no bytes."""
        found = split(key)
        if found is None:
            return
        name, round = found
        self.latest = max(self.latest, round)
        last_name, last_key, last_size = self._last
        if name == last_name:
            self.superseded.setdefault(round, {})[last_key] = last_size
        if removed:
            # Needed as long as an older round is, to say that the value does not exist here.
            self.superseded.setdefault(round, {})[key] = size
            self.write_once.discard(name)
        elif name.startswith(WRITE_ONCE):
            self.write_once.add(name)
        self._last = name, key, size


@dataclass
class Contents:
    """What the file of a store has."""

    format: int = FORMAT_VERSION
    meta: dict[str, Any] | None = None
    """the facts of the run; None for an empty store"""
    round: int | None = None
    """the last committed round"""
    oldest: int | None = None
    """the oldest round that the run can go back to"""
    digest: int = 0
    entries: int = 0
    versions: Versions = field(default_factory=Versions)
    records: set[int] = field(default_factory=set)
    """rounds whose records are intact"""
    models: list[int] = field(default_factory=list)
    """rounds whose server states are intact"""


def examine(
    file: Path,
    found: Callable[[Damage], None],
    visit: Callable[[bytes, Content], None] = lambda key, content: None,
) -> Contents:
    """Read the whole file.

    `found` is called with every damage, and may raise; `visit` with every key and content whose
    checksum fits.
    """
    contents = Contents()
    special: dict[bytes, bytes] = {}
    wrong: list[bytes] = []
    wrong_count = 0
    for key, value in StoreFile(file, found).entries():
        content = unsealed(key, value)
        if key in (META, ROUND):
            special[key] = value
        if content is None:
            wrong_count += 1
            wrong += [key] if len(wrong) < MAX_NAMED else []
        else:
            _count(contents, key, len(value), len(content) == 0)
            visit(key, content)
        if key != ROUND:
            contents.digest += summand(key, value)
            contents.entries += 1
    old = _old_facts(special)
    if old is not None:
        return Contents(UNCHECKED_FORMAT, *old)
    for key in wrong:
        found(Damage(f"the checksum of {described(key)} does not fit its content"))
    if wrong_count > len(wrong):
        found(Damage(f"{wrong_count - len(wrong)} more checksums do not fit"))
    if contents.entries or special:
        _read_special(contents, special, found)
    return contents


def _count(contents: Contents, key: bytes, size: int, empty: bool) -> None:
    """Note an entry whose checksum fits."""
    contents.versions.add(key, size, empty)
    round, version = record_round(key), split(key)
    if round is not None:
        contents.records.add(round)
    if version is not None and version[0] == b"server":
        contents.models.append(version[1])


def _old_facts(special: dict[bytes, bytes]) -> tuple[dict[str, Any], int | None, int | None] | None:
    """The facts and the round of a store in the format without checksums; None for others."""
    try:
        meta = json.loads(special[META])
        if meta["format"] != UNCHECKED_FORMAT:
            return None
        round = int(special[ROUND]) if ROUND in special else None
    except (ValueError, KeyError, TypeError):
        return None
    return meta, round, round


def _read_special(
    contents: Contents, special: dict[bytes, bytes], found: Callable[[Damage], None]
) -> None:
    """Read the facts and the head, and compare the digest."""
    missing = [key for key in (META, ROUND) if key not in special]
    for key in missing:
        found(Damage(f"{described(key)} is missing"))
    plain = {key: unsealed(key, value) for key, value in special.items()}
    meta, head = plain.get(META), plain.get(ROUND)
    if meta is not None:
        contents.meta = json.loads(bytes(meta))
    if head is None:
        return
    values = json.loads(bytes(head))
    contents.round, contents.oldest = values["round"], values["oldest"]
    if values["digest"] != as_text(contents.digest):
        found(
            Damage(
                f"it has {contents.entries} of {values['entries']} values"
                if contents.entries != values["entries"]
                else "some of its values belong to another round"
            )
        )
