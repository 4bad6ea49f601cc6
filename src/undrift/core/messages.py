"""The messages between the server and its clients: assignments out, replies back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.problem import Client, Download, Keep, Named, Upload, Work

LAST = "@last"
"""The name under which a client's last model is kept, when it is watched."""
COHORT, CHANGE = "@cohort", "@change"


@dataclass(frozen=True)
class TrackedModels:
    """Which models are followed besides the server's."""

    cohort: bool = False
    """the mean of the cohort's models"""
    last: bool = False
    """the last model of every client"""


@dataclass(frozen=True)
class Assignment:
    """A client's work, with what was sent to it."""

    client: Client
    work: Work
    download: Download
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Reply:
    """What one client sent back, and what its work came to."""

    client: Client
    upload: Upload
    keep: Keep
    """its new state, to be stored when the reply is accepted"""
    buffers: dict[str, Tensor]
    steps: int
    evaluations: int
    complete: int
    """whether all of it was done, or how many clients of several did all"""
    down: Mapping[str, int]
    up: Mapping[str, int]
    """bytes, by tensor"""
    wrong: str | None = None
    """why it cannot be used"""


def bytes_of(values: Named) -> dict[str, int]:
    """The size of what travels, by name: vectors as they are, numbers in eight bytes."""
    return {
        name: value.numel() * value.element_size()
        if isinstance(value, Tensor) and value.numel() > 1
        else 8
        for name, value in values.items()
    }


def damaged(upload: Upload) -> Upload:
    """What arrives of an upload that a device damaged."""
    return upload.replace(
        **{
            name: torch.full_like(value, torch.nan)
            if isinstance(value, Tensor) and value.is_floating_point()
            else float("nan")
            for name, value in upload.items()
        }
    )


def statistics(buffers: Mapping[str, Tensor]) -> dict[str, int]:
    """The bytes of the model's buffers, which travel both ways."""
    total = sum(value.numel() * value.element_size() for value in buffers.values())
    return {"buffers": total} if total else {}
