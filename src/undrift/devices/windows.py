"""Availability windows of clients on the virtual clock, with queries for one or all clients.

The event queue asks about single clients, often; `…_of` methods answer that without arrays.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Times = TypeVar("Times", float, np.ndarray)
"""Virtual times in seconds: a float for one client, an array for several."""
Span = tuple[float, float]
"""A window from its beginning (included) to its end (excluded), in seconds."""


class Windows(ABC):
    """The windows in which each client of a roster is available; k is an index in the roster."""

    always = False
    """whether all clients are always available"""

    @abstractmethod
    def available(self, t: float) -> np.ndarray:
        """A mask of the clients that are available at time t."""

    @abstractmethod
    def next(self, t: float) -> np.ndarray:
        """For every client the first time ≥ t at which it is available, or ∞."""

    @abstractmethod
    def until(self, who: int | np.ndarray, t: float) -> np.ndarray:
        """The ends, later than t, of the windows that contain t; `who` must be available at t."""

    def some_available(self, who: np.ndarray, t: float) -> np.ndarray:
        """`available(t)` of some clients."""
        return self.available(t)[who]

    def next_of_some(self, who: np.ndarray, t: float) -> np.ndarray:
        """`next(t)` of some clients."""
        return self.next(t)[who]

    @abstractmethod
    def until_of(self, k: int, t: float) -> float:
        """The end, later than t, of the window that contains t; client k must be available at t."""

    @abstractmethod
    def is_available(self, k: int, t: float) -> bool:
        """Whether client k is available at time t."""

    @abstractmethod
    def next_of(self, k: int, t: float) -> float:
        """The first time ≥ t at which client k is available, or ∞."""


class AlwaysWindows(Windows):
    """All clients are always available."""

    always = True

    def __init__(self, clients: int):
        self._clients = clients

    def available(self, t: float) -> np.ndarray:
        return np.ones(self._clients, dtype=bool)

    def next(self, t: float) -> np.ndarray:
        return np.full(self._clients, float(t))

    def until(self, who: int | np.ndarray, t: float) -> np.ndarray:
        return np.full(np.shape(who), math.inf)

    def until_of(self, k: int, t: float) -> float:
        return math.inf

    def is_available(self, k: int, t: float) -> bool:
        return True

    def next_of(self, k: int, t: float) -> float:
        return t


class DutyWindows(Windows):
    """Periodic windows: client k's begin at phase_k + m·period for integers m and last `width`."""

    def __init__(self, phases: np.ndarray, period: float, width: float):
        self._phases = phases
        self._own: list[float] = phases.tolist()
        self._period = period
        self._width = width

    def available(self, t: float) -> np.ndarray:
        return t < self._end(self._phases, t)

    def next(self, t: float) -> np.ndarray:
        following = _beginning(self._phases, self._period, t, ahead=1)
        return np.where(self.available(t), t, following)

    def some_available(self, who: np.ndarray, t: float) -> np.ndarray:
        return t < self._end(self._phases[who], t)

    def next_of_some(self, who: np.ndarray, t: float) -> np.ndarray:
        following = _beginning(self._phases[who], self._period, t, ahead=1)
        return np.where(self.some_available(who, t), t, following)

    def until(self, who: int | np.ndarray, t: float) -> np.ndarray:
        return self._end(self._phases[who], t)

    def until_of(self, k: int, t: float) -> float:
        begin = _beginning(self._own[k], self._period, t)
        return max(begin + self._width, math.nextafter(begin, math.inf))

    def is_available(self, k: int, t: float) -> bool:
        return t < self.until_of(k, t)

    def next_of(self, k: int, t: float) -> float:
        if self.is_available(k, t):
            return t
        return _beginning(self._own[k], self._period, t, ahead=1)

    def _end(self, phase: Times, t: float) -> Times:
        """The end of the last window that begins at or before t."""
        begin = _beginning(phase, self._period, t)
        return _after(begin, begin + self._width)


class ListedWindows(Windows):
    """The windows of a recorded trace, which may repeat.

    Parameters
    ----------
    spans
        the windows of each device, in chronological order and without overlap; if the trace
        repeats, within [0, repeat]
    device
        the index of each client's device
    repeat
        seconds after which the trace starts again; None if no client is available after its end
    """

    def __init__(
        self, spans: Sequence[Sequence[Span]], device: np.ndarray, repeat: float | None = None
    ):
        joined = [_joined(each, repeat) for each in spans]
        flat = [span for each in joined for span in each] + [(math.inf, math.inf)]
        self._begins, self._ends = np.array(flat).T
        """all windows, device by device, and one at ∞ so that an index past the end is valid"""
        offsets = np.cumsum([0, *map(len, joined)])
        self._first = offsets[:-1][device]
        self._stop = offsets[1:][device]
        self._repeat = repeat

    def available(self, t: float) -> np.ndarray:
        return self._available(slice(None), t)

    def next(self, t: float) -> np.ndarray:
        return self._next(slice(None), t)

    def some_available(self, who: np.ndarray, t: float) -> np.ndarray:
        return self._available(who, t)

    def next_of_some(self, who: np.ndarray, t: float) -> np.ndarray:
        return self._next(who, t)

    def _available(self, who: np.ndarray | slice, t: float) -> np.ndarray:
        last = self._last(t, who)
        return (last >= self._first[who]) & (t < self._end(last, self._turn(t)))

    def _next(self, who: np.ndarray | slice, t: float) -> np.ndarray:
        first, stop = self._first[who], self._stop[who]
        following = self._last(t, who) + 1
        begins = self._turn(t) + self._begins[following]
        again = np.full(len(begins), math.inf)
        if self._repeat is not None:
            some = first < stop
            again[some] = self._turn(t, ahead=1) + self._begins[first[some]]
        later = np.where(following < stop, begins, again)
        return np.where(self._available(who, t), t, later)

    def until(self, who: int | np.ndarray, t: float) -> np.ndarray:
        return self._end(self._last(t, who), self._turn(t))

    def until_of(self, k: int, t: float) -> float:
        return float(self._end(self._last_of(k, t), self._turn(t)))

    def is_available(self, k: int, t: float) -> bool:
        last = self._last_of(k, t)
        return bool(last >= self._first[k] and t < self._end(last, self._turn(t)))

    def next_of(self, k: int, t: float) -> float:
        if self.is_available(k, t):
            return t
        following = self._last_of(k, t) + 1
        if following < self._stop[k]:
            return float(self._turn(t) + self._begins[following])
        if self._repeat is None or self._first[k] == self._stop[k]:
            return math.inf
        return float(self._turn(t, ahead=1) + self._begins[self._first[k]])

    def _turn(self, t: float, ahead: int = 0) -> float:
        """The last time ≤ t at which the trace started, or the `ahead`-th start after it."""
        return 0.0 if self._repeat is None else _beginning(0.0, self._repeat, t, ahead)

    def _last(self, t: float, who: int | np.ndarray | slice = slice(None)) -> np.ndarray:
        """The index of each client's last window that begins at or before t, by bisection.

        It is one less than the index of the client's first window if none has begun.
        """
        turn = self._turn(t)
        low, high = self._first[who], self._stop[who]
        while (low < high).any():
            middle = (low + high) // 2
            begun = (low < high) & (turn + self._begins[middle] <= t)
            low, high = np.where(begun, middle + 1, low), np.where(begun, high, middle)
        return low - 1

    def _last_of(self, k: int, t: float) -> int:
        """The index that `_last` gives for client k."""
        turn = self._turn(t)
        first, stop = int(self._first[k]), int(self._stop[k])
        return bisect_right(self._begins, t, first, stop, key=lambda begin: turn + begin) - 1

    def _end(self, window: int | np.ndarray, turn: float) -> np.ndarray:
        return _after(turn + self._begins[window], turn + self._ends[window])


class MixedWindows(Windows):
    """Each client takes its windows from one of several objects, such as one per device class.

    Parameters
    ----------
    parts
        windows objects, each for all clients
    which
        the index of the object that applies to each client
    """

    def __init__(self, parts: Sequence[Windows], which: np.ndarray):
        self._parts = parts
        self._which = which
        self.always = all(part.always for part in parts)

    def available(self, t: float) -> np.ndarray:
        return self._picked([part.available(t) for part in self._parts], self._which)

    def next(self, t: float) -> np.ndarray:
        return self._picked([part.next(t) for part in self._parts], self._which)

    def some_available(self, who: np.ndarray, t: float) -> np.ndarray:
        found = [part.some_available(who, t) for part in self._parts]
        return self._picked(found, self._which[who])

    def next_of_some(self, who: np.ndarray, t: float) -> np.ndarray:
        found = [part.next_of_some(who, t) for part in self._parts]
        return self._picked(found, self._which[who])

    def until(self, who: int | np.ndarray, t: float) -> np.ndarray:
        return self._picked([part.until(who, t) for part in self._parts], self._which[who])

    def until_of(self, k: int, t: float) -> float:
        return self._parts[self._which[k]].until_of(k, t)

    def is_available(self, k: int, t: float) -> bool:
        return self._parts[self._which[k]].is_available(k, t)

    def next_of(self, k: int, t: float) -> float:
        return self._parts[self._which[k]].next_of(k, t)

    @staticmethod
    def _picked(values: list[np.ndarray], which: np.ndarray) -> np.ndarray:
        return np.take_along_axis(np.stack(values), which[None], axis=0)[0]


def _beginning(phase: Times, period: float, t: float, ahead: int = 0) -> Times:
    """The last time phase + m·period ≤ t with an integer m, or the one `ahead` periods later.

    The floating-point quotient may round to the wrong side of an integer, so m is corrected by
    comparing t with the beginnings themselves. Otherwise a client could be unavailable at the very
    time at which its window begins.
    """
    m = (t - phase) // period
    m = m - (phase + m * period > t)
    m = m + (phase + (m + 1) * period <= t)
    return phase + (m + ahead) * period


def _after(begin: Times, end: Times) -> Times:
    """The end of a window, at least the next float after its beginning if it rounds to nothing."""
    return np.maximum(end, np.nextafter(begin, math.inf))


def _joined(spans: Sequence[Span], repeat: float | None) -> list[Span]:
    """Windows with those that touch merged, also across the end of a trace that repeats."""
    joined: list[Span] = []
    for begin, end in spans:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    if repeat is not None and joined and joined[0][0] == 0 and joined[-1][1] == repeat:
        beyond = joined[0][1] + repeat if len(joined) > 1 else math.inf
        joined[-1] = (joined[-1][0], beyond)
    return joined
