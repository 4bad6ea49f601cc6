"""When the server goes on: with everyone, at a deadline, with the first, or with every reply."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from undrift.utils.errors import require, require_choice, require_range, require_whole
from undrift.utils.reprs import short_repr

LATE = ("partial", "dropped")
STALE = ("wait", "discard")


class Pace:
    """When the server goes on."""

    needs_devices: bool = True
    """whether it makes no sense without a clock"""


class RoundPace(Pace, ABC):
    """The server goes on in rounds."""

    min_replies: int
    """with fewer replies a round is skipped: nothing changes, and it is counted"""

    def _check(self) -> None:
        require_whole(f"{type(self).__name__}'s min_replies", self.min_replies, at_least=1)

    @property
    def loses(self) -> bool:
        """Whether clients that would reply may be left out."""
        return False

    @property
    def budget(self) -> float | None:
        """The seconds within which a device does what it can; None for all that was asked."""
        return None

    @abstractmethod
    def closes(
        self, start: float, end: np.ndarray, arrives: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Whose reply is used, a mask, and when the round is over.

        `end` is when each reply arrives, or when its sender fails (which the server notices).
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
    """A round ends after a time at the latest.

    Parameters
    ----------
    seconds
        the time, in virtual seconds
    late
        what a device does that cannot do all its work in time: "partial", as many steps as it
        can; "dropped", its work comes to nothing
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
        # Work that was cut to fit may end a rounding error after the deadline.
        due = start + self.seconds
        in_time = end <= due + 1e-9 * self.seconds + 4 * math.ulp(due)
        over = float(end.max(initial=start)) if bool(in_time.all()) else due
        return arrives & in_time, over


@dataclass(frozen=True)
class FirstToRespond(RoundPace):
    """A round ends with the first K replies; ask more clients than that.

    The work of the others is discarded, and counted as wasted. Fast devices are favoured: the
    cohort is no longer a uniform sample.

    Parameters
    ----------
    replies
        K, how many replies end a round
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
            f"FirstToRespond's min_replies is {self.min_replies}, but a round ends with "
            f"{self.replies} replies: it must be at most that.",
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
        enough = int(used.sum()) == self.replies
        return used, float((end[used] if enough else end).max(initial=start))


@dataclass(frozen=True)
class AsTheyArrive(Pace):
    """Asynchronous: a reply updates the server when it arrives, and another client starts at once.

    Parameters
    ----------
    concurrency
        how many clients are at work at once; None for the size of the cohort, or for everyone,
        each of whom then starts again as soon as it has replied
    buffer
        M, how many replies make an update; None as the method says
    max_delay
        the most updates between a client's reading of the model and its reply; None for no bound
    stale
        how that is enforced: "wait", a reply that would make older ones come too late waits for
        them; "discard", replies that are too old come to nothing
    replies
        how many clients' work makes one round of the records; None for `concurrency`
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
        """How many of the clients are at work at once; `cohort` is None for everyone."""
        wanted = cohort if self.concurrency is None else self.concurrency
        return clients if wanted is None else min(wanted, clients)

    def delay(self, at_once: int, buffer: int) -> int:
        """The bound on delays: the one to be enforced, or the least there is.

        One that cannot be kept is refused.
        """
        least = math.ceil((at_once - 1) / buffer)
        if self.max_delay is None:
            return least
        require(
            self.max_delay >= least or self.stale == "discard",
            f"AsTheyArrive's max_delay is {self.max_delay}, but with {at_once} clients at work at "
            f"once and {buffer} to an update some reply is {least} updates old: allow that, or "
            f"fewer clients at once.",
        )
        return self.max_delay


PACES: dict[str, type[Pace]] = {
    "all": WaitForAll,
    "deadline": Deadline,
    "first": FirstToRespond,
    "asynchronous": AsTheyArrive,
}


def word_of(pace: Pace) -> str:
    """The word for a pace in an experiment file."""
    return next(word for word, kind in PACES.items() if kind is type(pace))
