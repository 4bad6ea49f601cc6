"""Where time goes: clocks at the seams between the parts of a program, for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from threading import local
from typing import Any


class Stopwatch:
    """Seconds by part: while one part is inside another, the outer one's clock stands still.

    Every thread has clocks of its own, and a thread that is in no part counts nothing.
    """

    def __init__(self) -> None:
        self._by_thread: list[dict[str, float]] = []
        self._own = _Clocks(self._by_thread)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block as a part."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str) -> None:
        """A part begins in this thread."""
        self._own.turn()
        self._own.within.append(name)

    def leave(self) -> None:
        """The part that began last in this thread is over."""
        self._own.turn()
        self._own.within.pop()

    def lap(self) -> dict[str, float]:
        """Seconds by part over all threads since the last time; none of them is in a part."""
        total: dict[str, float] = {}
        for seconds in self._by_thread:
            for name, spent in seconds.items():
                total[name] = total.get(name, 0.0) + spent
            seconds.clear()
        return total

    @contextmanager
    def at(self, owner: Any, name: str, part: str) -> Iterator[None]:
        """Count every call of a function of a module, a class or an instance, for the block."""
        with replaced(owner, name, self._clocked(getattr(owner, name), part)):
            yield

    def _clocked(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(function)
        def clocked(*arguments: Any, **named: Any) -> Any:
            self.enter(part)
            try:
                return function(*arguments, **named)
            finally:
                self.leave()

        return clocked


class _Clocks(local):
    """Those of one thread; `local` makes them anew in each."""

    def __init__(self, by_thread: list[dict[str, float]]) -> None:
        self.within: list[str] = []
        self._seconds: dict[str, float] = {}
        self._since = 0.0
        by_thread.append(self._seconds)

    def turn(self) -> None:
        """Count the time since the last turn."""
        now = time.perf_counter()
        if self.within:
            part = self.within[-1]
            self._seconds[part] = self._seconds.get(part, 0.0) + now - self._since
        self._since = now


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another attribute of a module, a class or an instance for the block."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def seconds_since_start() -> float:
    """How long this process has been there; where nobody says, how long it has computed."""
    try:
        told = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(told[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, AttributeError):  # not on Linux
        return time.process_time()
