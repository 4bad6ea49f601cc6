"""Requests and answers as Flower's messages, each waited for by itself."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from undrift.deploy.flower.answers import fetch
from undrift.deploy.flower.letters import letter
from undrift.deploy.payloads import Refused, decode, encode
from undrift.deploy.post import REFUSED, Arrival, Post
from undrift.deploy.protocol import SLACK, WHO
from undrift.utils.errors import UndriftError, first_line

POLL = 0.25
"""Seconds between two looks for an answer."""
FRESH = 0.5
"""For so many seconds it is taken for granted who is there."""
ASKED = 30.0
"""Seconds in which a node says which site it is."""
GONE = 600.0
"""Seconds after which a node that went away is a stranger."""


@dataclass
class _Node:
    site: str | None = None
    """its name, once it is known"""
    asked: str = ""
    """the ticket of the question who it is"""
    again: float = 0.0
    """when to ask again"""
    seen: float = 0.0
    """when it was there the last time"""


class FlowerPost(Post):
    """Carries what is said over a grid of Flower's.

    A node is known by the name its key was registered under, or else by what it says of itself.

    Parameters
    ----------
    grid
        connected, with a run
    """

    def __init__(self, grid: Any):
        self._grid = grid
        self._arrived: queue.Queue[Arrival] = queue.Queue()
        self._stop = threading.Event()
        self._open: set[str] = set()
        """tickets whose answer somebody waits for"""
        self._nodes: dict[int, _Node] = {}
        self._there: dict[str, int] = {}
        self._looked = float("-inf")
        self._broken: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()

    def sites(self) -> Collection[str]:
        if time.monotonic() - self._looked > FRESH:
            self._look()
            self._looked = time.monotonic()
        return self._there.keys()

    def send(self, site: str, request: bytes, seconds: float, most: int) -> str:
        self.sites()
        node = self._there.get(site)
        if node is None:
            return self._in_vain("away", site)
        return self._send(node, request, seconds, most)

    def next(self, seconds: float) -> Arrival | None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._broken is not None:
                raise _lost(self._broken) from self._broken
            try:
                arrival = self._arrived.get(timeout=min(left, 0.5))
            except queue.Empty:
                continue
            if arrival.ticket in self._open and not self._introduced(arrival):
                self._open.discard(arrival.ticket)
                return arrival
        return None

    def forget(self, ticket: str) -> None:
        self._open.discard(ticket)

    # Who is there

    def _look(self) -> None:
        """See which nodes are there, and ask those who they are that are not known yet."""
        self._take_introductions()
        present = {}
        with _connected():
            there = self._grid.get_nodes()
        for info in there:
            node = self._nodes.setdefault(info.node_id, _Node())
            node.seen = time.monotonic()
            if info.public_key and info.name:
                node.site = info.name
            elif node.site is None and not node.asked and time.monotonic() > node.again:
                node.asked = self._send(info.node_id, encode({"kind": WHO}, {}), ASKED, SLACK)
            if node.site is not None:
                present[info.node_id] = (node.site, str(info.last_activated_at))
        newest = sorted(present.items(), key=lambda each: each[1][1])
        self._there = {site: node for node, (site, _) in newest}  # of two, the one that came last
        self._drop_the_gone()

    def _drop_the_gone(self) -> None:
        before = time.monotonic() - GONE
        for number in [number for number, node in self._nodes.items() if node.seen < before]:
            self.forget(self._nodes.pop(number).asked)

    def _take_introductions(self) -> None:
        """What nodes said of themselves, among the answers that are there."""
        kept = []
        while True:
            try:
                arrival = self._arrived.get_nowait()
            except queue.Empty:
                break
            if not self._introduced(arrival):
                kept.append(arrival)
        for arrival in kept:
            self._arrived.put(arrival)

    def _introduced(self, arrival: Arrival) -> bool:
        """Whether an answer is that of a node that was asked who it is."""
        for node in self._nodes.values():
            if node.asked == arrival.ticket:
                self.forget(arrival.ticket)
                node.asked, node.again = "", time.monotonic() + 2
                try:
                    values, _ = decode(arrival.data, SLACK)
                    node.site = str(values["site"])[:100]
                except (Refused, KeyError):
                    pass  # it is asked again
                self._looked = float("-inf")
                return True
        return False

    # Messages

    def _send(self, node: int, request: bytes, seconds: float, most: int) -> str:
        with _connected():
            (ticket,) = self._grid.push_messages([letter(request, node, max(seconds, 1.0))])
        if not ticket:
            return self._in_vain("gone", node)
        self._open.add(ticket)
        ends = time.monotonic() + seconds + 5
        threading.Thread(target=self._await, args=(ticket, ends, most), daemon=True).start()
        return ticket

    def _in_vain(self, trouble: str, whom: object) -> str:
        """The ticket of a request that is not sent."""
        ticket = f"{trouble} {whom} {time.monotonic_ns()}"
        self._open.add(ticket)
        self._arrived.put(Arrival(ticket, trouble=trouble))
        return ticket

    def _await(self, ticket: str, ends: float, most: int) -> None:
        """Wait for one answer: an upload that takes long must not hold up another."""
        import httpx

        while not self._stop.wait(POLL) and ticket in self._open:
            if time.monotonic() > ends:
                self._arrived.put(Arrival(ticket, trouble="no answer"))
                return
            try:
                found = fetch(self._grid, ticket, most)
            except (ConnectionError, httpx.TransportError) as error:
                self._broken = error
                return
            except Exception as error:  # a malformed answer is one node's fault, not ours
                self._arrived.put(
                    Arrival(ticket, trouble=f"{REFUSED}: unreadable ({first_line(error)})")
                )
                return
            if found is not None:
                self._arrived.put(found)
                return


@contextmanager
def _connected() -> Iterator[None]:
    """Say in a sentence that the SuperLink is gone."""
    import httpx

    try:
        yield
    except (ConnectionError, httpx.HTTPError) as error:
        raise _lost(error) from error


def _lost(error: BaseException) -> UndriftError:
    return UndriftError(
        f"The connection to the SuperLink is lost ({first_line(error)}); "
        f"undrift resume goes on from the last round."
    )
