"""Packs undrift's bytes into Flower's messages, and unpacks them."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

RECORD_NAME = "undrift"
ARRAY_TYPE = "undrift.safetensors"
MAX_RECORD_BYTES = 4 * 2**20
"""The most bytes that travel as one part. Every part of a message is a request of its own."""


def request_message(data: bytes, node: int, seconds: float, max_bytes: int) -> Message:
    """A request to a node, to be answered within `seconds` and with at most `max_bytes`."""
    # The SuperLink reads the size from the group: Flower itself does nothing with it.
    return Message(_content(data), node, "query", ttl=seconds, group_id=str(max_bytes))


def answer_message(data: bytes, request: Message) -> Message:
    """The answer to a request.

    It has the request's date. With one of this machine's clock, the SuperLink would drop it if that
    clock were ahead of the server's.
    """
    answer = Message(_content(data), reply_to=request)
    answer.metadata.__dict__["_created_at"] = request.metadata.created_at
    answer.metadata.__dict__["_ttl"] = request.metadata.ttl
    return answer


def payload(message: Message) -> bytes:
    """The bytes in a message; empty if undrift did not send it."""
    try:
        record: Any = message.content[RECORD_NAME]
        value: Any = record[RECORD_NAME]
        return bytes(value if isinstance(value, bytes) else value.data)
    except (AttributeError, KeyError, TypeError, ValueError):
        return b""


def _content(data: bytes) -> RecordDict:
    if len(data) <= MAX_RECORD_BYTES:
        return RecordDict({RECORD_NAME: ConfigRecord({RECORD_NAME: data})})
    # Opaque bytes, sent as an Array because Flower splits arrays into chunks.
    array = Array("uint8", (len(data),), ARRAY_TYPE, data)
    return RecordDict({RECORD_NAME: ArrayRecord({RECORD_NAME: array})})
