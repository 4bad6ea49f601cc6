"""Answers fetched from a SuperLink: never more bytes than were asked for, however packed.

Flower keeps what is sent by its content, so that one piece may stand in an answer many times: what
an answer would take is summed up before it is put together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from undrift.deploy.flower.letters import opened
from undrift.deploy.post import REFUSED, Arrival

FRAME = 100_000
"""Bytes of Flower's own around an answer."""
PIECE = 2**20
"""Flower cuts an answer into pieces of five times as many bytes; smaller ones are not expected."""
PIECES = 64
"""So many more there may be."""
TROUBLE = {3: "no answer", 4: "no answer", 5: "gone", 8: "its process died"}
"""What Flower's errors mean."""


class TooLarge(Exception):
    """An answer has more bytes than were asked for."""


def fetch(grid: Any, ticket: str, most: int) -> Arrival | None:
    """The answer to a request, if there is one by now."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    client, run = grid._runtime_client, grid._run.run_id
    found = client.PullMessages(PullAppMessagesRequest(message_ids=[ticket]))
    for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        if message.metadata.reply_to_message_id != ticket:
            continue
        name = message.metadata.message_id
        try:
            contents = _pulled(grid, client, run, tree, most)
        except ObjectPullError:
            return Arrival(ticket, trouble="no answer")
        except TooLarge:
            contents = None
        # From here on the SuperLink need not keep it.
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=name)
        )
        if contents is None:
            return Arrival(ticket, trouble=f"{REFUSED}: the answer is larger than {most} bytes")
        return _arrival(ticket, name, contents)
    return None


def _pulled(grid: Any, client: Any, run: int, tree: Any, most: int) -> dict[str, bytes]:
    """The parts of an answer, one after another until they are too many."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    names = []
    for part in iterate_object_tree(tree):
        names.append(part.object_id)
        if len(names) > PIECES + most // PIECE:
            raise TooLarge
    one = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
    pull = _bounded(one, most + FRAME)
    contents = pull_objects(list(dict.fromkeys(names)), pull, max_concurrent_pulls=1)
    if _inflated(contents) > most + FRAME:
        raise TooLarge
    return contents


def _bounded(pull: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    left = most

    def pulled(name: str) -> bytes:
        nonlocal left
        content = pull(name)
        left -= len(content)
        if left < 0:
            raise TooLarge
        return content

    return pulled


def _inflated(contents: Mapping[str, bytes]) -> int:
    """Bytes of all arrays, whose pieces may each be there many times."""
    from flwr.supercore.constant import HEAD_BODY_DIVIDER
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_head_values_from_object_content as head_of,
    )

    total = 0
    for content in contents.values():
        kind, pieces, _ = head_of(content)
        if kind == "Array":
            body = json.loads(content.partition(HEAD_BODY_DIVIDER)[2])
            sizes = [len(contents[piece]) for piece in pieces]
            total += sum(sizes[number] for number in body["arraychunk_ids"])
    return total


def _arrival(ticket: str, name: str, contents: dict[str, bytes]) -> Arrival:
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    message: Any = inflate_object_from_contents(name, contents)
    if message.has_error():
        code = message.error.code
        return Arrival(
            ticket, trouble=TROUBLE.get(code, f"failed: {str(message.error.reason)[:200]}")
        )
    return Arrival(ticket, opened(message))
