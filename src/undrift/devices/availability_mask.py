"""Which clients are available, kept up to date while the virtual clock moves on.

A round of a million clients asks for this mask, but few of them have come or gone since the last
round. The fleet keeps one mask and changes only their entries.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from undrift.devices.windows import Windows


@dataclass(order=True)
class _Changes:
    """Clients whose availability may change, in the order of the times at which it does."""

    time: float
    """the first of the times"""
    number: int
    """orders changes of the same time"""
    who: np.ndarray = field(compare=False)
    times: np.ndarray = field(compare=False)


class AvailabilityMask:
    """The mask of available clients at a time; asking for later and later times is cheap.

    Parameters
    ----------
    windows
        when each client is available
    gone_at
        the time at which each client leaves for good, or ∞
    """

    def __init__(self, windows: Windows, gone_at: np.ndarray):
        self._windows = windows
        self._gone_at = gone_at
        self._time = math.inf
        self._mask = np.empty(0, dtype=bool)
        self._queue: list[_Changes] = []
        self._numbered = 0

    def at(self, t: float) -> np.ndarray:
        """A mask of the clients that are available at time t; the caller may change it."""
        if t < self._time:  # the first call, or the clock was set back
            self._mask = self._windows.available(t) & (t < self._gone_at)
            self._queue = []
            self._expect(np.arange(len(self._mask)), t)
        else:
            due = self._due(t)
            if due:
                who = np.concatenate(due)
                self._mask[who] = self._windows.some_available(who, t) & (t < self._gone_at[who])
                self._expect(who, t)
        self._time = t
        return self._mask.copy()

    def _due(self, t: float) -> list[np.ndarray]:
        """Remove the clients whose time has come from the queue, and return them."""
        found = []
        while self._queue and self._queue[0].time <= t:
            first = self._queue[0]
            end = int(np.searchsorted(first.times, t, side="right"))
            found.append(first.who[:end])
            if end < len(first.who):
                rest = _Changes(
                    float(first.times[end]), first.number, first.who[end:], first.times[end:]
                )
                heapq.heapreplace(self._queue, rest)
            else:
                heapq.heappop(self._queue)
        return found

    def _expect(self, who: np.ndarray, t: float) -> None:
        """Queue the next times after t at which some clients come or go."""
        here = self._mask[who]
        times = np.empty(len(who))
        present, absent = who[here], who[~here]
        times[here] = np.minimum(self._windows.until(present, t), self._gone_at[present])
        following = self._windows.next_of_some(absent, t)
        # A client that is gone for good never comes back.
        times[~here] = np.where(following < self._gone_at[absent], following, math.inf)
        order = np.argsort(times, kind="stable")
        order = order[: int(np.searchsorted(times[order], math.inf))]
        if len(order):
            self._numbered += 1
            own = times[order]
            heapq.heappush(self._queue, _Changes(float(own[0]), self._numbered, who[order], own))
