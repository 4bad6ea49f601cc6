"""Schedules and partitions given as plain functions of the user's.

An experiment file names such a function as "file.py:function"; the classes here let it stand where
the library expects a `Schedule` or a `Partition`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undrift.core.sampling import Sampler
from undrift.data.partitions import Partition, Split
from undrift.local.schedules import Schedule
from undrift.utils.errors import UndriftError, first_line, require, require_range


@dataclass(frozen=True)
class FunctionSchedule(Schedule):
    """η_t = function(t), for round t counted from 0.

    Parameters
    ----------
    name
        "file.py:function" with the parameters of the file; equal names are equal schedules
    function
        (round) → learning rate
    """

    name: str
    function: Callable[[int], float] = field(compare=False, repr=False)

    def at(self, round: int) -> float:
        try:
            rate = float(self.function(round))
        except Exception as error:
            raise UndriftError(
                f"The schedule {self.name} fails in round {round}: {first_line(error)}."
            ) from error
        require_range(f"The rate of the schedule {self.name} in round {round}", rate, above=0)
        return rate


@dataclass(frozen=True)
class FunctionPartition(Partition):
    """The rows of each client as a function gives them.

    Parameters
    ----------
    name
        "file.py:function" with the parameters of the file; equal names are equal partitions
    function
        (labels, clients, seed) → a list with the row numbers of each client
    """

    name: str
    function: Callable[[np.ndarray, int, int], Any] = field(compare=False, repr=False)
    min_size: int = 1

    def __str__(self) -> str:
        return self.name

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        try:
            found = [np.asarray(own) for own in self.function(labels, clients, seed)]
        except Exception as error:
            raise UndriftError(f"The partition {self.name} fails: {first_line(error)}.") from error
        require(
            len(found) == clients,
            f"The partition {self.name} gives rows for {len(found)} clients, but there are "
            f"{clients} clients.",
        )
        for k, own in enumerate(found):
            require(
                own.ndim == 1 and own.size > 0 and np.issubdtype(own.dtype, np.integer),
                f"The partition {self.name} must give every client a list of row numbers with at "
                f"least one row, but does not for client {k}.",
            )
        rows = np.concatenate(found).astype(np.int64)
        require(
            rows.min() >= 0 and rows.max() < len(labels),
            f"The partition {self.name} gives a row outside 0 … {len(labels) - 1}.",
        )
        require(
            len(np.unique(rows)) == len(rows),
            f"The partition {self.name} gives a sample to two clients.",
        )
        bounds = np.concatenate([[0], np.cumsum([len(own) for own in found])]).astype(np.int64)
        return Split(rows, bounds)


def require_rate(schedule: Schedule) -> None:
    """Check a schedule of the user's by its first rate."""
    try:
        rate = schedule.at(0)
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(f"The schedule fails in round 0: {first_line(error)}.") from error
    require_range("The schedule's rate in round 0", rate, above=0)


def require_min_size(partition: Partition) -> None:
    """Check that a partition of the user's says how small a client may be."""
    require(
        isinstance(getattr(partition, "min_size", None), int),
        "A partition needs the attribute min_size: the least number of samples of a client.",
    )


def require_participation(sampler: Sampler) -> None:
    """Check that a sampler of the user's says how it draws: methods are defined for some ways."""
    require(
        isinstance(getattr(sampler, "participation", None), str),
        "A sampler needs the attribute participation, for example participation = 'uniform': it "
        "tells methods how cohorts are drawn.",
    )
