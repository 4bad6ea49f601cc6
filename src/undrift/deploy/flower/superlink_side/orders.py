"""What a site may store on its server: one answer to each request it was sent, and no more.

Flower stores whatever a node with a key uploads: any number of messages, in any node's name, with
parts of any size. This ledger, in the process of the SuperLink, knows every request that the server
has sent, to which node, and how large the answer may be. It replaces Flower's handlers of uploads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from undrift.deploy.flower.answers import EXTRA_PARTS, FRAME_BYTES, MIN_CHUNK_BYTES

RETRIES = 2
"""How often the parts of an answer may be uploaded: once, and again after a lost connection."""
KEPT_SECONDS = 60.0
"""How long an answer that the server does not fetch is kept after its time-out."""


class NotOrdered(Exception):
    """A node uploads what nobody asked it for."""


@dataclass
class Order:
    """A request that the server sent, and what its answer may still store."""

    node: int
    max_bytes: int
    """the largest answer"""
    expires: float
    """when nobody waits for the answer any more, by the ledger's clock"""
    left: int
    """the bytes that may still be uploaded"""
    answer: str = ""
    """the id of the answer, once it was announced"""
    sessions: list[str] = field(default_factory=list)


class Ledger:
    """The open requests of a server by their ids, with what each node may upload for them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._orders: dict[str, Order] = {}
        self._sessions: dict[str, Order] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def expect(self, request: str, node: int, max_bytes: int, seconds: float) -> None:
        """Note that a node was asked for an answer of at most `max_bytes`, within `seconds`."""
        expires = self._clock() + seconds + KEPT_SECONDS
        left = RETRIES * (max_bytes + FRAME_BYTES)
        with self._lock:
            self._orders[request] = Order(node, max_bytes, expires, left)

    def announce(self, node: int, sender: int, request: str, answer: str, parts: int) -> None:
        """Check that a node may answer a request with a message of so many parts."""
        with self._lock:
            order = self._orders.get(request)
            if order is None:
                raise NotOrdered("it answers no open request")
            if order.node != node or sender != node:
                raise NotOrdered("it answers a request to another node")
            if order.answer not in ("", answer):
                raise NotOrdered("it is a second answer")
            if parts > EXTRA_PARTS + order.max_bytes // MIN_CHUNK_BYTES:
                raise NotOrdered("it has too many parts")
            order.answer = answer

    def begin(self, request: str, session: str) -> None:
        """Note the session in which the parts of an announced answer are uploaded."""
        with self._lock:
            order = self._orders.get(request)
            if order is not None and session:
                order.sessions.append(session)
                self._sessions[session] = order

    def upload(self, node: int, session: str, number: int) -> None:
        """Check that a node may upload so many bytes in a session."""
        with self._lock:
            order = self._sessions.get(session)
            if order is None or order.node != node:
                raise NotOrdered("no answer was announced")
            if number > order.left:
                raise NotOrdered("the answer is larger than was asked for")
            order.left -= number

    def refund(self, session: str, number: int) -> None:
        """Take back an upload that failed: the site will repeat it."""
        with self._lock:
            if (order := self._sessions.get(session)) is not None:
                order.left += number

    def remove_expired(self) -> list[str]:
        """Forget the requests that nobody waits for; returns the answers that were not fetched."""
        now = self._clock()
        with self._lock:
            expired = [id for id, order in self._orders.items() if order.expires < now]
            return [answer for id in expired if (answer := self._remove(id))]

    def fetched(self, answer: str) -> None:
        """Forget the request whose answer the server has fetched."""
        with self._lock:
            for id in [id for id, order in self._orders.items() if order.answer == answer]:
                self._remove(id)

    def _remove(self, request: str) -> str:
        order = self._orders.pop(request)
        for session in order.sessions:
            self._sessions.pop(session, None)
        return order.answer


def guard_uploads(ledger: Ledger, fleet: Any, runtime: Any) -> None:
    """Have Flower's handlers of the sites and of the server ask the ledger first.

    Parameters
    ----------
    fleet, runtime
        Flower's modules with the handlers for sites, and for the server of a run
    """
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    send_requests, confirm = runtime.push_messages, runtime.confirm_message_received
    push_messages, push_object = fleet.push_messages, fleet.push_object

    def refused(node: int, why: NotOrdered) -> FlowerError:
        # The status 403 has an honest SuperNode drop the answer and go on.
        text = f"An upload of node {node} was refused: {why}."
        return FlowerError(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, text)

    def send_requests_and_note(request: Any, state: Any, task: Any) -> Any:
        for answer in ledger.remove_expired():
            state.object_store.delete(answer)
        for message in request.messages_list:
            about = message.metadata
            # The server writes the largest answer into the name of the message's group.
            most = int(about.group_id) if about.group_id.isdecimal() else 0
            ledger.expect(about.message_id, about.dst_node_id, most, about.ttl)
        return send_requests(request, state, task)

    def confirm_and_forget(request: Any, state: Any, task: Any) -> Any:
        ledger.fetched(request.message_object_id)
        return confirm(request, state, task)

    def push_ordered_messages(request: Any, state: Any) -> Any:
        node = request.node.node_id
        try:
            if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
                raise NotOrdered("it is not one message")
            about = request.messages_list[0].metadata
            parts = sum(1 for _ in iterate_object_tree(request.message_object_trees[0]))
            ordered = about.reply_to_message_id
            ledger.announce(node, about.src_node_id, ordered, about.message_id, parts)
        except NotOrdered as why:
            raise refused(node, why) from None
        response = push_messages(request=request, state=state)
        ledger.begin(ordered, response.session_id)
        return response

    def push_ordered_object(request: Any, state: Any) -> Any:
        node, number = request.node.node_id, len(request.object_content)
        try:
            ledger.upload(node, request.session_id, number)
        except NotOrdered as why:
            raise refused(node, why) from None
        try:
            return push_object(request=request, state=state)
        except BaseException:
            ledger.refund(request.session_id, number)
            raise

    runtime.push_messages = send_requests_and_note
    runtime.confirm_message_received = confirm_and_forget
    fleet.push_messages, fleet.push_object = push_ordered_messages, push_ordered_object
