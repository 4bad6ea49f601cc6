"""The messages between the server and its clients: assignments out, replies back.

Loops make assignments, engines (or real sites) answer each with a reply.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.problem import Client, Download, Keep, Named, Upload, Work
from undrift.core.unformed import UnformedRows

LAST = "@last"
"""Name of a client's last model in its state, if last models are tracked. No method can keep a
value of this name: names that start with "@" are the library's."""
PERSONAL = "@personal"
"""Name of a client's personal parameters in its state, if the model has any. They never travel."""
COHORT = "@cohort"
"""Name of a client's new model in its upload, if the mean of the cohort's models is tracked."""
CHANGE = "@change"
"""Name of a client's new model minus its last one in its upload, if last models are tracked."""


@dataclass(frozen=True)
class TrackedModels:
    """Which models a run tracks besides the server's."""

    cohort: bool = False
    """the mean of the cohort's models"""
    last: bool = False
    """the last model of every client"""

    @staticmethod
    def of(models: Collection[str], own_model: str | None) -> TrackedModels:
        """What the evaluation of `models` needs; `own_model` is the one that a method keeps."""
        last = "all" in models or ("own" in models and own_model is None)
        return TrackedModels("cohort" in models, last)


@dataclass(frozen=True)
class Assignment:
    """One client's work of a round, with the download and the model's buffers."""

    client: Client
    work: Work
    download: Download
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Reply:
    """What one client sent back, its new state, and the cost of its work.

    The vectorised engine also uses it for several clients: then values are stacked, `[C, …]`, and
    counts are sums.
    """

    client: Client
    upload: Upload
    keep: Keep
    """the client's new state; the loop stores it if it accepts the reply"""
    buffers: dict[str, Tensor]
    """the buffers of the client's model after its work"""
    steps: int
    evaluations: int
    """gradients of single samples that were computed"""
    complete: int
    """whether the client did all its steps; for several clients, how many of them did"""
    down: Mapping[str, int]
    up: Mapping[str, int]
    """bytes received and sent, by tensor"""
    wrong: str | None = None
    """why the reply cannot be used; None for a usable reply"""


def bytes_of(values: Named) -> dict[str, int]:
    """The bytes of each value on the way: vectors in their own type, numbers in 8 bytes."""

    def size(value: object) -> int:
        if isinstance(value, UnformedRows):
            value = value.center  # of the shape and type of every row
        if isinstance(value, Tensor) and value.numel() > 1:
            return value.numel() * value.element_size()
        return 8

    return {name: size(value) for name, value in values.items()}


def damaged(upload: Upload) -> Upload:
    """The upload as a damaged device sends it: every value is NaN."""
    return upload.replace(
        **{
            name: torch.full_like(value, torch.nan)
            if isinstance(value, Tensor) and value.is_floating_point()
            else float("nan")
            for name, value in upload.items()
        }
    )


def buffer_bytes(buffers: Mapping[str, Tensor]) -> dict[str, int]:
    """The bytes of the model's buffers, which travel down and up; empty if there are none."""
    total = sum(value.numel() * value.element_size() for value in buffers.values())
    return {"buffers": total} if total else {}
