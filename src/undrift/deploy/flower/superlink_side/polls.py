"""Answers a site that asks for a request when there is one, rather than at once.

A site can only ask: the server cannot reach it. If many sites ask every other second, most of a
SuperLink's time goes into saying that there is nothing. Here such a question waits, at no cost,
until a request for the site is there or some seconds have passed; so a request also reaches its
site sooner.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from undrift.deploy.flower.superlink_side.deliveries import Deliveries

PATH = "/v1/fleet/pull-messages"
"""Where sites ask for a request."""
HOLD_SECONDS = 10.0
"""How long a question waits; Flower's SuperNode gives up after thirty."""
ASK_FLOWER_SECONDS = 20.0
"""How often a site's question reaches Flower, which knows whether the site was unregistered."""
MAX_SITES = 10_000
"""How many sites are remembered: whoever has a key can ask in the name of any number of nodes."""
NOTHING = b""
"""A reply without a request, as Flower writes it."""


class Polls:
    """Holds the questions of sites for which there is no request.

    Parameters
    ----------
    deliveries
        knows for which node there is a request
    hold_seconds
        how long a question waits
    clock
        seconds that only increase
    """

    def __init__(
        self,
        deliveries: Deliveries,
        hold_seconds: float = HOLD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._deliveries = deliveries
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: defaultdict[int, set[asyncio.Event]] = defaultdict(set)
        self._asked_flower: dict[int, float] = {}
        """when a question of each node reached Flower for the last time"""
        deliveries.on_ready = self._wake

    async def answer(self, body: bytes) -> bytes | None:
        """The reply to a question; None if Flower is to reply."""
        node = _node(body)
        if node is None or self._asks_flower(node):
            return None
        await self._hold(node)
        return None if self._deliveries.ready(node) else NOTHING

    def _asks_flower(self, node: int) -> bool:
        now = self._clock()
        due = now - self._asked_flower.get(node, float("-inf")) >= ASK_FLOWER_SECONDS
        if due:
            if len(self._asked_flower) >= MAX_SITES:
                self._asked_flower.clear()
            self._asked_flower[node] = now
        return due or self._deliveries.ready(node)

    async def _hold(self, node: int) -> None:
        """Wait until there is a request for a node, but not for longer than `hold_seconds`."""
        self._loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        self._waiting[node].add(woken)
        try:
            if not self._deliveries.ready(node):  # it may have come just before
                await asyncio.wait_for(woken.wait(), self._hold_seconds)
        except TimeoutError:
            pass
        finally:
            self._waiting[node].discard(woken)
            if not self._waiting[node]:
                del self._waiting[node]

    def _wake(self, node: int) -> None:
        """Have the questions of a node answered; called in any thread."""

        def wake() -> None:
            for woken in self._waiting.get(node, ()):
                woken.set()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(wake)


def _node(body: bytes) -> int | None:
    """The node that asks; None if the question is malformed."""
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        question: Any = PullMessagesRequest.FromString(body)
    except DecodeError:
        return None
    return int(question.node.node_id)
