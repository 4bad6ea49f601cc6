"""Sends heartbeats to Flower while a task is worked on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

HEARTBEAT_SECONDS = 20.0
"""The time between two heartbeats; Flower gives up a task after a minute without one."""
JOIN_SECONDS = 2.0
"""How long to wait at the end for a heartbeat that is being sent."""


@contextmanager
def heartbeats(client: Any) -> Iterator[None]:
    """Send heartbeats for a client's task until the context ends.

    Flower's own sender interrupts the process when the task is over. This one ignores every
    failure: the next request that matters will find that the task is over.
    """
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    ended = threading.Event()

    def send() -> None:
        while not ended.is_set():
            with suppress(Exception):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            ended.wait(HEARTBEAT_SECONDS)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(JOIN_SECONDS)
