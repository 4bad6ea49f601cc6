"""Keeps Flower's time-outs and a living server independent of jumps of the machine's clock.

Flower measures time-outs with the clock of the machine: one that jumps ahead, when it is set or
corrected, expires every task, node and message at once. So its modules get a clock that starts with
the machine's time and then only runs. All processes of a machine share it through its offset.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

OFFSET = "UNDRIFT_CLOCK_OFFSET"
"""The environment variable with the offset of the steady clock."""
CLOCK_TOLERANCE_SECONDS = 3600
"""How far the clocks of a site and the server may be apart. Sites sign the time of every request;
Flower's own limits are 305 seconds behind the server and 5 seconds ahead."""
STATES = (
    "flwr.server.utils.validator",
    "flwr.supercore.corestate.in_memory_corestate",
    "flwr.supercore.corestate.utils",
)
SUPERLINK_MODULES = (
    *STATES,
    "flwr.server.superlink.linkstate.in_memory_linkstate",
    "flwr.server.superlink.linkstate.sql_linkstate",
    "flwr.server.superlink.linkstate.utils",
    "flwr.supercore.corestate.sql_corestate",
)
"""Where a SuperLink decides what has expired."""
SUPERNODE_MODULES = (*STATES, "flwr.supernode.nodestate.in_memory_nodestate")
"""Where a SuperNode does."""
SERVER_MODULES = ("flwr.app.message.message", "flwr.superlink.grid.http_grid")
"""Where the server dates its requests, which the SuperLink compares with its own clock."""


def current_offset() -> float:
    """The difference in seconds between the machine's time and its monotonic clock."""
    return time.time() - time.monotonic()


def given_offset() -> float:
    """The offset that the process was started with, or the current one."""
    return float(os.environ.get(OFFSET) or current_offset())


def use_steady_clock(modules: Sequence[str], offset: float) -> None:
    """Replace the clock of some of Flower's modules by the steady one."""

    def now() -> datetime:
        return datetime.fromtimestamp(offset + time.monotonic(), UTC)

    for name in modules:
        module = import_module(name)
        module.now = now  # type: ignore[attr-defined]


def widen_clock_tolerance() -> None:
    """Let clocks of sites differ by an hour from the server's.

    What a site signs is the time alone: it protects nothing that TLS and the signatures of the
    requests and answers do not protect.
    """
    from flwr.superlink.routers.fleet import node_auth

    node_auth.SYSTEM_TIME_TOLERANCE = CLOCK_TOLERANCE_SECONDS


class LifeSign:
    """How long ago a file changed for the last time, by the monotonic clock.

    Parameters
    ----------
    file
        a living process touches it now and then
    clock
        seconds that only increase
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic):
        self._file = file
        self._clock = clock
        self._changed_at = clock()
        self._last_change: int | None = None

    def silent_seconds(self) -> float:
        """Seconds since the file was last seen to change; infinite if it is gone."""
        try:
            change = self._file.stat().st_mtime_ns
        except OSError:
            return float("inf")
        if change != self._last_change:
            self._last_change, self._changed_at = change, self._clock()
        return self._clock() - self._changed_at
