"""Flower's messages around our bytes."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict

NAME = "undrift"
KIND = "undrift.safetensors"


def letter(data: bytes, node: int, seconds: float) -> Message:
    """A request to a node."""
    return Message(_content(data), node, "query", ttl=seconds)


def reply(data: bytes, to: Message) -> Message:
    """The answer to a request."""
    return Message(_content(data), reply_to=to)


def opened(message: Message) -> bytes:
    """The bytes in a message; none where it is not one of ours."""
    try:
        record: Any = message.content.array_records[NAME]
        data = record[NAME].data
    except (AttributeError, KeyError, TypeError, ValueError):
        return b""
    return bytes(data)


def _content(data: bytes) -> RecordDict:
    # As an array, which Flower cuts into pieces; that it is none is nobody's concern on the way.
    return RecordDict({NAME: ArrayRecord({NAME: Array("uint8", (len(data),), KIND, data)})})
