"""The transport over Flower: requests and answers as Flower's messages."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from undrift.deploy.flower.answers import AnswerPoller
from undrift.deploy.flower.messages import request_message
from undrift.deploy.protocol import IDENTIFY, OVERHEAD_BYTES
from undrift.deploy.transport import Answer, Transport
from undrift.deploy.wire_format import InvalidMessage, decode, encode
from undrift.utils.errors import UndriftError, first_line

POLL_SECONDS = 0.25
"""How often the SuperLink is asked for the answers to all open requests."""
NODES_FRESH_SECONDS = 0.5
"""How long the list of connected nodes is used before it is fetched again."""
IDENTIFY_SECONDS = 30.0
"""How long a node may take to say which site it is."""
IDENTIFY_AGAIN_SECONDS = 2.0
"""When a node that gave no valid name is asked again."""
EXTRA_SECONDS = 5.0
"""How much longer than the site's own limit an answer is waited for."""
FORGET_NODE_SECONDS = 600.0
"""How long a node that disconnected is remembered."""


@dataclass
class _Node:
    site: str | None = None
    """the name of its site, once it is known"""
    ticket: str = ""
    """of the open request for its name; empty if there is none"""
    ask_after: float = 0.0
    """when it may be asked for its name (again)"""
    last_seen: float = 0.0


class FlowerTransport(Transport):
    """Carries requests and answers over a Flower grid.

    With certificates, a node is identified by the name under which its key was registered. Without,
    it is asked for its name.

    Parameters
    ----------
    grid
        connected, with a run
    revoke
        has the SuperLink refuse the key of a site
    """

    def __init__(self, grid: Any, revoke: Callable[[str], None] = lambda site: None):
        self._grid = grid
        self._revoke = revoke
        self._poller = AnswerPoller(grid, POLL_SECONDS)
        self._answers = self._poller.answers
        self._open: set[str] = set()
        """tickets whose answer is wanted"""
        self._nodes: dict[int, _Node] = {}
        self._node_of: dict[str, int] = {}
        """the node of each connected site"""
        self._nodes_fetched = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._poller.stop()

    def sites(self) -> Collection[str]:
        if time.monotonic() - self._nodes_fetched > NODES_FRESH_SECONDS:
            self._fetch_nodes()
            self._nodes_fetched = time.monotonic()
        return self._node_of.keys()

    def send(self, site: str, request: bytes, seconds: float, max_bytes: int) -> str:
        self.sites()
        node = self._node_of.get(site)
        if node is None:
            return self._fail("away", site)
        return self._send(node, request, seconds, max_bytes)

    def next(self, seconds: float) -> Answer | None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            lost = self._poller.connection_error
            if lost is not None:
                raise _connection_lost(lost) from lost
            try:
                answer = self._answers.get(timeout=min(left, 0.5))
            except queue.Empty:
                continue
            if answer.ticket in self._open and not self._identifies_node(answer):
                self._open.discard(answer.ticket)
                return answer
        return None

    def forget(self, ticket: str) -> None:
        self._open.discard(ticket)
        self._poller.forget(ticket)

    def revoke(self, site: str) -> None:
        self._revoke(site)

    # Nodes

    def _fetch_nodes(self) -> None:
        """Fetch the connected nodes, and ask those without a known name for it."""
        self._take_names()
        connected = {}
        with _connection():
            nodes = self._grid.get_nodes()
        for info in nodes:
            node = self._nodes.setdefault(info.node_id, _Node())
            node.last_seen = time.monotonic()
            if info.public_key and info.name:
                node.site = info.name
            elif node.site is None and not node.ticket and time.monotonic() > node.ask_after:
                request = encode({"kind": IDENTIFY}, {})
                node.ticket = self._send(info.node_id, request, IDENTIFY_SECONDS, OVERHEAD_BYTES)
            if node.site is not None:
                connected[info.node_id] = (node.site, str(info.last_activated_at))
        # If two nodes have the name of one site, the one that connected last wins: the other is
        # most likely the site's previous process, which Flower has not given up yet.
        by_age = sorted(connected.items(), key=lambda each: each[1][1])
        self._node_of = {site: node for node, (site, _) in by_age}
        self._forget_old_nodes()

    def _forget_old_nodes(self) -> None:
        oldest = time.monotonic() - FORGET_NODE_SECONDS
        for id in [id for id, node in self._nodes.items() if node.last_seen < oldest]:
            self.forget(self._nodes.pop(id).ticket)

    def _take_names(self) -> None:
        """Take the names of nodes out of the answers that have arrived, and leave the others."""
        others = []
        while True:
            try:
                answer = self._answers.get_nowait()
            except queue.Empty:
                break
            if not self._identifies_node(answer):
                others.append(answer)
        for answer in others:
            self._answers.put(answer)

    def _identifies_node(self, answer: Answer) -> bool:
        """Whether an answer belongs to a request for a node's name, which it then sets."""
        for node in self._nodes.values():
            if node.ticket == answer.ticket:
                self.forget(answer.ticket)
                node.ticket, node.ask_after = "", time.monotonic() + IDENTIFY_AGAIN_SECONDS
                try:
                    values, _ = decode(answer.data, OVERHEAD_BYTES)
                    node.site = str(values["site"])[:100]
                except (InvalidMessage, KeyError):
                    pass  # it will be asked again
                self._nodes_fetched = float("-inf")
                return True
        return False

    # Messages

    def _send(self, node: int, request: bytes, seconds: float, max_bytes: int) -> str:
        with _connection():
            message = request_message(request, node, max(seconds, 1.0), max_bytes)
            (ticket,) = self._grid.push_messages([message])
        if not ticket:
            return self._fail("gone", node)
        self._open.add(ticket)
        self._poller.wait_for(ticket, time.monotonic() + seconds + EXTRA_SECONDS, max_bytes)
        return ticket

    def _fail(self, failure: str, recipient: object) -> str:
        """The ticket of a request that could not be sent; its answer is the failure."""
        ticket = f"{failure} {recipient} {time.monotonic_ns()}"
        self._open.add(ticket)
        self._answers.put(Answer(ticket, failure=failure))
        return ticket


@contextmanager
def _connection() -> Iterator[None]:
    """Turn the errors of a lost connection into one sentence."""
    import httpx

    try:
        yield
    except (ConnectionError, httpx.HTTPError) as error:
        raise _connection_lost(error) from error


def _connection_lost(error: BaseException) -> UndriftError:
    return UndriftError(
        f"The connection to the SuperLink is lost ({first_line(error)}); undrift resume continues "
        f"from the last committed round."
    )
