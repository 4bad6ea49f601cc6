"""The statistics that an encoding needs, from sums and counts of each client's training samples.

`agree` is a generator: it yields a question for all clients, is sent their answers, and returns the
`Encoding` in the end, so that no client's values are needed in one place. `encoding_of` answers for
the clients of a simulation. Sums are rounded correctly (`math.fsum`), whatever the order of their
terms.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from undrift.data.tabular.answers import (
    CELLS_STAGE,
    COUNTS,
    DEVIATIONS,
    Answer,
    Question,
    check_cells,
    check_counts,
    check_deviations,
)
from undrift.data.tabular.columns import ERROR, MEAN, MEDIAN, Columns
from undrift.data.tabular.encoding import (
    MAX_CHARACTERS,
    MAX_VALUES,
    Encoding,
    NumberEncoding,
    WordEncoding,
)
from undrift.data.tabular.features import MISSING, NUMBER, WORD, Feature, Features, features_of
from undrift.data.tabular.medians import LEVELS, counts_in_cells, edges, median_cell, middle
from undrift.utils.errors import require, warn

Answers = Mapping[Hashable, Answer]


@dataclass(frozen=True)
class Needs:
    """Which statistics are asked for."""

    columns: Columns

    def mean(self, feature: Feature) -> bool:
        """Whether the mean of a number is needed."""
        wanted = self.columns.treatment(feature.column) in (MEAN, MEDIAN)
        return wanted or self.columns.standardise

    def deviation(self, feature: Feature) -> bool:
        """Whether the standard deviation of a number is needed."""
        return self.median(feature) or self.columns.standardise

    def median(self, feature: Feature) -> bool:
        """Whether the median of a number is needed."""
        return self.columns.treatment(feature.column) == MEDIAN

    def vocabulary(self, feature: Feature) -> bool:
        """Whether the clients agree on the values of a category."""
        return self.columns.vocabulary(feature.column) is None


@dataclass(frozen=True)
class ClientSamples:
    """The training samples of one client, from which it answers questions."""

    features: Features
    rows: np.ndarray
    """its training rows of the features"""
    whole: bool = True
    """whether its targets can be class numbers"""


def answer(question: Question, needs: Needs, own: ClientSamples) -> Answer:
    """A client's answer to a question."""
    stage = question["stage"]
    if stage == COUNTS:
        return _counts(needs, own)
    present = _present_numbers(own)
    if stage == DEVIATIONS:
        squares = {
            name: math.fsum(((present[name] - mean) ** 2).tolist())
            for name, mean in question["means"].items()
        }
        return {"squares": squares}
    cells = {}
    for name, (mean, deviation) in question["centres"].items():
        bounds = edges(mean, deviation, question["paths"][name])
        cells[name] = counts_in_cells(present[name], bounds)
    return {"cells": cells}


def _present_numbers(own: ClientSamples) -> dict[str, np.ndarray]:
    """The values of each number feature that are not missing."""
    found = {}
    for place, each in enumerate(own.features.named(NUMBER)):
        values = own.features.numbers[own.rows, place]
        found[each.name] = values[~np.isnan(values)]
    return found


def _counts(needs: Needs, own: ClientSamples) -> Answer:
    found: Answer = {"samples": len(own.rows)}
    numbers = _present_numbers(own)
    found["columns"] = [[each.name, each.kind] for each in own.features.features]
    found["whole"] = own.whole
    found["present"] = {name: len(values) for name, values in numbers.items()}
    found["sums"] = {
        each.name: math.fsum(numbers[each.name].tolist())
        for each in own.features.named(NUMBER)
        if needs.mean(each)
    }
    found["values"] = {}
    least = needs.columns.min_count
    for place, each in enumerate(own.features.named(WORD)):
        codes = own.features.words[own.rows, place]
        codes = codes[codes != MISSING]
        found["present"][each.name] = len(codes)
        if needs.vocabulary(each):
            words = own.features.vocabularies[place]
            times = np.bincount(codes, minlength=len(words)).tolist()
            known = {word: n for word, n in zip(words, times, strict=True) if n >= least}
            known = {word: n for word, n in known.items() if len(word) <= MAX_CHARACTERS}
            often = sorted(known, key=lambda word: (-known[word], word))[:MAX_VALUES]
            found["values"][each.name] = {word: known[word] for word in sorted(often)}
    return found


def agree(needs: Needs, who: str = "client") -> Generator[Question, Answers, Encoding]:
    """Ask for statistics until an encoding follows from them.

    `who` is what error sentences call a client.
    """
    answers = yield {"stage": COUNTS}
    for id, own in answers.items():
        check_counts(f"The {who} {id!r}", own)
    features = _same_features(answers, needs.columns, who)
    _require_complete(needs, features, answers, who)
    present = {f.name: sum(own["present"][f.name] for own in answers.values()) for f in features}
    numbers = [each for each in features if each.kind == NUMBER]
    means = {
        each.name: _mean([own["sums"][each.name] for own in answers.values()], present[each.name])
        for each in numbers
        if needs.mean(each)
    }
    squares = dict.fromkeys(means, 0.0)
    asked = {each.name: means[each.name] for each in numbers if needs.deviation(each)}
    if asked:
        replies = yield {"stage": DEVIATIONS, "means": asked}
        for id, own in replies.items():
            check_deviations(f"The {who} {id!r}", own, asked)
        for name in asked:
            squares[name] = math.fsum(own["squares"][name] for own in replies.values())
    centres = {
        each.name: (means[each.name], math.sqrt(squares[each.name] / max(1, present[each.name])))
        for each in numbers
        if needs.median(each)
    }
    medians = yield from _medians(centres, present, answers, who)
    samples = sum(own["samples"] for own in answers.values())
    moments = {name: Moments(samples, present[name], means[name], squares[name]) for name in means}
    columns: list[NumberEncoding | WordEncoding] = []
    indicated: set[str] = set()
    for each in features:
        missing = samples - present[each.name]
        indicator = _has_indicator(each, needs.columns, missing) and each.column not in indicated
        indicated |= {each.column} if indicator else set()
        if each.kind == WORD:
            columns.append(_word_encoding(each, needs.columns, answers, indicator))
        else:
            columns.append(
                _number_encoding(each, needs.columns, moments.get(each.name), medians, indicator)
            )
    whole = all(own["whole"] for own in answers.values())
    return Encoding(tuple(columns), whole)


def encoding_of(needs: Needs, clients: Mapping[Hashable, ClientSamples]) -> Encoding:
    """The encoding that follows from clients' samples in this process."""
    asking = agree(needs)
    question = next(asking)
    while True:
        found = {id: answer(question, needs, own) for id, own in clients.items()}
        try:
            question = asking.send(found)
        except StopIteration as done:
            encoding: Encoding = done.value
            return encoding


@dataclass(frozen=True)
class Moments:
    """Numbers of samples and present values, and the present values' mean and squares about it."""

    samples: int
    present: int
    mean: float
    squares: float

    def filled(self, fill: float | None) -> tuple[float, float]:
        """Mean and standard deviation of all samples once missing values are filled in."""
        gone = self.samples - self.present
        if fill is None or not gone:
            return self.mean, math.sqrt(self.squares / max(1, self.present))
        mean = (self.present * self.mean + gone * fill) / self.samples
        squares = self.squares + self.present * (self.mean - mean) ** 2 + gone * (fill - mean) ** 2
        return mean, math.sqrt(squares / self.samples)


def _medians(
    centres: Mapping[str, tuple[float, float]],
    present: Mapping[str, int],
    counted: Answers,
    who: str,
) -> Generator[Question, Answers, dict[str, float]]:
    """The medians of some numbers; a number without spread has its mean as median."""
    found = {name: mean for name, (mean, deviation) in centres.items() if deviation == 0}
    spread = {name: list(centre) for name, centre in centres.items() if name not in found}
    paths: dict[str, list[int]] = {name: [] for name in spread}
    for _ in range(LEVELS if spread else 0):
        answers = yield {
            "stage": CELLS_STAGE,
            "centres": spread,
            "paths": {name: list(path) for name, path in paths.items()},
        }
        for id, own in answers.items():
            most = {name: counted[id]["present"][name] for name in spread}
            check_cells(f"The {who} {id!r}", own, most)
        cells = [own["cells"] for own in answers.values()]
        for name, path in paths.items():
            path.append(median_cell(cells, name, present[name]))
    return found | {name: middle(*centres[name], path) for name, path in paths.items()}


def _number_encoding(
    feature: Feature,
    columns: Columns,
    moments: Moments | None,
    medians: Mapping[str, float],
    indicator: bool,
) -> NumberEncoding:
    treatment = columns.treatment(feature.column)
    fill: float | None = None
    if treatment == MEAN:
        assert moments is not None
        fill = moments.mean
    elif treatment == MEDIAN:
        fill = medians[feature.name]
    elif treatment != ERROR:
        fill = float(treatment)
    if moments is not None and not moments.present:
        warn(
            f"No client has a value in column {feature.column!r}, so that it is "
            f"{0.0 if fill is None else fill:g} everywhere: leave it out with drop."
        )
    mean, deviation = 0.0, 1.0
    if columns.standardise and moments is not None:
        mean, deviation = moments.filled(fill)
    return NumberEncoding(feature.name, fill, indicator, mean, deviation or 1.0)


def _word_encoding(
    feature: Feature, columns: Columns, answers: Answers, indicator: bool
) -> WordEncoding:
    declared = columns.vocabulary(feature.column)
    if declared is None:
        found = {word for own in answers.values() for word in own["values"][feature.name]}
        declared = sorted(found)
        require(
            len(declared) <= MAX_VALUES,
            f"The category {feature.name!r} has more than {MAX_VALUES} values: declare those that "
            f"matter in categories, or leave it out with drop.",
        )
        require(
            bool(declared),
            f"No value of the category {feature.name!r} occurs in {columns.min_count} training "
            f"samples of a client: lower min_count, declare its values, or leave it out with drop.",
        )
    return WordEncoding(feature.name, tuple(declared), columns.coded(feature.column), indicator)


def _has_indicator(feature: Feature, columns: Columns, missing: int) -> bool:
    """Whether a column gets an indicator: where values are missing, or where it is listed."""
    if columns.treatment(feature.column) == ERROR or not columns.indicated(feature.column):
        return False
    return missing > 0 or not isinstance(columns.indicators, bool)


def _same_features(answers: Answers, columns: Columns, who: str) -> list[Feature]:
    """The features of all clients, in the order of the first one's columns."""
    first_id, first = next(iter(answers.items()))
    names = [tuple(each) for each in first["columns"]]
    for id, own in answers.items():
        others = [tuple(each) for each in own["columns"]]
        for a, b, more, less in ((names, others, first_id, id), (others, names, id, first_id)):
            known = set(b)
            name = next((each for each in a if each not in known), None)
            require(
                name is None,
                f"The {who} {more!r} has the column {name[0] if name else ''!r}, which {less!r} "
                f"does not have: name the common columns in inputs.",
            )
    dated = {each.name: each for each in features_of(columns.date_names, columns)}
    return [dated.get(name) or Feature(name, kind, name) for name, kind in names]


def _require_complete(
    needs: Needs, features: Sequence[Feature], answers: Answers, who: str
) -> None:
    """Raise unless every client sent the sums and values that were asked for, and no others."""
    sums = {each.name for each in features if each.kind == NUMBER and needs.mean(each)}
    values = {each.name for each in features if each.kind == WORD and needs.vocabulary(each)}
    for id, own in answers.items():
        require(
            own["sums"].keys() == sums and own["values"].keys() == values,
            f"The {who} {id!r} sent statistics that cannot be used: its sums or values are those "
            f"of other columns.",
        )


def _mean(sums: Sequence[float], present: int) -> float:
    return math.fsum(sums) / present if present else 0.0
