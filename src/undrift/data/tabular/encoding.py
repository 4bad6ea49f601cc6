"""`Encoding`: the agreed way from features to the inputs of a model, the same for all clients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.data.samples.structure import Tree
from undrift.data.tabular.features import MISSING, NUMBER, WORD, Features
from undrift.utils.errors import UndriftError, require, warn

MAX_COLUMNS = 100_000
"""The most columns of an encoding."""
MAX_VALUES = 10_000
"""The most values of a category."""
MAX_CHARACTERS = 200
"""The longest name of a column or value that is agreed on."""
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class NumberEncoding:
    """How a number becomes an input: filled in if it is missing, shifted and scaled."""

    name: str
    fill: float | None = None
    """what replaces a missing value; None if none may be missing"""
    indicator: bool = False
    """whether a further input is 1 where the value is missing, and 0 elsewhere"""
    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True)
class WordEncoding:
    """How a category becomes inputs: a column for each known value, or a code."""

    name: str
    values: tuple[str, ...]
    coded: bool = False
    """whether it is passed as a code: 0 for unknown and missing values, else 1, 2, …"""
    indicator: bool = False


@dataclass(frozen=True)
class Encoding:
    """The agreed encoding of features and targets."""

    columns: tuple[NumberEncoding | WordEncoding, ...]
    whole: bool = True
    """whether targets are class numbers; else they are values of a regression"""

    @property
    def names(self) -> list[str]:
        """The names of the floating-point inputs, in their order."""
        found = []
        for each in self.columns:
            if isinstance(each, NumberEncoding):
                found.append(each.name)
            elif not each.coded:
                found += [f"{each.name}={value}" for value in each.values]
            if each.indicator:
                found.append(f"{each.name} is missing")
        return found

    @property
    def features(self) -> int:
        """The number of floating-point inputs of a sample."""
        return len(self.names)

    @property
    def codes(self) -> list[int]:
        """The number of codes of each category that is passed as a code, for embeddings."""
        return [
            len(each.values) + 1
            for each in self.columns
            if isinstance(each, WordEncoding) and each.coded
        ]

    @property
    def code_names(self) -> list[str]:
        """The categories that are passed as codes, in their order."""
        return [e.name for e in self.columns if isinstance(e, WordEncoding) and e.coded]

    def inputs(self, features: Features) -> Tree:
        """The inputs of all samples: floating-point `[n, d]`, with codes the pair with `[n, c]`.

        Without numbers and one-hot columns, the inputs are the codes alone.
        """
        numbers = {each.name: k for k, each in enumerate(features.named(NUMBER))}
        words = {each.name: k for k, each in enumerate(features.named(WORD))}
        blocks: list[np.ndarray] = []
        codes: list[np.ndarray] = []
        for each in self.columns:
            if isinstance(each, NumberEncoding):
                blocks += _number_blocks(each, features, numbers[each.name])
            elif each.coded:
                codes.append(known_codes(each, features, words[each.name]) + 1)
                blocks += _indicator(each, features.words[:, words[each.name]] == MISSING)
            else:
                blocks += _one_hot(each, features, words[each.name])
        found = [torch.from_numpy(np.concatenate(blocks, 1))] if blocks else []
        if codes:
            found.append(torch.from_numpy(np.stack(codes, 1)))
        return found[0] if len(found) == 1 else tuple(found)

    def targets(self, values: np.ndarray) -> Tensor:
        """The targets: class numbers, or 32-bit floating-point numbers."""
        return torch.from_numpy(values.astype(np.int64 if self.whole else np.float32))

    def plain(self) -> dict[str, Any]:
        """The encoding as values that JSON can hold; `encoding_from` is the inverse."""
        columns: list[dict[str, Any]] = []
        for each in self.columns:
            if isinstance(each, NumberEncoding):
                columns.append({"kind": NUMBER, **vars(each)})
            else:
                columns.append({"kind": WORD, **vars(each), "values": list(each.values)})
        return {"columns": columns, "whole": self.whole}


def _number_blocks(column: NumberEncoding, features: Features, place: int) -> list[np.ndarray]:
    values = features.numbers[:, place]
    missing = np.isnan(values)
    found = values.astype(np.float32)
    if missing.any():
        if column.fill is None:
            raise UndriftError(
                f"{features.where(int(missing.argmax()))} has no value in column "
                f"{column.name!r}: set missing."
            )
        found[missing] = np.float32(column.fill)
    found = (found - np.float32(column.mean)) / np.float32(column.deviation)
    return [found[:, None], *_indicator(column, missing)]


def _indicator(column: NumberEncoding | WordEncoding, missing: np.ndarray) -> list[np.ndarray]:
    return [missing.astype(np.float32)[:, None]] if column.indicator else []


def known_codes(column: WordEncoding, features: Features, place: int) -> np.ndarray:
    """The position of each word in the agreed vocabulary; -1 for unknown and missing ones."""
    known = {word: number for number, word in enumerate(column.values)}
    positions = [known.get(word, -1) for word in features.vocabularies[place]]
    # The last entry serves MISSING, which is -1.
    return np.array([*positions, -1], np.int64)[features.words[:, place]]


def _one_hot(column: WordEncoding, features: Features, place: int) -> list[np.ndarray]:
    codes = known_codes(column, features, place)
    found = np.zeros((len(codes), len(column.values) + 1), np.float32)
    found[np.arange(len(codes)), codes] = 1.0  # unknown ones in the last column, which goes
    missing = features.words[:, place] == MISSING
    return [found[:, :-1], *_indicator(column, missing)]


def report_unknown(
    encoding: Encoding, features: Features, rows: np.ndarray, part: str, unknown: str
) -> None:
    """Announce words of a part that are not in the agreed vocabularies, or raise for them."""
    places = {each.name: k for k, each in enumerate(features.named(WORD))}
    for column in encoding.columns:
        if not isinstance(column, WordEncoding):
            continue
        place = places[column.name]
        words = features.words[rows, place]
        bad = (known_codes(column, features, place)[rows] < 0) & (words != MISSING)
        if not bad.any():
            continue
        first = int(np.flatnonzero(bad)[0])
        names = Counter(features.vocabularies[place][code] for code in words[bad])
        shown = ", ".join(repr(name[:40]) for name, _ in names.most_common(5))
        where = features.where(int(rows[first]))
        sentence = (
            f"{where} has {features.vocabularies[place][int(words[first])]!r} in column "
            f"{column.name!r}, which is none of its {len(column.values)} known values"
        )
        require(unknown != "error", f"{sentence}: add it to categories, or set unknown = 'zero'.")
        warn(
            f"{sentence}; {int(bad.sum())} {part} samples have unknown values ({shown}), which are "
            f"encoded as zeros (as codes: 0)."
        )


def encoding_from(value: Any) -> Encoding:
    """The encoding that `Encoding.plain` gave, such as from a file; raises if it is malformed."""
    require(
        isinstance(value, Mapping)
        and value.keys() == {"columns", "whole"}
        and isinstance(value["columns"], list)
        and 0 < len(value["columns"]) <= MAX_COLUMNS
        and isinstance(value["whole"], bool),
        "The encoding must have its columns, and whether targets are whole numbers.",
    )
    columns = tuple(_column_from(each) for each in value["columns"])
    names = [each.name for each in columns]
    require(len(set(names)) == len(names), "The encoding has a column twice.")
    return Encoding(columns, value["whole"])


def _column_from(value: Any) -> NumberEncoding | WordEncoding:
    require(isinstance(value, Mapping), "A column of an encoding must be a table.")
    name = value.get("name")
    require(is_short_text(name), "A column of an encoding must have a name.")
    assert isinstance(name, str)
    fields = dict(value)
    kind = fields.pop("kind", None)
    require(isinstance(fields.get("indicator"), bool), f"The encoding of {name!r} is malformed.")
    if kind == NUMBER:
        numbers = [fields.get("mean"), fields.get("deviation")]
        numbers += [] if fields.get("fill") is None else [fields["fill"]]
        require(
            fields.keys() == {"name", "fill", "indicator", "mean", "deviation"}
            and all(is_finite(each) for each in numbers)
            and fields["deviation"] > 0,
            f"The encoding of {name!r} must have finite numbers and a deviation above 0.",
        )
        return NumberEncoding(**fields)
    values = fields.get("values")
    require(
        kind == WORD
        and fields.keys() == {"name", "values", "coded", "indicator"}
        and isinstance(fields["coded"], bool)
        and is_vocabulary(values),
        f"The encoding of {name!r} must have a list of different words.",
    )
    return WordEncoding(name, tuple(fields["values"]), fields["coded"], fields["indicator"])


def is_vocabulary(values: Any) -> bool:
    """Whether a value is a list of different words, neither too many nor too long."""
    return (
        isinstance(values, list)
        and len(values) <= MAX_VALUES
        and all(is_short_text(each) for each in values)
        and len(set(values)) == len(values)
    )


def is_short_text(value: Any) -> bool:
    """Whether a value is a text that may be the name of a column or a category."""
    return isinstance(value, str) and 0 < len(value) <= MAX_CHARACTERS


def is_finite(value: Any) -> bool:
    """Whether a value is a number that 32-bit floating-point numbers can hold."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and abs(value) <= FLOAT32_MAX
