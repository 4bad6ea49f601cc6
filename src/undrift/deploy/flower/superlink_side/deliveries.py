"""Makes sure that a request reaches its site, and an answer the server, although replies get lost.

Flower hands out a message once: if the reply with it is lost, since a connection broke or a process
was too slow, nobody ever sees the message again. Here the reply is kept until it was confirmed, and
given once more if the same is asked for. Sites and the server recognise what they had already.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_TIMES = 5
"""How often a site is given a request that it does not confirm: it may be unable to take it."""
INCOMPLETE_SECONDS = 2.0
"""After which time the server learns of an answer whose parts have not all arrived."""
ASK_FLOWER_SECONDS = 2.0
"""How often Flower is asked about all open requests: only it knows which nodes are gone."""

Found = tuple[Any, Any]
"""An answer as Flower describes it: the message without its content, and the tree of its parts."""


@dataclass
class _Delivery:
    """A request of the server, and its answer, on their ways."""

    node: int
    expires: float
    missing: set[str]
    """the parts of the request that the server has not uploaded yet"""
    reply: Any = None
    """the reply with the request that the node was given"""
    times: int = 0
    """how often it was given that"""
    received: bool = False
    """whether the node has confirmed it"""
    announced: float | None = None
    """when the node announced its answer"""
    answer_missing: set[str] = field(default_factory=set)
    """the parts of the answer that the node has not uploaded yet"""
    found: Found | None = None
    """the answer as the server was given it"""


class Deliveries:
    """All requests whose answers the server has not fetched yet.

    Parameters
    ----------
    clock
        seconds that only increase
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.on_ready: Callable[[int], None] = lambda node: None
        """is told the node for which a request has become ready, in any thread"""
        self._clock = clock
        self._lock = threading.Lock()
        self._all: dict[str, _Delivery] = {}
        """by the id of the request"""
        self._of_node: defaultdict[int, set[str]] = defaultdict(set)
        """the requests of each node that it has not confirmed"""
        self._asked_flower = float("-inf")

    def __len__(self) -> int:
        return len(self._all)

    # Requests

    def sent(self, request: str, node: int, seconds: float, missing: Collection[str]) -> None:
        """Note a request that is valid for so many seconds; some parts follow."""
        with self._lock:
            if request in self._all:  # the server repeats it
                return
            self._remove_expired()
            self._all[request] = _Delivery(node, self._clock() + seconds, set(missing))
            self._of_node[node].add(request)
        if not missing:
            self.on_ready(node)

    def part_sent(self, part: str) -> None:
        """Note that the server has uploaded a part of a request."""
        ready = []
        with self._lock:
            for each in self._all.values():
                if part in each.missing:
                    each.missing.discard(part)
                    if not each.missing:
                        ready.append(each.node)
        for node in ready:
            self.on_ready(node)

    def ready(self, node: int) -> bool:
        """Whether there is a complete request for a node that it has not received."""
        with self._lock:
            return any(self._deliverable(self._all[id]) for id in self._of_node.get(node, ()))

    def unconfirmed(self, node: int) -> Any:
        """The reply that a node was given already but did not confirm; None if there is none."""
        with self._lock:
            for id in self._of_node.get(node, ()):
                each = self._all[id]
                if each.reply is not None and self._deliverable(each):
                    each.times += 1
                    return each.reply
        return None

    def given(self, request: str, reply: Any) -> None:
        """Note the reply with which a node is given a request."""
        with self._lock:
            if (each := self._all.get(request)) is not None:
                each.reply, each.times = reply, 1

    def received(self, request: str) -> None:
        """Note that a node has the request."""
        with self._lock:
            if (each := self._all.get(request)) is not None:
                each.received, each.reply = True, None
                self._forget_for_node(request, each)

    def _deliverable(self, each: _Delivery) -> bool:
        return not each.missing and each.times < MAX_TIMES and self._clock() < each.expires

    # Answers

    def announced(self, request: str, missing: Collection[str]) -> None:
        """Note that a node has announced its answer, of which some parts follow."""
        with self._lock:
            if (each := self._all.get(request)) is not None:
                each.announced, each.answer_missing = self._clock(), set(missing)

    def part_arrived(self, part: str) -> None:
        """Note that a node has uploaded a part of its answer."""
        with self._lock:
            for each in self._all.values():
                each.answer_missing.discard(part)

    def wanted(self, requests: Iterable[str]) -> tuple[list[Found], list[str]]:
        """The answers the server was given before but did not fetch, and what to ask Flower for.

        Until an answer is complete there is nothing to fetch, unless its site is slow.
        """
        now = self._clock()
        with self._lock:
            everything = now - self._asked_flower >= ASK_FLOWER_SECONDS
            if everything:
                self._asked_flower = now
            again, ask = [], []
            for id in requests:
                each = self._all.get(id)
                if each is not None and each.found is not None:
                    again.append(each.found)
                elif everything or each is None or self._worth_asking(each, now):
                    ask.append(id)
            return again, ask

    def found(self, request: str, answer: Found) -> None:
        """Note an answer with which the server is given its description."""
        with self._lock:
            if (each := self._all.get(request)) is not None:
                each.found = answer

    def fetched(self, answer: str) -> None:
        """Forget the request whose answer the server has."""
        with self._lock:
            for id, each in list(self._all.items()):
                if each.found is not None and each.found[0].metadata.message_id == answer:
                    self._remove(id)

    @staticmethod
    def _worth_asking(each: _Delivery, now: float) -> bool:
        if each.announced is None:
            return False
        return not each.answer_missing or now - each.announced > INCOMPLETE_SECONDS

    # Forgetting

    def _remove_expired(self) -> None:
        now = self._clock()
        for id in [id for id, each in self._all.items() if each.expires < now]:
            self._remove(id)

    def _remove(self, request: str) -> None:
        self._forget_for_node(request, self._all.pop(request))

    def _forget_for_node(self, request: str, each: _Delivery) -> None:
        waiting = self._of_node.get(each.node)
        if waiting is not None:
            waiting.discard(request)
            if not waiting:
                del self._of_node[each.node]


def track_deliveries(deliveries: Deliveries, fleet: Any, runtime: Any) -> None:
    """Have Flower's handlers of the sites and of the server note what they deliver.

    Parameters
    ----------
    fleet, runtime
        Flower's modules with the handlers for sites, and for the server of a run
    """
    _track_requests(deliveries, fleet, runtime)
    _track_answers(deliveries, fleet, runtime)


def _track_requests(deliveries: Deliveries, fleet: Any, runtime: Any) -> None:
    send, send_part = runtime.push_messages, runtime.push_object
    give, confirm = fleet.pull_messages, fleet.confirm_message_received

    def send_and_note(request: Any, state: Any, task: Any) -> Any:
        response = send(request, state, task)
        for message, id in zip(request.messages_list, response.message_ids, strict=True):
            about = message.metadata
            if id:
                parts = response.objects_to_push
                deliveries.sent(id, about.dst_node_id, about.ttl, parts)
        return response

    def send_part_and_note(request: Any, state: Any, task: Any) -> Any:
        response = send_part(request, state, task)
        deliveries.part_sent(request.object_id)
        return response

    def give_or_repeat(request: Any, state: Any, store: Any) -> Any:
        repeated = deliveries.unconfirmed(request.node.node_id)
        if repeated is not None:
            return repeated
        response = give(request=request, state=state, store=store)
        for message in response.messages_list:
            deliveries.given(message.metadata.message_id, response)
        return response

    def confirm_and_note(request: Any, state: Any, store: Any) -> Any:
        response = confirm(request=request, state=state, store=store)
        deliveries.received(request.message_object_id)
        return response

    runtime.push_messages, runtime.push_object = send_and_note, send_part_and_note
    fleet.pull_messages, fleet.confirm_message_received = give_or_repeat, confirm_and_note


def _track_answers(deliveries: Deliveries, fleet: Any, runtime: Any) -> None:
    announce, upload = fleet.push_messages, fleet.push_object
    find, confirm = runtime.pull_messages, runtime.confirm_message_received

    def announce_and_note(request: Any, state: Any) -> Any:
        response = announce(request=request, state=state)
        for message in request.messages_list:
            parts = response.objects_to_push
            deliveries.announced(message.metadata.reply_to_message_id, parts)
        return response

    def upload_and_note(request: Any, state: Any) -> Any:
        response = upload(request=request, state=state)
        deliveries.part_arrived(request.object_id)
        return response

    def find_or_repeat(request: Any, state: Any, task: Any) -> Any:
        again, ask = deliveries.wanted(request.message_ids)
        response = _find(find, ask, state, task)
        pairs = zip(response.messages_list, response.message_object_trees, strict=True)
        for message, tree in pairs:
            deliveries.found(message.metadata.reply_to_message_id, (message, tree))
        response.messages_list.extend(message for message, _ in again)
        response.message_object_trees.extend(tree for _, tree in again)
        return response

    def confirm_and_forget(request: Any, state: Any, task: Any) -> Any:
        response = confirm(request, state, task)
        deliveries.fetched(request.message_object_id)
        return response

    fleet.push_messages, fleet.push_object = announce_and_note, upload_and_note
    runtime.pull_messages, runtime.confirm_message_received = find_or_repeat, confirm_and_forget


def _find(find: Callable[..., Any], requests: Sequence[str], state: Any, task: Any) -> Any:
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse

    if not requests:
        return PullAppMessagesResponse()
    return find(PullAppMessagesRequest(message_ids=requests), state, task)
