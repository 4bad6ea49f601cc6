"""Fetches answers from a SuperLink without exceeding the number of bytes that was asked for.

One thread asks for the answers to all open requests at once; a few threads fetch those that have
begun to arrive. So the load on the SuperLink hardly depends on the number of sites, and a site that
uploads slowly delays no other.

Flower stores the parts of a message by their content, so one uploaded part may occur in an answer
many times. Therefore the size of the whole answer is computed before it is put together.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from undrift.deploy.flower.messages import payload
from undrift.deploy.transport import REFUSED, Answer
from undrift.utils.errors import first_line

FRAME_BYTES = 100_000
"""How many bytes Flower may add to an answer."""
MIN_CHUNK_BYTES = 2**20
"""The smallest chunks that are expected of a large answer; Flower's own have five times as many."""
EXTRA_PARTS = 64
"""How many parts an answer may have besides its chunks."""
NO_ANSWER = "no answer"
FAILURES = {3: NO_ANSWER, 4: NO_ANSWER, 5: "gone", 8: "its process died"}
"""What Flower's error codes mean."""
SHOWN_CHARACTERS = 200
"""A failure quotes at most this much of Flower's reason."""

FETCH_THREADS = 4
"""How many answers are fetched at the same time."""
MAX_TICKETS = 500
"""How many answers are asked for in one call of the SuperLink."""
MAX_UNREAD_BYTES = 256 * 2**20
"""Above this size of answers that the server has not read yet, no further ones are fetched."""
UNREAD_SECONDS = 0.05
"""How often a thread checks whether the server has read enough of them."""


class TooLarge(Exception):
    """An answer has more bytes than were asked for."""


class Arrival:
    """An answer that has begun to arrive at the SuperLink, fetched part by part.

    A site announces an answer before it uploads its parts, so a slow site's parts may be missing
    for minutes. `fetch` therefore never waits for them.

    Parameters
    ----------
    ticket
        of the request
    id
        of the answer
    tree
        Flower's description of its parts
    max_bytes
        the largest answer that is accepted
    """

    def __init__(self, ticket: str, id: str, tree: Any, max_bytes: int):
        self.ticket = ticket
        self._id = id
        self._tree = tree
        self._max_bytes = max_bytes
        self._missing: list[str] | None = None
        """the parts that were not fetched yet, the next one last; None before the first try"""
        self._parts: dict[str, bytes] = {}
        self._bytes_left = max_bytes + FRAME_BYTES

    def fetch(self, grid: Any) -> Answer | None:
        """Fetch the parts that are there; the answer if these are all, else None: try again."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

        client, run = grid._runtime_client, grid._run.run_id
        too_large = False
        try:
            if not self._fetch_parts(grid, client, run):
                return None
        except ObjectPullError:
            return Answer(self.ticket, failure=NO_ANSWER)
        except TooLarge:
            too_large = True
        # The SuperLink may delete it, even if it was too large: it is never fetched again.
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=self._id)
        )
        if too_large:
            failure = f"{REFUSED}: the answer is larger than {self._max_bytes} bytes"
            return Answer(self.ticket, failure=failure)
        return _assemble(self.ticket, self._id, self._parts)

    def _fetch_parts(self, grid: Any, client: Any, run: int) -> bool:
        """Whether all parts are here; raises `TooLarge` as soon as they are too many."""
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

        if self._missing is None:
            self._missing = self._part_ids()
        pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
        # One at a time: several at once could exceed the limit before it is noticed.
        while self._missing:
            try:
                content = pull(self._missing[-1])
            except ObjectUnavailableError:
                return False
            self._bytes_left -= len(content)
            if self._bytes_left < 0:
                raise TooLarge
            self._parts[self._missing.pop()] = content
        if _assembled_bytes(self._parts) > self._max_bytes + FRAME_BYTES:
            raise TooLarge
        return True

    def _part_ids(self) -> list[str]:
        """The ids of the parts, the first one last; raises `TooLarge` if they are too many."""
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        ids = []
        for part in iterate_object_tree(self._tree):
            ids.append(part.object_id)
            if len(ids) > EXTRA_PARTS + self._max_bytes // MIN_CHUNK_BYTES:
                raise TooLarge
        return list(dict.fromkeys(ids))[::-1]


def arrivals(grid: Any, wanted: Mapping[str, int]) -> list[Arrival]:
    """The answers to some requests that have begun to arrive, in one call of the SuperLink.

    The SuperLink names each answer once only.

    Parameters
    ----------
    grid
        connected, with a run
    wanted
        the largest number of bytes of each answer, by ticket
    """
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest

    found = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=list(wanted)))
    pairs = zip(found.messages_list, found.message_object_trees, strict=True)
    return [
        Arrival(ticket, message.metadata.message_id, tree, wanted[ticket])
        for message, tree in pairs
        if (ticket := message.metadata.reply_to_message_id) in wanted
    ]


def _assembled_bytes(parts: Mapping[str, bytes]) -> int:
    """The bytes of all arrays put together; a chunk counts as often as it occurs."""
    from flwr.supercore.constant import HEAD_BODY_DIVIDER
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_head_values_from_object_content as head_of,
    )

    total = 0
    for content in parts.values():
        kind, chunks, _ = head_of(content)
        if kind == "Array":
            body = json.loads(content.partition(HEAD_BODY_DIVIDER)[2])
            sizes = [len(parts[chunk]) for chunk in chunks]
            total += sum(sizes[number] for number in body["arraychunk_ids"])
    return total


def _assemble(ticket: str, id: str, parts: dict[str, bytes]) -> Answer:
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    message: Any = inflate_object_from_contents(id, parts)
    if message.has_error():
        reason = f"failed: {str(message.error.reason)[:SHOWN_CHARACTERS]}"
        return Answer(ticket, failure=FAILURES.get(message.error.code, reason))
    return Answer(ticket, payload(message))


class _AnswerQueue(queue.Queue[Answer]):
    """A queue that knows how many bytes are in it."""

    bytes = 0

    def _put(self, item: Answer) -> None:
        self.bytes += len(item.data)
        super()._put(item)

    def _get(self) -> Answer:
        item = super()._get()
        self.bytes -= len(item.data)
        return item


@dataclass
class _Request:
    ends: float
    """when its answer counts as lost, on the monotonic clock"""
    max_bytes: int
    arrival: Arrival | None = None
    """set when the answer has begun to arrive"""
    being_fetched: bool = False


class AnswerPoller:
    """Waits for the answers to all open requests, and puts them into `answers`.

    Parameters
    ----------
    grid
        connected, with a run
    poll_seconds
        how often the SuperLink is asked
    """

    def __init__(self, grid: Any, poll_seconds: float):
        self.answers = _AnswerQueue()
        self.connection_error: BaseException | None = None
        """set when the SuperLink cannot be reached any more; nothing arrives after that"""
        self._grid = grid
        self._poll_seconds = poll_seconds
        self._requests: dict[str, _Request] = {}
        """the open requests by ticket"""
        self._lock = threading.Lock()
        """guards `_requests`, which several threads change"""
        self._to_fetch: queue.SimpleQueue[str] = queue.SimpleQueue()
        """tickets of answers that have begun to arrive"""
        self._stop = threading.Event()
        self._started = False

    def wait_for(self, ticket: str, ends: float, max_bytes: int) -> None:
        """Wait for the answer to a request until `ends` on the monotonic clock."""
        with self._lock:
            self._requests[ticket] = _Request(ends, max_bytes)
        if not self._started:
            self._started = True
            for work in (self._poll, *[self._fetch] * FETCH_THREADS):
                # Daemons: a thread may hang in a request when the process ends.
                threading.Thread(target=work, daemon=True).start()

    def forget(self, ticket: str) -> None:
        """Wait no longer for an answer."""
        with self._lock:
            self._requests.pop(ticket, None)

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()

    def _poll(self) -> None:
        """Ask for all answers again and again; the one thread that does."""
        import httpx

        while not self._stop.wait(self._poll_seconds):
            try:
                self._expire()
                with self._lock:
                    asked = [
                        (t, each.max_bytes)
                        for t, each in self._requests.items()
                        if each.arrival is None
                    ]
                for first in range(0, len(asked), MAX_TICKETS):
                    self._ask(dict(asked[first : first + MAX_TICKETS]))
                self._fetch_those_that_wait()
            except (ConnectionError, httpx.TransportError) as error:
                self.connection_error = error
                return

    def _ask(self, wanted: dict[str, int]) -> None:
        """Ask for several answers; one whose description is malformed does not harm the others."""
        import httpx

        try:
            found = arrivals(self._grid, wanted)
        except (ConnectionError, httpx.TransportError):
            raise
        except Exception as error:
            if len(wanted) == 1:
                self._finish(_unreadable(next(iter(wanted)), error))
                return
            for ticket, max_bytes in wanted.items():
                self._ask({ticket: max_bytes})
            return
        with self._lock:
            for arrival in found:
                if arrival.ticket in self._requests:
                    self._requests[arrival.ticket].arrival = arrival

    def _fetch_those_that_wait(self) -> None:
        """Hand answers that have begun to arrive, or of which parts were missing, to the others."""
        with self._lock:
            for ticket, each in self._requests.items():
                if each.arrival is not None and not each.being_fetched:
                    each.being_fetched = True
                    self._to_fetch.put(ticket)

    def _expire(self) -> None:
        """Fail the requests whose time is over; an answer that is being fetched is in time."""
        now = time.monotonic()
        with self._lock:
            late = [t for t, r in self._requests.items() if now > r.ends and not r.being_fetched]
        for ticket in late:
            self._finish(Answer(ticket, failure=NO_ANSWER))

    def _fetch(self) -> None:
        """Fetch answers that have begun to arrive; several threads do."""
        import httpx

        while not self._stop.is_set():
            try:
                ticket = self._to_fetch.get(timeout=1.0)
            except queue.Empty:
                continue
            while self.answers.bytes > MAX_UNREAD_BYTES and not self._stop.wait(UNREAD_SECONDS):
                pass
            with self._lock:
                request = self._requests.get(ticket)
            if request is None or request.arrival is None:
                continue  # it was forgotten
            try:
                answer = request.arrival.fetch(self._grid)
            except (ConnectionError, httpx.TransportError) as error:
                self.connection_error = error
                return
            except Exception as error:  # a malformed answer must not end the server
                answer = _unreadable(ticket, error)
            if answer is not None:
                self._finish(answer)
            else:
                request.being_fetched = False  # the polling thread has it tried again

    def _finish(self, answer: Answer) -> None:
        self.forget(answer.ticket)
        self.answers.put(answer)


def _unreadable(ticket: str, error: Exception) -> Answer:
    return Answer(ticket, failure=f"{REFUSED}: unreadable ({first_line(error)})")
