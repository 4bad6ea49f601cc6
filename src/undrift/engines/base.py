"""What an engine does: a round's work of a cohort, added up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undrift.clients import ClientStates, Roster
from undrift.methods.base import Method
from undrift.problem import Download, Keep, Named, Upload
from undrift.replies import Replies
from undrift.sampling import Cohort
from undrift.solvers import Local

Limit = Callable[[Hashable, int], int | None]
"""How much a client manages in a round, in the unit of its local work (None: everything)."""

LAST = "@last"
"""The name under which a client's last model is kept, when it is watched."""


@dataclass(frozen=True)
class Watch:
    """Which models are followed besides the server's."""

    cohort: bool = False
    """the mean of the cohort's models"""
    last: bool = False
    """the last model of every client"""


@dataclass
class RoundResult:
    """What came of a round's local work."""

    replies: Replies
    kept: dict[Hashable, Keep] = field(default_factory=dict)
    """the new states, to be stored when the round is accepted"""
    rejected: dict[Hashable, str] = field(default_factory=dict)
    """clients whose reply was unusable, with the reason"""
    up: Counter[str] = field(default_factory=Counter)
    """bytes uploaded, by tensor"""
    down: Counter[str] = field(default_factory=Counter)
    """bytes downloaded, by tensor"""
    steps: dict[Hashable, int] = field(default_factory=dict)
    evaluations: int = 0
    """gradients of single samples that were computed"""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """the cohort's buffers, averaged by samples"""
    cohort_mean: Tensor | None = None
    last_change: Tensor | None = None
    """Σ_S q_k (x_k − the client's last x_k)"""


class Engine(ABC):
    """Solves the local problems of a cohort."""

    @abstractmethod
    def run(
        self,
        method: Method,
        download: Download,
        cohort: Cohort,
        states: ClientStates,
        buffers: Mapping[str, Tensor],
        round: int,
    ) -> RoundResult:
        """The work of one round. It changes no state: the caller stores what it accepts."""


@dataclass
class Job:
    """What stays the same in every round: whose losses, which local work, which draws."""

    roster: Roster
    local: Local
    seed: int
    limit: Limit | None = None
    watch: Watch = Watch()


def fault(upload: Upload, keep: Keep, like: Tensor, vectors: set[str]) -> str | None:
    """What is wrong with a client's reply, or None."""
    for values in (upload, keep):
        for name, value in values.items():
            value = torch.as_tensor(value)
            if name in vectors and values is upload and value.shape != like.shape:
                return f"{name} has shape {list(value.shape)} instead of {list(like.shape)}"
            if not bool(torch.isfinite(value).all()):
                return f"{name} is not finite (NaN or Inf)"
    return None


def bytes_of(values: Named) -> dict[str, int]:
    """The size of what travels, by name: vectors as they are, numbers in eight bytes."""
    return {
        name: value.numel() * value.element_size()
        if isinstance(value, Tensor) and value.numel() > 1
        else 8
        for name, value in values.items()
    }
