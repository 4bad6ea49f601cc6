"""Paces: when the server goes on to its next update.

It may wait for all clients, for a deadline, for the first K replies, or update with every reply.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from undrift.utils.errors import require, require_choice, require_range, require_whole
from undrift.utils.reprs import short_repr

LATE = ("partial", "dropped")
"""What a device does that cannot finish before a deadline."""
STALE = ("wait", "discard")
"""How a bound on delays is enforced."""


class Pace:
    """When the server goes on to its next update."""

    needs_devices: bool = True
    """whether the pace is defined only with a virtual clock"""


class RoundPace(Pace, ABC):
    """A pace of synchronous rounds."""

    min_replies: int
    """with fewer replies a round is skipped: no state changes, and the work counts as wasted"""

    def _check(self) -> None:
        require_whole(f"{type(self).__name__}'s min_replies", self.min_replies, at_least=1)

    @property
    def loses(self) -> bool:
        """Whether the server may go on without clients that would still reply."""
        return False

    @property
    def budget(self) -> float | None:
        """Virtual seconds to which devices cut their work; None if they do all of it."""
        return None

    @abstractmethod
    def closes(
        self, start: float, end: np.ndarray, arrives: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """A mask of the clients whose replies are used, and the time when the round is over.

        Parameters
        ----------
        start
            the time when the round started; times are virtual seconds
        end
            when each reply arrives, or when its client fails, which the server notices
        arrives
            a mask of the clients whose replies arrive
        """


@dataclass(frozen=True)
class WaitForAll(RoundPace):
    """A round ends when every client has replied or failed.

    Parameters
    ----------
    min_replies
        with fewer replies the round is skipped
    """

    __repr__ = short_repr

    min_replies: int = 1

    needs_devices = False

    def __post_init__(self) -> None:
        self._check()

    def closes(
        self, start: float, end: np.ndarray, arrives: np.ndarray
    ) -> tuple[np.ndarray, float]:
        return arrives, float(end.max(initial=start))


@dataclass(frozen=True)
class Deadline(RoundPace):
    """A round ends after a number of seconds at the latest.

    Parameters
    ----------
    seconds
        the length of a round, in virtual seconds
    late
        what a device does that cannot finish its work in time: "partial", as many steps as it
        can; "dropped", all its work, and the server discards it
    min_replies
        with fewer replies the round is skipped
    """

    __repr__ = short_repr

    seconds: float
    late: str = "partial"
    min_replies: int = 1

    def __post_init__(self) -> None:
        require_range("Deadline's seconds", self.seconds, above=0)
        require_choice("Deadline's late", self.late, LATE)
        self._check()

    @property
    def loses(self) -> bool:
        return self.late == "dropped"

    @property
    def budget(self) -> float | None:
        return self.seconds if self.late == "partial" else None

    def closes(
        self, start: float, end: np.ndarray, arrives: np.ndarray
    ) -> tuple[np.ndarray, float]:
        # Work that was cut to fit the deadline may end a rounding error after it.
        due = start + self.seconds
        in_time = end <= due + 1e-9 * self.seconds + 4 * math.ulp(due)
        over = float(end.max(initial=start)) if bool(in_time.all()) else due
        return arrives & in_time, over


@dataclass(frozen=True)
class FirstToRespond(RoundPace):
    """A round ends with the first K replies; the cohort should be larger than K.

    The work of the other clients is discarded and counted as wasted. Fast devices are favoured:
    the clients whose replies are used are not a uniform sample.

    Parameters
    ----------
    replies
        K, the number of replies that end a round
    min_replies
        with fewer replies the round is skipped
    """

    __repr__ = short_repr

    replies: int
    min_replies: int = 1

    def __post_init__(self) -> None:
        require_whole("FirstToRespond's replies", self.replies, at_least=1)
        self._check()
        require(
            self.min_replies <= self.replies,
            f"FirstToRespond's min_replies is {self.min_replies}, but must be at most "
            f"{self.replies}, the number of replies that end a round.",
        )

    @property
    def loses(self) -> bool:
        return True

    def closes(
        self, start: float, end: np.ndarray, arrives: np.ndarray
    ) -> tuple[np.ndarray, float]:
        order = np.argsort(np.where(arrives, end, np.inf), kind="stable")
        first = order[: self.replies]
        used = np.zeros(len(end), dtype=bool)
        used[first] = True
        used &= arrives
        # With fewer than K replies the round lasts until the last client has failed.
        enough = int(used.sum()) == self.replies
        return used, float((end[used] if enough else end).max(initial=start))


@dataclass(frozen=True)
class AsTheyArrive(Pace):
    """Asynchronous: a reply updates the server when it arrives, and another client starts at once.

    Parameters
    ----------
    concurrency
        the number of clients at work at once; None for the size of the cohort, or for all clients,
        each of which then starts again as soon as it has replied
    buffer
        M, the number of replies per update; None for the method's default
    max_delay
        the most updates between a client's download and its reply; None for no bound
    stale
        how `max_delay` is enforced: "wait", a reply that would make an older one too late waits
        for it; "discard", the server discards replies that are too old
    replies
        the number of replies that make one round of the records; None for `concurrency`
    """

    __repr__ = short_repr

    concurrency: int | None = None
    buffer: int | None = None
    max_delay: int | None = None
    stale: str = "wait"
    replies: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("buffer", 1), ("max_delay", 0), ("replies", 1)):
            value = getattr(self, name)
            if value is not None:
                require_whole(f"AsTheyArrive's {name}", value, at_least=least)
        require_choice("AsTheyArrive's stale", self.stale, STALE)

    def at_once(self, cohort: int | None, clients: int) -> int:
        """The number of clients at work at once, of `clients`; `cohort` is None for all."""
        wanted = cohort if self.concurrency is None else self.concurrency
        return clients if wanted is None else min(wanted, clients)

    def delay(self, at_once: int, buffer: int) -> int:
        """The bound on delays, in updates: `max_delay`, or the smallest possible bound.

        Raises an `UndriftError` if `max_delay` cannot be kept.
        """
        # While a client works, each of the others at work may reply once before it.
        least = math.ceil((at_once - 1) / buffer)
        if self.max_delay is None:
            return least
        require(
            self.max_delay >= least or self.stale == "discard",
            f"AsTheyArrive's max_delay is {self.max_delay}, but must be at least {least} with "
            f"{at_once} clients at work at once and a buffer of {buffer}: allow that, or fewer "
            f"clients at once.",
        )
        return self.max_delay


# The words of experiment files.
PACES: dict[str, type[Pace]] = {
    "all": WaitForAll,
    "deadline": Deadline,
    "first": FirstToRespond,
    "asynchronous": AsTheyArrive,
}


def word_of(pace: Pace) -> str:
    """The word for a pace in an experiment file."""
    return next(word for word, kind in PACES.items() if kind is type(pace))
