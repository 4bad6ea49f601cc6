"""Requests and answers arrive although replies get lost, and sites wait for requests at no cost."""

import asyncio
from types import SimpleNamespace

import pytest

from undrift.deploy.flower.environment import configure_flower

pytest.importorskip("flwr", reason="the extra flower is not installed")
configure_flower()

from flwr.proto.fleet_pb2 import (  # noqa: E402
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import (  # noqa: E402
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node  # noqa: E402
from flwr.proto.runtime_pb2 import (  # noqa: E402
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)

from undrift.deploy.flower.superlink_side import polls  # noqa: E402
from undrift.deploy.flower.superlink_side.deliveries import (  # noqa: E402
    ASK_FLOWER_SECONDS,
    INCOMPLETE_SECONDS,
    MAX_TIMES,
    Deliveries,
    track_deliveries,
)
from undrift.deploy.flower.superlink_side.polls import Polls  # noqa: E402


class Link:
    """Flower's handlers as far as they hand out every message once, with deliveries around them."""

    def __init__(self):
        self.now = 0.0
        self.deliveries = Deliveries(lambda: self.now)
        self.waiting, self.answers = [], {}
        self.asked = []
        """the requests about whose answers Flower was asked"""
        self.fleet = SimpleNamespace(
            pull_messages=self._give,
            confirm_message_received=lambda request, state, store: None,
            push_messages=self._announce,
            push_object=lambda request, state: None,
        )
        self.runtime = SimpleNamespace(
            push_messages=self._send,
            push_object=lambda request, state, task: None,
            pull_messages=self._find,
            confirm_message_received=lambda request, state, task: None,
        )
        track_deliveries(self.deliveries, self.fleet, self.runtime)

    def _send(self, request, state, task):
        self.waiting += [message.metadata.message_id for message in request.messages_list]
        ids = [message.metadata.message_id for message in request.messages_list]
        return PushAppMessagesResponse(message_ids=ids, objects_to_push=["part 1", "part 2"])

    def _give(self, request, state, store):
        given = [self.waiting.pop(0)] if self.waiting else []
        found = [Message(metadata=Metadata(message_id=id)) for id in given]
        return PullMessagesResponse(messages_list=found)

    def _announce(self, request, state):
        (message,) = request.messages_list
        self.answers[message.metadata.reply_to_message_id] = message
        return PushMessagesResponse(objects_to_push=["answer part"])

    def _find(self, request, state, task):
        self.asked.append(list(request.message_ids))
        found = [self.answers.pop(id) for id in request.message_ids if id in self.answers]
        trees = [ObjectTree(object_id=message.metadata.message_id) for message in found]
        return PullAppMessagesResponse(messages_list=found, message_object_trees=trees)

    # What server and site do

    def send(self, id="order", node=7, seconds=60.0, parts=2):
        about = Metadata(message_id=id, dst_node_id=node, ttl=seconds)
        request = PushAppMessagesRequest(messages_list=[Message(metadata=about)])
        self.runtime.push_messages(request, None, None)
        for number in range(parts):
            request = PushObjectRequest(object_id=f"part {number + 1}")
            self.runtime.push_object(request, None, None)

    def receive(self, node=7):
        reply = self.fleet.pull_messages(question(node), None, None)
        return [message.metadata.message_id for message in reply.messages_list]

    def confirm(self, id="order"):
        request = ConfirmMessageReceivedRequest(message_object_id=id)
        self.fleet.confirm_message_received(request, None, None)

    def reply(self, to="order", id="answer", complete=True):
        about = Metadata(message_id=id, reply_to_message_id=to)
        request = PushMessagesRequest(messages_list=[Message(metadata=about)])
        self.fleet.push_messages(request, None)
        if complete:
            self.fleet.push_object(PushObjectRequest(object_id="answer part"), None)

    def find(self, *ids):
        request = PullAppMessagesRequest(message_ids=ids or ["order"])
        found = self.runtime.pull_messages(request, None, None)
        assert len(found.message_object_trees) == len(found.messages_list)
        return [message.metadata.message_id for message in found.messages_list]

    def fetch(self, id="answer"):
        request = ConfirmMessageReceivedRequest(message_object_id=id)
        self.runtime.confirm_message_received(request, None, None)


def question(node=7):
    return PullMessagesRequest(node=Node(node_id=node))


def test_a_request_whose_reply_was_lost_is_given_again_until_it_is_confirmed():
    link = Link()
    link.send()
    assert link.receive() == ["order"]
    assert link.receive(node=8) == []  # only to the node that it is for
    assert link.receive() == ["order"]
    link.confirm()
    assert link.receive() == []


def test_a_request_that_a_site_cannot_take_is_not_given_for_ever():
    link = Link()
    link.send()
    assert [link.receive() for _ in range(MAX_TIMES + 3)] == [["order"]] * MAX_TIMES + [[]] * 3
    assert not link.deliveries.ready(7)


def test_a_request_is_given_again_only_while_it_is_valid():
    link = Link()
    link.send(seconds=60)
    assert link.receive() == ["order"]
    link.now = 61.0
    assert link.receive() == []
    link.send("later")
    assert len(link.deliveries) == 1  # the other one is forgotten


def test_an_answer_whose_description_was_lost_is_named_again_until_it_is_fetched():
    link = Link()
    link.send()
    link.reply()
    assert link.find() == ["answer"]
    assert link.find() == ["answer"]
    link.fetch()
    assert link.find() == [] and len(link.deliveries) == 0


def test_flower_is_asked_only_about_answers_that_are_complete_or_slow():
    link = Link()
    link.send("order")
    link.find()
    assert link.asked == [["order"]]  # the first time about everything
    link.find()
    link.reply(complete=False)
    assert link.find() == [] and link.asked == [["order"]]
    link.now = INCOMPLETE_SECONDS + 0.1
    link.deliveries._asked_flower = link.now
    assert link.find() == ["answer"]  # its site is slow


def test_flower_is_asked_about_everything_now_and_then():
    """It alone knows that a node is gone."""
    link = Link()
    link.send()
    link.find()
    link.find()
    link.now = ASK_FLOWER_SECONDS
    link.find()
    assert link.asked == [["order"], ["order"]]


def ask(link, hold=60.0, body=None, during=lambda: None, refresh=False):
    """What is replied to a site's question, while something else happens."""
    held = Polls(link.deliveries, hold, lambda: link.now)
    if not refresh:
        held._asked_flower[7] = link.now

    async def run():
        reply = asyncio.ensure_future(
            held.answer(question().SerializeToString() if body is None else body)
        )
        await asyncio.sleep(0)  # the question waits now, if it does
        await asyncio.get_running_loop().run_in_executor(None, during)
        found = await asyncio.wait_for(reply, 60)
        assert not held._waiting
        return found

    return asyncio.run(run())


def test_a_question_waits_until_the_whole_request_is_there():
    link = Link()
    states = []

    def sends():
        link.send(parts=1)
        states.append(link.deliveries.ready(7))
        link.runtime.push_object(PushObjectRequest(object_id="part 2"), None, None)

    # It would wait for a minute: that this ends shows that it was woken. Flower is to reply.
    assert ask(link, during=sends) is None
    assert states == [False]


def test_a_question_for_which_there_is_nothing_is_answered_without_flower():
    assert ask(Link(), hold=0.01) == polls.NOTHING == PullMessagesResponse().SerializeToString()
    link = Link()
    link.send(node=8)
    assert ask(link, hold=0.01) == polls.NOTHING


def test_flower_replies_if_there_is_a_request_or_it_was_not_asked_for_long():
    link = Link()
    assert ask(link, refresh=True) is None
    assert ask(link, body=b"\xff") is None  # malformed: as before
    link.send()
    assert ask(link) is None
    link.receive()
    assert ask(link) is None  # not confirmed
    link.confirm()
    assert ask(link, hold=0.01) == polls.NOTHING


def test_the_nodes_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(polls, "MAX_SITES", 10)
    held = Polls(Deliveries())
    for node in range(100):
        assert held._asks_flower(node)
    assert len(held._asked_flower) <= 10
