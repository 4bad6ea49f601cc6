"""Changing a few values in the text of a TOML file, so that its comments stay.

It knows lines only. Whoever uses it reads the result back, and writes the tables anew where the
file was laid out in a way that this does not understand.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w

from undrift.experiments.teaching import inline

HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
METHODS = "method"


def value_of(text: str) -> dict[str, Any] | None:
    """What a text means; None if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def dumped(tables: Mapping[str, Any]) -> str:
    """Tables as text, without comments."""
    return tomli_w.dumps(tables)


class Edited:
    """The lines of a file, to be changed one by one."""

    def __init__(self, text: str):
        self._lines = text.splitlines()

    def text(self, head: str) -> str:
        """The file as it is now, with a comment before it."""
        schema = [self._lines.pop(0)] if self._lines[:1] and "#:schema" in self._lines[0] else []
        return "\n".join([*schema, *head.splitlines(), *self._lines]).rstrip("\n") + "\n"

    def replace_methods(self, text: str) -> None:
        """Put other methods in the place of those that are there, or at the end."""
        kept: list[str] = []
        place = None
        block: list[str] | None = None
        for line in [*self._lines, None]:
            name = _name(line)
            if line is None or name is not None:
                if block is not None:
                    kept += _belonging_to_next(block)
                block = None
                if name is not None and name.split(".")[0].strip() == METHODS:
                    place = len(kept) if place is None else place
                    block = []
            if line is not None:
                (kept if block is None else block).append(line)
        place = len(kept) if place is None else place
        before = kept[:place]
        while before and not before[-1].strip():
            before.pop()
        after = kept[place:]
        self._lines = [*before, "", *text.splitlines(), *([""] if after else []), *after]

    def follow(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change what differs between two sets of tables: values, and keys that come or go."""
        for key, value in new.items():
            was = old.get(key)
            if value == was:
                continue
            if not isinstance(value, dict):
                self._set("", key, value)
                continue
            was = was if isinstance(was, dict) else {}
            for inner, each in value.items():
                if each != was.get(inner):
                    self._set(key, inner, each)
            for inner in was.keys() - value.keys():
                self._drop(key, inner)

    def remark(self, table: str, key: str, why: str) -> None:
        """Put a remark behind a value."""
        place = self._find(table, key)
        if place is not None:
            self._lines[place] += f"  # {why}"

    def _set(self, table: str, key: str, value: Any) -> None:
        place = self._find(table, key)
        written = f"{key} = {inline(value)}"
        if place is not None:
            remark = _remark(self._lines[place])
            self._lines[place] = written + (f"  {remark}" if remark else "")
            return
        start = self._start(table)
        if start is None:
            self._lines += ["", f"[{table}]", written]
        else:
            self._lines.insert(start, written)

    def _drop(self, table: str, key: str) -> None:
        place = self._find(table, key)
        if place is not None:
            del self._lines[place]

    def _start(self, table: str) -> int | None:
        """Where the first line of a table is; None if there is no such table."""
        if not table:
            return 0
        found = (n + 1 for n, line in enumerate(self._lines) if _name(line) == table)
        return next(found, None)

    def _find(self, table: str, key: str) -> int | None:
        """The line of a key."""
        start = self._start(table)
        if start is None:
            return None
        for place in range(start, len(self._lines)):
            if _name(self._lines[place]) is not None:
                return None
            name = self._lines[place].partition("=")[0].strip()
            if name in (key, f'"{key}"', f"'{key}'"):
                return place
        return None


def _name(line: str | None) -> str | None:
    """The table that a line begins, if it does."""
    found = None if line is None else HEADER.match(line)
    return None if found is None else found.group(1)


def _remark(line: str) -> str:
    """The comment behind a value; none where that cannot be told from a text with a #."""
    before, sharp, after = line.partition("#")
    return (
        f"#{after}" if sharp and before.count('"') % 2 == 0 and before.count("'") % 2 == 0 else ""
    )


def _belonging_to_next(block: list[str]) -> list[str]:
    """The comments at the end of a table that belong to the next one: those after a blank line."""
    last = max((n for n, line in enumerate(block) if not line.strip()), default=len(block))
    tail = block[last + 1 :]
    return tail if all(line.lstrip().startswith("#") for line in tail) else []
