"""Edit the text of an experiment file so that its comments and its layout stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AoT, Comment, Table, Whitespace

METHODS = "method"
Line = Comment | Whitespace
"""A line without a key."""


def edited(text: str, tables: Mapping[str, Any], methods: Sequence[Table]) -> str:
    """The text of a file with the values of `tables` and other methods.

    Parameters
    ----------
    text
        the file
    tables
        all its tables but the methods: values that differ are changed, keys that are not among them
        are deleted
    methods
        the tables that take the place of the file's methods
    """
    document = tomlkit.parse(text)
    own = {METHODS: document[METHODS]} if METHODS in document else {}
    _update(document, {**tables, **own})
    _set_methods(document, methods)
    return tomlkit.dumps(document)


def method_table(values: Mapping[str, Any], comments: Sequence[str]) -> Table:
    """A [[method]] with comment lines below its header; tables in it stay on one line."""
    table = tomlkit.table()
    for line in comments:
        table.add(tomlkit.comment(line))
    for key, value in values.items():
        table.add(key, _inline(value))
    return table


def _inline(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    table = tomlkit.inline_table()
    for key, each in value.items():
        table.append(key, _inline(each))
    return table


def _set_methods(document: tomlkit.TOMLDocument, methods: Sequence[Table]) -> None:
    """Put methods where the file has its own, or at the end of the file."""
    before = document.get(METHODS)
    # Comments above the next table are part of the last method's table: they move to the new one.
    kept = _comments_of_next(before[-1].value) if isinstance(before, AoT) and before else []
    for item in kept or [tomlkit.nl()]:
        methods[-1].add(item)
    array = tomlkit.aot()
    for table in methods:
        array.append(table)
    if isinstance(before, AoT):
        document[METHODS] = array
        return
    if before is not None:  # written as method = […], which cannot become tables at its place
        del document[METHODS]
    document.add(tomlkit.nl())
    document.append(METHODS, array)


def _comments_of_next(body: Container) -> list[Line]:
    """The lines at the end of a table from its last blank line on, if they are comments."""
    last: list[Line] = []
    for key, item in reversed(body.body):
        if key is not None:
            return _comments_of_next(item.value) if isinstance(item, Table) else []
        if isinstance(item, Line):
            last.insert(0, item)
        if isinstance(item, Whitespace):
            return last
    return []


def _update(table: Any, values: Mapping[str, Any]) -> None:
    """Make a table hold these values only; the text of equal values is not changed."""
    for key in [key for key in table if key not in values]:
        del table[key]
    for key, value in values.items():
        if key not in table:
            _add(table, key, value)
        elif isinstance(value, Mapping) and isinstance(table[key], Mapping):
            _update(table[key], value)
        elif table[key] != value:
            table[key] = value


def _add(table: Any, key: str, value: Any) -> None:
    """Add a key below the others, but above comments that belong to the next table."""
    body = table.body if isinstance(table, Container) else table.value.body
    after: list[Line] = []
    while not isinstance(value, Mapping) and body and body[-1][0] is None:
        _, item = body.pop()
        if isinstance(item, Line):  # a deleted key leaves an item that is neither
            after.insert(0, item)
    table.add(key, value)
    for line in after:
        table.add(line)
