"""What a sweep tries: lists and ranges by key, for every method its own."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undrift.experiments.settings import applied
from undrift.utils.errors import require

TUNED = (
    "local",
    "method",
    "model",
    "loss",
    "weights",
    "sampling",
    "rounds",
    "devices",
    "pace",
    "limit",
)
"""The parts of an experiment that a sweep may change; the rest says how points are judged."""


@dataclass(frozen=True)
class Range:
    """An interval of numbers to search; of whole numbers, if both ends are."""

    low: float
    high: float
    log: bool = False


@dataclass
class Space:
    """What is tried for one method: lists and ranges, by key."""

    label: str
    lists: dict[str, list[Any]] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)

    def grid(self) -> list[dict[str, Any]]:
        """The product of the lists; the last key changes fastest."""
        return [
            dict(zip(self.lists, each, strict=True))
            for each in itertools.product(*self.lists.values())
        ]


def spaces(sweep: Mapping[str, Any], methods: Sequence[Mapping[str, Any]]) -> dict[str, Space]:
    """The space of every method, by its label, from the `[sweep]` table of a checked experiment.

    `methods` are the tables of the experiment's methods, with their labels.
    """
    found = {table["label"]: Space(table["label"]) for table in methods}
    require(len(sweep) > 0, 'There is nothing to sweep: add e.g. [sweep] "local.lr" = [0.1, 0.01].')
    for key, value in sweep.items():
        for label in _concerned(key, methods):
            if isinstance(value, Mapping):
                found[label].ranges[key] = Range(**value)
            else:
                found[label].lists[key] = _different(key, value)
    return found


def _concerned(key: str, methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """The labels of the methods that a key concerns."""
    first = key.partition(".")[0]
    if key != "data.augment":
        require(
            first in TUNED,
            f"sweep.{key} would change what points are judged by: a sweep may change "
            f"{', '.join(TUNED)} and data.augment.",
        )
    if first != "method":
        return [table["label"] for table in methods]
    # A method may be named by its label, its name or its number: see where the key leads.
    marked = applied({"method": list(methods)}, {key: object})["method"]
    pairs = zip(methods, marked, strict=True)
    return [before["label"] for before, after in pairs if before != after]


def _different(key: str, values: Sequence[Any]) -> list[Any]:
    words = [canonical(value) for value in values]
    for word in words:
        require(words.count(word) == 1, f"sweep.{key} has {word} twice.")
    return list(values)


def digest(resolved: object) -> str:
    """A name for what is computed: equal settings, whatever their order, have the same."""
    return hashlib.sha256(canonical(resolved).encode()).hexdigest()[:16]


def canonical(value: object) -> str:
    """A value as JSON in one way only."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
