"""Replace values of an experiment's tables by dotted keys, as `--set` and sweeps do.

A method is named by its label, its name or its number: `method.FedDyn.alpha`, `method.0.alpha`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from undrift.data.partitions import PARTITIONS, as_partition
from undrift.experiments.catalogue import NONE
from undrift.experiments.components import is_user_code, shown, table_of
from undrift.utils.errors import UndriftError, require


def applied(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the tables in which the values at some dotted keys are replaced."""
    found = deepcopy(dict(raw))
    for key, value in settings.items():
        parts = _path(found, key)
        require("" not in parts, f"{key!r} is not a key: write a dotted key such as local.lr.")
        _set(found, parts, value, key)
        _exchange(found, parts, settings)
    return found


def _path(raw: Mapping[str, Any], key: str) -> list[str | int]:
    """The keys that lead to the value; the label of a method may itself contain dots."""
    first, dot, rest = key.partition(".")
    if first != "method" or not dot:
        return [*key.split(".")]
    number, own = _method(raw, rest, key)
    return ["method", number, *([*own.split(".")] if own else [])]


def _method(raw: Mapping[str, Any], rest: str, key: str) -> tuple[int, str]:
    """The number of the method that a key names, and the rest of the key."""
    tables = raw.get("method")
    tables = tables if isinstance(tables, list) else []
    names: list[tuple[str, int, int]] = []
    for number, table in enumerate(tables):
        own = table if isinstance(table, dict) else {}
        words = [own.get("label"), own.get("name"), str(number)]
        names += [(word, rank, number) for rank, word in enumerate(words) if isinstance(word, str)]
    fits = [each for each in names if rest == each[0] or rest.startswith(f"{each[0]}.")]
    if not fits:
        known = list(dict.fromkeys(name for name, _, _ in names if not name.isdigit()))
        near = get_close_matches(rest.partition(".")[0], known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UndriftError(
            f"{key} names no method of the experiment, which has "
            f"{', '.join(map(repr, known)) or 'none'} (or a number from 0){hint}"
        )
    longest = max(len(name) for name, _, _ in fits)
    rank = min(rank for name, rank, _ in fits if len(name) == longest)
    meant = {number for name, r, number in fits if len(name) == longest and r == rank}
    require(
        len(meant) == 1,
        f"{key} could mean any of {len(meant)} methods: name one by its label, or by its number "
        f"from 0, such as method.{min(meant)}.",
    )
    number = meant.pop()
    return number, rest[longest + 1 :]


def _set(table: Any, parts: list[str | int], value: Any, key: str) -> None:
    for place, part in enumerate(parts[:-1]):
        if isinstance(table, dict) and isinstance(table.get(part), str):  # type: ignore[call-overload]
            table[part] = _opened(parts[: place + 1], table[part])
        if isinstance(part, int):
            table = table[part]
        else:
            table = table.setdefault(part, {})
        said = ".".join(map(str, parts[: place + 1]))
        require(
            isinstance(table, dict | list) and not (isinstance(table, list) and part != "method"),
            f"{key} cannot be set: {said} is {shown(table)}, not a table.",
        )
    last = parts[-1]
    if isinstance(last, int):
        table[last] = value
    else:
        require(isinstance(table, dict), f"{key} cannot be set: it is not in a table.")
        table[last] = value


def _opened(parts: list[str | int], words: str) -> Any:
    """The table that a short form stands for, so that one of its keys can be set."""
    if parts == ["data", "partition"]:
        return {"kind": words} if is_user_code(words, PARTITIONS) else table_of(as_partition(words))
    if parts in (["engine"], ["loss"], ["step"]) or parts[:-1] == ["metrics"]:
        return {"name": words}
    if words != NONE and parts[-1] in ("pace", "availability"):
        return {"kind": words}
    return words


def _exchange(raw: dict[str, Any], parts: list[str | int], settings: Mapping[str, Any]) -> None:
    """Remove the value that a new one excludes: epochs for steps, or kind = "all" for a cohort."""
    sampling = raw.get("sampling")
    if parts == ["sampling", "cohort"] and isinstance(sampling, dict):
        if sampling.get("kind") == "all" and "sampling.kind" not in settings:
            del sampling["kind"]
        return
    others = {"steps": "epochs", "epochs": "steps"}
    place = parts.index("local") if "local" in parts else len(parts)
    unit = str(parts[place + 1]) if place + 1 < len(parts) else ""
    if unit not in others:
        return
    other = others[unit]
    table: Any = raw
    for part in parts[: place + 1]:
        table = table[part]
    if not any(f"local.{other}" in key for key in settings):
        table.pop(other, None)
