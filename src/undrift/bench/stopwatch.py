"""A stopwatch that splits time by the part of a program that spends it.

`undrift bench --profile` and `undrift demo` put it around functions for a while.
"""

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
    """Counts seconds by part; the clock of an outer part stands still while an inner part runs.

    Every thread has its own clocks. A thread outside every part counts nothing.
    """

    def __init__(self) -> None:
        self._by_thread: list[dict[str, float]] = []
        self._own = _ThreadClocks(self._by_thread)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block as a part."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str) -> None:
        """Begin a part in this thread."""
        self._own.turn()
        self._own.within.append(name)

    def leave(self) -> None:
        """End the part that this thread began last."""
        self._own.turn()
        self._own.within.pop()

    def lap(self) -> dict[str, float]:
        """Return the seconds by part over all threads since the last lap.

        No thread may be inside a part meanwhile: its running clock would be lost.
        """
        total: dict[str, float] = {}
        for seconds in self._by_thread:
            for name, spent in seconds.items():
                total[name] = total.get(name, 0.0) + spent
            seconds.clear()
        return total

    @contextmanager
    def at(self, owner: Any, name: str, part: str) -> Iterator[None]:
        """Count every call of `owner.name` as a part, for the block.

        `owner` is a module, a class or an instance.
        """
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


class _ThreadClocks(local):
    """The clocks of one thread: `threading.local` runs `__init__` once in each thread."""

    def __init__(self, by_thread: list[dict[str, float]]) -> None:
        self.within: list[str] = []
        self._seconds: dict[str, float] = {}
        self._since = 0.0
        by_thread.append(self._seconds)

    def turn(self) -> None:
        """Add the time since the last turn to the innermost part."""
        now = time.perf_counter()
        if self.within:
            part = self.within[-1]
            self._seconds[part] = self._seconds.get(part, 0.0) + now - self._since
        self._since = now


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module, a class or an instance for the block."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:  # the attribute was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def seconds_since_start() -> float:
    """Return the age of this process in seconds; its CPU seconds where /proc does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, AttributeError):  # not on Linux
        return time.process_time()
