"""Counts requests to stop (Ctrl-C, SIGTERM), so that a run can finish its round first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def count_stop_requests(again: Callable[[], None] = lambda: None) -> Iterator[Callable[[], int]]:
    """Gives a function that returns how often SIGINT or SIGTERM came since the block began.

    `again` is called with every request after the first. Outside the main thread, where Python
    allows no signal handlers, the signals keep their usual effect and the count stays 0.
    """
    requests: list[int] = []

    def count(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        if len(requests) > 1:
            again()

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, count)
        except ValueError:  # not in the main thread
            break
    try:
        yield lambda: len(requests)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt() -> None:
    """End at once, as Ctrl-C does by default."""
    raise KeyboardInterrupt
