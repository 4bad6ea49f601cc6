"""Checks of parts that are the user's own code, named in an experiment file as "file.py:name"."""

from __future__ import annotations

from undrift.core.sampling import Sampler, as_sampler
from undrift.local.schedules import Schedule
from undrift.utils.errors import UndriftError, first_line, require_range


def check_schedule(schedule: Schedule) -> None:
    """Check a user's schedule by its first rate."""
    try:
        rate = schedule.at(0)
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(f"The schedule fails in round 0: {first_line(error)}.") from error
    require_range("The schedule's rate in round 0", rate, above=0)


def check_sampler(sampler: Sampler) -> None:
    """Check that a user's sampler declares its kind of sampling."""
    as_sampler(sampler, by_weight=False)
