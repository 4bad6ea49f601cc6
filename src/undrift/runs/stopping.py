"""Being asked to stop: Ctrl-C, or a signal to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def asked_to_stop(again: Callable[[], None] = lambda: None) -> Iterator[Callable[[], int]]:
    """How often the user has pressed Ctrl-C, or the process was told to end, within the block.

    From the second time on, `again` is called as well.
    """
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            again()

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, note)
        except ValueError:  # not in the main thread
            break
    try:
        yield lambda: len(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt() -> None:
    """End at once."""
    raise KeyboardInterrupt
