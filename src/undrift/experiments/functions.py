"""Parts of an experiment that are the user's own code: partitions as functions, and checks.

An experiment file names such parts as "file.py:name"; they are checked when the file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undrift.core.sampling import Sampler, as_sampler
from undrift.data.partitions import Partition, Split
from undrift.local.schedules import Schedule
from undrift.utils.errors import UndriftError, first_line, require, require_range
from undrift.utils.keys import generator


@dataclass(frozen=True)
class FunctionPartition(Partition):
    """A partition made of a function (targets, clients, rng) → the row numbers of each client."""

    function: Callable[[np.ndarray, int, np.random.Generator], Sequence[Any]]
    min_size = 1

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        try:
            rng = generator(seed, "partition")
            found = [np.asarray(own) for own in self.function(labels, clients, rng)]
        except Exception as error:
            raise UndriftError(f"The partition {self} fails: {first_line(error)}.") from error
        require(
            len(found) == clients,
            f"The partition {self} gives rows for {len(found)} clients, but there are {clients} "
            f"clients.",
        )
        for k, own in enumerate(found):
            require(
                own.ndim == 1 and own.size > 0 and np.issubdtype(own.dtype, np.integer),
                f"The partition {self} must give every client a list of row numbers with at least "
                f"one row, but does not for client {k}.",
            )
        rows = np.concatenate(found).astype(np.int64)
        require(
            rows.min() >= 0 and rows.max() < len(labels),
            f"The partition {self} gives a row outside 0 … {len(labels) - 1}.",
        )
        require(
            len(np.unique(rows)) == len(rows),
            f"The partition {self} gives a sample to two clients.",
        )
        bounds = np.concatenate([[0], np.cumsum([len(own) for own in found])]).astype(np.int64)
        return Split(rows, bounds)


def check_schedule(schedule: Schedule) -> None:
    """Check a user's schedule by its first rate."""
    try:
        rate = schedule.at(0)
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(f"The schedule fails in round 0: {first_line(error)}.") from error
    require_range("The schedule's rate in round 0", rate, above=0)


def check_partition(partition: Partition) -> None:
    """Check that a user's partition declares the smallest number of samples of a client."""
    require(
        isinstance(getattr(partition, "min_size", None), int),
        "A partition needs the attribute min_size: the smallest number of samples of a client.",
    )


def check_sampler(sampler: Sampler) -> None:
    """Check that a user's sampler declares its kind of sampling."""
    as_sampler(sampler, by_weight=False)
