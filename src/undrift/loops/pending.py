"""Replies that are not folded yet, as flat named values, so that a run can be kept."""

from __future__ import annotations

from typing import Any

from undrift.core.messages import Reply
from undrift.core.problem import Client, Keep, Upload


def packed(reply: Reply, prefix: str) -> dict[str, Any]:
    """A reply as named vectors and plain values."""
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


def unpacked(values: dict[str, Any], client: Client) -> Reply:
    """The reply of a client, from what `packed` gave, without the prefix."""
    return Reply(
        client=client,
        upload=Upload(**under("upload ", values)),
        keep=Keep(**under("keep ", values)),
        buffers=under("buffers ", values),
        steps=values["steps"],
        evaluations=values["evaluations"],
        complete=values["complete"],
        down=values["down"],
        up=values["up"],
        wrong=values["wrong"],
    )


def under(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }
