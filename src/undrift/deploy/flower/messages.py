"""Packs undrift's bytes into Flower's messages, and unpacks them."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict

RECORD_NAME = "undrift"
ARRAY_TYPE = "undrift.safetensors"


def request_message(data: bytes, node: int, seconds: float) -> Message:
    """A request to a node, to be answered within `seconds`."""
    return Message(_content(data), node, "query", ttl=seconds)


def answer_message(data: bytes, request: Message) -> Message:
    """The answer to a request."""
    return Message(_content(data), reply_to=request)


def payload(message: Message) -> bytes:
    """The bytes in a message; empty if undrift did not send it."""
    try:
        record: Any = message.content.array_records[RECORD_NAME]
        data = record[RECORD_NAME].data
    except (AttributeError, KeyError, TypeError, ValueError):
        return b""
    return bytes(data)


def _content(data: bytes) -> RecordDict:
    # Opaque bytes, sent as an Array because Flower splits arrays into chunks.
    array = Array("uint8", (len(data),), ARRAY_TYPE, data)
    return RecordDict({RECORD_NAME: ArrayRecord({RECORD_NAME: array})})
