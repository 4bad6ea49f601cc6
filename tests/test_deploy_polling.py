"""Many sites at once: one call asks for all answers, and no answer waits for a slow or bad one."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from undrift.deploy.flower.environment import configure_flower

pytest.importorskip("flwr", reason="the extra flower is not installed")
configure_flower()

import httpx  # noqa: E402
from flwr.common.serde import message_to_proto  # noqa: E402
from flwr.proto.message_pb2 import PullObjectResponse  # noqa: E402
from flwr.proto.node_pb2 import Node as Whom  # noqa: E402
from flwr.proto.runtime_pb2 import PullAppMessagesResponse  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import (  # noqa: E402
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from undrift.deploy.flower import answers, transport  # noqa: E402
from undrift.deploy.flower.messages import answer_message  # noqa: E402
from undrift.deploy.flower.transport import FlowerTransport  # noqa: E402
from undrift.utils.errors import UndriftError  # noqa: E402

SITES = 40
BYTES = 3000


class Link:
    """A SuperLink as its clients see it, with sites that answer at once."""

    def __init__(self, sites=SITES):
        self.node = Whom(node_id=1)
        self._run = SimpleNamespace(run_id=7)
        self._runtime_client = self
        self.there = [
            SimpleNamespace(node_id=k + 2, public_key=b"k", name=f"s{k}", last_activated_at="")
            for k in range(sites)
        ]
        self.requests, self.contents, self.owner = {}, {}, {}
        self.asked = []  # the numbers of tickets of each call
        self.fetching, self.most_fetching = 0, 0
        self.missing, self.broken = set(), set()  # names of sites
        self.confirmed = 0
        self.lock = threading.Lock()

    def get_nodes(self):
        return self.there

    def push_messages(self, messages):
        (request,) = messages
        ticket = f"s{request.metadata.dst_node_id - 2} {request.object_id}"
        request.metadata.__dict__["_message_id"] = ticket
        self.requests[ticket] = request
        return [ticket]

    def PullMessages(self, request):
        tickets = list(request.message_ids)
        self.asked.append(len(tickets))
        if self.broken & {ticket.split()[0] for ticket in tickets}:
            raise ValueError("Invalid protobuf response payload")
        plain, trees = [], []
        for ticket in tickets:
            answer = answer_message(os.urandom(BYTES), self.requests[ticket])
            answer.metadata.__dict__["_message_id"] = answer.object_id
            for name, part in get_all_nested_objects(answer).items():
                self.contents[name], self.owner[name] = part.deflate(), ticket
            one = SimpleNamespace(metadata=answer.metadata)
            one.has_content, one.has_error = (lambda: False), (lambda: False)
            plain.append(message_to_proto(one))
            trees.append(get_object_tree(answer))
        return PullAppMessagesResponse(messages_list=plain, message_object_trees=trees)

    def PullObject(self, request):
        with self.lock:
            self.fetching += 1
            self.most_fetching = max(self.most_fetching, self.fetching)
        time.sleep(0.001)
        with self.lock:
            self.fetching -= 1
        there = self.owner[request.object_id].split()[0] not in self.missing
        content = bytes(self.contents[request.object_id]) if there else b""
        return PullObjectResponse(object_found=True, object_available=there, object_content=content)

    def ConfirmMessageReceived(self, request):
        with self.lock:
            self.confirmed += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(transport, "POLL_SECONDS", 0.05)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 7, raising=False)


def sent(carrier, sites=SITES, seconds=60):
    return [carrier.send(f"s{k}", b"?", seconds, BYTES + 1000) for k in range(sites)]


def received(carrier, number):
    found = {}
    while len(found) < number:
        answer = carrier.next(30)
        assert answer is not None
        assert answer.ticket not in found
        found[answer.ticket] = answer
    return found


def test_few_calls_and_few_threads_serve_many_sites():
    link = Link()
    before = set(threading.enumerate())
    with FlowerTransport(link) as carrier:
        tickets = sent(carrier)
        assert len(set(threading.enumerate()) - before) == 1 + answers.FETCH_THREADS
        found = received(carrier, SITES)
    assert set(found) == set(tickets)
    assert all(len(answer.data) == BYTES for answer in found.values())
    assert sum(link.asked) == SITES  # each answer was asked for once, after it had arrived
    assert link.most_fetching <= answers.FETCH_THREADS
    assert link.confirmed == SITES


def test_slow_uploads_delay_no_other_answer():
    link = Link()
    slow_sites = 2 * answers.FETCH_THREADS  # more than there are threads
    link.missing = {f"s{k}" for k in range(slow_sites)}
    with FlowerTransport(link) as carrier:
        slow = set(sent(carrier)[:slow_sites])
        found = received(carrier, SITES - len(slow))
        assert not slow & set(found)
        link.missing.clear()
        assert set(received(carrier, len(slow))) == slow


def test_an_upload_that_never_ends_is_lost_in_time(monkeypatch):
    monkeypatch.setattr(transport, "EXTRA_SECONDS", 0.2)
    link = Link(2)
    link.missing = {"s0"}
    with FlowerTransport(link) as carrier:
        first, second = (carrier.send(f"s{k}", b"?", 60 * k, BYTES + 1000) for k in range(2))
        found = received(carrier, 2)
    assert found[first].failure == "no answer"
    assert found[second].failure is None


def test_a_malformed_answer_harms_no_other():
    link = Link(5)
    link.broken = {"s2"}
    with FlowerTransport(link) as carrier:
        tickets = sent(carrier, 5)
        found = received(carrier, 5)
    assert "refused: unreadable (ValueError" in found[tickets[2]].failure
    assert [t for t in tickets if found[t].failure is not None] == [tickets[2]]


def test_no_more_is_fetched_than_the_server_reads(monkeypatch):
    monkeypatch.setattr(answers, "MAX_UNREAD_BYTES", 2 * BYTES)
    link = Link()
    with FlowerTransport(link) as carrier:
        sent(carrier)
        until = time.monotonic() + 10
        while carrier._answers.bytes <= 2 * BYTES and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.3)  # long enough to fetch all of them
        assert 2 * BYTES < carrier._answers.bytes <= (3 + answers.FETCH_THREADS) * BYTES
        assert len(received(carrier, SITES)) == SITES
        assert carrier._answers.bytes == 0


def test_a_connection_that_is_lost_while_fetching_is_said():
    def fails(request):
        raise httpx.ConnectError("refused")

    link = Link(1)
    link.PullObject = fails
    with FlowerTransport(link) as carrier:
        sent(carrier, 1)
        with pytest.raises(UndriftError, match="connection to the SuperLink is lost"):
            carrier.next(10)


def test_calls_for_very_many_answers_are_split(monkeypatch):
    monkeypatch.setattr(answers, "MAX_TICKETS", 15)
    link = Link()
    with FlowerTransport(link) as carrier:
        sent(carrier)
        received(carrier, SITES)
    assert max(link.asked) <= 15
