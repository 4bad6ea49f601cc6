"""Telling Flower that somebody works on a task."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SECONDS = 20.0
"""Between two beats: Flower gives up on a task after a minute without one."""
LAST = 2.0
"""Seconds for which the end waits for a beat that is under way."""


@contextmanager
def beating(client: Any) -> Iterator[None]:
    """Say all the while that the client's task is worked on.

    Flower's own way interrupts the process when the task is over. Here nothing happens: that it is
    over, or that nobody is there, is found by the next request that matters.
    """
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    ended = threading.Event()

    def beat() -> None:
        while not ended.is_set():
            with suppress(Exception):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            ended.wait(SECONDS)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST)
