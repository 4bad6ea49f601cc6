"""What the sites of a deployment agree on before a run: the encoding of tables, counts of classes.

Server and sites derive from the experiment which statistics are needed; nothing else is asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from undrift.data.labels import MAX_CLASSES
from undrift.data.tabular.columns import MEAN, MEDIAN, Columns, declared_columns
from undrift.data.tabular.encoding import Encoding, encoding_from
from undrift.data.tabular.statistics import Answers, Needs, agree
from undrift.experiments.building import wants_class_weights
from undrift.experiments.experiment import Experiment
from undrift.experiments.tables.data import is_folder
from undrift.utils.errors import require

CLASSES = "classes"
"""The question for the number of training samples of each class."""


@dataclass(frozen=True)
class Agreed:
    """What all sites of a run use alike."""

    encoding: Encoding | None = None
    """how columns of tables become inputs; None if the data are no tables"""
    class_counts: tuple[int, ...] | None = None
    """the number of training samples of each class, over all sites; None if no loss needs it"""

    def plain(self) -> dict[str, Any]:
        """The agreement as values that JSON can hold; `agreed_from` is the inverse."""
        return {
            "encoding": None if self.encoding is None else self.encoding.plain(),
            "class_counts": None if self.class_counts is None else list(self.class_counts),
        }


NOTHING_AGREED = Agreed()
"""For runs that need no statistics."""


def agreed_from(value: Any) -> Agreed:
    """The agreement that `Agreed.plain` gave; raises if it is malformed."""
    require(
        isinstance(value, Mapping) and value.keys() == {"encoding", "class_counts"},
        "What the sites agreed on must have an encoding and counts of classes.",
    )
    counts = value["class_counts"]
    if counts is not None:
        check_class_counts("The agreement", counts)
    encoding = value["encoding"]
    return Agreed(
        None if encoding is None else encoding_from(encoding),
        None if counts is None else tuple(counts),
    )


@dataclass(frozen=True)
class Wanted:
    """The statistics that an experiment needs across sites."""

    columns: Columns | None
    """the treatment of columns, if the data are tables"""
    classes: bool
    """whether the loss needs the number of samples of each class"""

    def __bool__(self) -> bool:
        return self.columns is not None or self.classes

    def revealed(self) -> list[str]:
        """What a site's answers tell the server, in sentences."""
        found = ["the number of training samples of each class"] if self.classes else []
        columns = self.columns
        if columns is None:
            return found
        found.append(
            "the names of the columns, the number of training samples, and for each column how "
            "many have a value"
        )
        kinds = columns.missing.values() if isinstance(columns.missing, Mapping) else ()
        treatments = {columns.missing, *kinds} if not kinds else {*kinds}
        if columns.standardise or treatments & {MEAN, MEDIAN}:
            every = "each number" if columns.standardise else "each number that is filled in"
            found.append(f"the sum of {every} and, for scales and medians, the sum of its squares")
        if MEDIAN in treatments:
            found.append(
                "for medians, how many values lie in cells around the median, down to 1.6e-5 "
                "standard deviations"
            )
        open_words = [each for each in columns.category_names if columns.vocabulary(each) is None]
        if open_words:
            found.append(
                f"the values of {', '.join(map(repr, open_words))} with at least "
                f"{columns.min_count} training samples, and how many have them"
            )
        return found


def wanted(experiment: Experiment) -> Wanted:
    """The statistics that an experiment needs across sites."""
    folder = is_folder(experiment.data.source)
    columns = declared_columns(experiment.data.parameters) if folder else None
    return Wanted(columns, wants_class_weights(experiment))


def agreement(needed: Wanted) -> Generator[dict[str, Any], Answers, Agreed]:
    """Ask all sites for statistics until everything is agreed on.

    Yields questions, is sent the answers of all sites by name, and returns the agreement.
    """
    encoding, counts = None, None
    if needed.columns is not None:
        encoding = yield from agree(Needs(needed.columns), "site")
    if needed.classes:
        answers = yield {"stage": CLASSES}
        for site, own in answers.items():
            found = own.get(CLASSES) if isinstance(own, Mapping) else None
            check_class_counts(f"The site {site!r}", found)
        rows = [own[CLASSES] for own in answers.values()]
        counts = tuple(map(sum, zip_longest(*rows, fillvalue=0)))
    return Agreed(encoding, counts)


def check_class_counts(who: str, counts: Any) -> None:
    """Raise unless these are numbers of samples by class."""
    require(
        isinstance(counts, Sequence)
        and 0 < len(counts) <= MAX_CLASSES
        and all(type(each) is int and 0 <= each < 2**53 for each in counts),
        f"{who} has counts of classes that are no list of whole numbers.",
    )
