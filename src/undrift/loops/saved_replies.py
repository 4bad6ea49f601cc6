"""Turns replies that wait for the next fold into flat named values that a run store can keep.

The asynchronous loop uses it for its buffer and for replies computed ahead of their arrival. The
names are part of the format of run folders: changing one breaks resuming older runs.
"""

from __future__ import annotations

from typing import Any

from undrift.core.messages import Reply
from undrift.core.problem import Client, Keep, Upload


def pack_reply(reply: Reply, prefix: str) -> dict[str, Any]:
    """The reply as tensors and plain values, each name with the prefix before it."""
    values: dict[str, Any] = {
        "client": reply.client.id,
        "staleness": reply.client.staleness,
        "steps": reply.steps,
        "evaluations": reply.evaluations,
        "complete": reply.complete,
        "down": dict(reply.down),
        "up": dict(reply.up),
        "wrong": reply.wrong,
    }
    values |= {f"upload {name}": value for name, value in reply.upload.items()}
    values |= {f"keep {name}": value for name, value in reply.keep.items()}
    values |= {f"buffers {name}": value for name, value in reply.buffers.items()}
    return {prefix + name: value for name, value in values.items()}


def unpack_reply(values: dict[str, Any], client: Client) -> Reply:
    """The reply that `pack_reply` packed, given its values without the prefix."""
    return Reply(
        client=client,
        upload=Upload(**with_prefix("upload ", values)),
        keep=Keep(**with_prefix("keep ", values)),
        buffers=with_prefix("buffers ", values),
        steps=values["steps"],
        evaluations=values["evaluations"],
        complete=values["complete"],
        down=values["down"],
        up=values["up"],
        wrong=values["wrong"],
    )


def with_prefix(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values whose names start with the prefix, by their names without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
