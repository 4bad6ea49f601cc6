"""Bounds the connections of a SuperLink on which no whole head of a request has arrived yet.

Nobody knows who is at their other end, and Flower's web server keeps each, with what was sent, for
as long as that end likes. Here such a connection is closed after a while, and the oldest one at
once when there are too many, so that strangers cannot use up memory and files, nor keep sites out.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0
"""How long the head of a request may take."""
MAX_WAITING = 256
"""How many connections may wait for a head at once, besides those of the sites."""
WAITING_EACH = 8
"""How many connections of each site may wait: Flower's SuperNode has at most four."""


def bounded_protocol(most: int, seconds: float = HEAD_SECONDS) -> type[H11Protocol]:
    """The class of uvicorn's connections, of which at most so many wait for a head at once."""
    waiting: dict[Bounded, asyncio.TimerHandle] = {}
    """in the order in which they began to wait"""

    class Bounded(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_answering():
                self._wait_no_more()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self._is_answering():
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait_no_more()
            super().connection_lost(exc)

        def _is_answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait(self) -> None:
            self._wait_no_more()
            if self.transport.is_closing():
                return
            waiting[self] = self.loop.call_later(seconds, self._give_up)
            while len(waiting) > most:
                next(iter(waiting))._give_up()

        def _wait_no_more(self) -> None:
            timer = waiting.pop(self, None)
            if timer is not None:
                timer.cancel()

        def _give_up(self) -> None:
            self._wait_no_more()
            # Not closed in an orderly way, for which the other end could take its time.
            self.transport.abort()

    return Bounded


def most_waiting(sites: int) -> int:
    """How many connections may wait for a head in a deployment with so many sites."""
    return MAX_WAITING + WAITING_EACH * sites


def allow_many_files() -> None:
    """Raise the number of files of this process to what the system allows.

    A connection whose TLS handshake is not complete counts as a file, but not as waiting.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
