"""Fetches answers from a SuperLink without exceeding the number of bytes that was asked for.

Flower stores the parts of a message by their content, so one uploaded part may occur in an answer
many times. Therefore the size of the whole answer is computed before it is put together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from undrift.deploy.flower.messages import payload
from undrift.deploy.transport import REFUSED, Answer

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


class TooLarge(Exception):
    """An answer has more bytes than were asked for."""


def fetch_answer(grid: Any, ticket: str, max_bytes: int) -> Answer | None:
    """The answer to a request; None if it is not there yet."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    client, run = grid._runtime_client, grid._run.run_id
    found = client.PullMessages(PullAppMessagesRequest(message_ids=[ticket]))
    for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
        if message.metadata.reply_to_message_id != ticket:
            continue
        id = message.metadata.message_id
        try:
            parts = _pull_parts(grid, client, run, tree, max_bytes)
        except ObjectPullError:
            return Answer(ticket, failure=NO_ANSWER)
        except TooLarge:
            parts = None
        # The SuperLink may delete it, even if it was too large: it is never fetched again.
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=id)
        )
        if parts is None:
            failure = f"{REFUSED}: the answer is larger than {max_bytes} bytes"
            return Answer(ticket, failure=failure)
        return _assemble(ticket, id, parts)
    return None


def _pull_parts(grid: Any, client: Any, run: int, tree: Any, max_bytes: int) -> dict[str, bytes]:
    """The parts of an answer by id; raises `TooLarge` as soon as they are too many."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    ids = []
    for part in iterate_object_tree(tree):
        ids.append(part.object_id)
        if len(ids) > EXTRA_PARTS + max_bytes // MIN_CHUNK_BYTES:
            raise TooLarge
    pull_one = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
    pull = _with_byte_limit(pull_one, max_bytes + FRAME_BYTES)
    # One at a time: several at once could exceed the limit before it is noticed.
    parts = pull_objects(list(dict.fromkeys(ids)), pull, max_concurrent_pulls=1)
    if _assembled_bytes(parts) > max_bytes + FRAME_BYTES:
        raise TooLarge
    return parts


def _with_byte_limit(pull: Callable[[str], bytes], max_bytes: int) -> Callable[[str], bytes]:
    """`pull`, limited to this many bytes over all its calls."""
    left = max_bytes

    def limited(id: str) -> bytes:
        nonlocal left
        content = pull(id)
        left -= len(content)
        if left < 0:
            raise TooLarge
        return content

    return limited


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
