"""The search space of each method, from the [sweep] table: lists and intervals of values by key."""

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
    "step",
    "weights",
    "sampling",
    "rounds",
    "devices",
    "pace",
    "limit",
)
"""The keys that a sweep may change; all others decide how points are compared."""


@dataclass(frozen=True)
class Range:
    """An interval of numbers to search; of integers if both ends are integers."""

    low: float
    high: float
    log: bool = False


@dataclass
class Space:
    """The search space of one method: lists and intervals of values, by key."""

    label: str
    lists: dict[str, list[Any]] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)

    def grid(self) -> list[dict[str, Any]]:
        """The product of the lists as settings by key; the last key changes fastest."""
        return [
            dict(zip(self.lists, each, strict=True))
            for each in itertools.product(*self.lists.values())
        ]


def spaces(sweep: Mapping[str, Any], methods: Sequence[Mapping[str, Any]]) -> dict[str, Space]:
    """The search space of every method by label, from the `[sweep]` table of a checked experiment.

    `methods` are the tables of the experiment's methods, with their labels.
    """
    found = {table["label"]: Space(table["label"]) for table in methods}
    require(len(sweep) > 0, '[sweep] is empty: add for example "local.lr" = [0.1, 0.01].')
    for key, value in sweep.items():
        for label in _labels_of(key, methods):
            if isinstance(value, Mapping):
                found[label].ranges[key] = Range(**value)
            else:
                found[label].lists[key] = _require_distinct(key, value)
    return found


def _labels_of(key: str, methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """The labels of the methods that a key applies to."""
    first = key.partition(".")[0]
    if key != "data.augment":
        require(
            first in TUNED,
            f"sweep.{key} would change how points are compared: a sweep may only change "
            f"{', '.join(TUNED)} and data.augment.",
        )
    if first != "method":
        return [table["label"] for table in methods]
    # The key may name a method by label, name or number: find the table in which it sets a value.
    marked = applied({"method": list(methods)}, {key: object})["method"]
    pairs = zip(methods, marked, strict=True)
    return [before["label"] for before, after in pairs if before != after]


def _require_distinct(key: str, values: Sequence[Any]) -> list[Any]:
    words = [canonical(value) for value in values]
    for word in words:
        require(words.count(word) == 1, f"sweep.{key} has {word} twice.")
    return list(values)


def digest(resolved: object) -> str:
    """A short hash of settings that does not depend on their order."""
    return hashlib.sha256(canonical(resolved).encode()).hexdigest()[:16]


def canonical(value: object) -> str:
    """A value as JSON, the same text for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
