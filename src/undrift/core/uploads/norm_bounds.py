"""Norm bounds: uploads whose norm exceeds a multiple of the recent median are rejected.

The limits of a round are numbers that are known before it starts, so that every engine can apply
them while it adds up replies. A run's `NormHistory` learns from the norms of each round.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undrift.core.messages import CHANGE, COHORT
from undrift.core.replies import accumulator_dtype
from undrift.utils.errors import require_range, require_whole

if TYPE_CHECKING:
    from undrift.core.problem import Upload

OVER_BOUND = "norm bound"
"""The first words of the reason why an upload is rejected, in records."""
BUFFERS = "buffers"
"""The name under which the model's buffers are measured, all together."""
MIN_NORMS = 3
"""The norms of fewer clients than this say nothing about what is usual."""
FIRST_SCALE = 1e3
"""Without usual norms, an upload may be this many times as large as the model."""
FIRST_BUFFER_SCALE = 1e8
"""The same for buffers: the variance of raw pixels is far larger than its initial value."""
HARMLESS_SHARE = 0.01
"""An upload that is smaller than this share of the model is never rejected."""
TRAVELLED_FACTOR = 3.0
"""How often an upload of a stateful method may be as large as the way from the initial model: the
upload of a client that was away for long has to make up for that way."""
MAX_EFFORT_FACTOR = 100.0
"""The most by which longer local work raises a client's bound."""

LARGE_COHORT = 10
"""Of a round with as many replies, only the medians are kept: no single client decides them."""

Norms = Mapping[str, float]
"""The norms of one client's upload, by name."""
Entries = list[list[Any]]
"""What is kept of a round: [client, norm, effort] for each, or ["", medians] of a large cohort."""


@dataclass(frozen=True)
class NormBound:
    """Reject uploads whose norm exceeds a multiple of the recent median.

    Rejected uploads are recorded with their client, norm and bound. A client that takes more steps
    than usual, or a larger learning rate, may move further in proportion. The first rounds are the
    floor: the bound does not fall below the same multiple of their median.

    Parameters
    ----------
    ratio
        how many times the median a norm may be, at least 1
    window
        the number of recent rounds that the median is taken over
    """

    ratio: float = 10.0
    window: int = 10

    def __post_init__(self) -> None:
        require_range("NormBound's ratio", self.ratio, at_least=1)
        require_whole("NormBound's window", self.window, at_least=1)


@dataclass(frozen=True)
class Usual:
    """The usual norm of an upload, and the usual effort of a client that sends it."""

    norm: float
    effort: float
    """steps times learning rate"""

    def bound(self, ratio: float, effort: float) -> float:
        """The largest allowed norm of a client with this effort."""
        longer = effort / self.effort if self.effort > 0 else 1.0
        return ratio * self.norm * min(max(1.0, longer), MAX_EFFORT_FACTOR)


@dataclass(frozen=True)
class NormLimits:
    """The limits of one round.

    Parameters
    ----------
    ratio, rate
        the multiple of the usual norm, and the clients' nominal learning rate
    usual
        what is usual, by the name of the upload; the largest of the bounds counts
    x, buffers
        the server's model and buffers, from which uploaded models and buffers are measured
    vectors, models
        the names of uploads that are vectors, and of those that are models rather than moves
    floor
        norms up to here are always allowed
    """

    ratio: float
    rate: float
    usual: Mapping[str, Sequence[Usual]]
    x: Tensor
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    vectors: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    floor: float = 0.0

    def norms(self, upload: Upload, buffers: Mapping[str, Tensor]) -> dict[str, float]:
        """The norms of one client's upload and buffers."""
        found = {name: float(norm) for name, norm in self._upload_norms(upload, rows=False)}
        if buffers:
            found[BUFFERS] = _joint_norm(
                {name: value - self.buffers[name] for name, value in _floating(buffers).items()}
            )
        return found

    def row_norms(self, upload: Upload, clients: int) -> list[dict[str, float]]:
        """The norms of each of several clients, whose uploads are stacked as `[C, …]`."""
        columns = {
            name: norm.reshape(-1).expand(clients).tolist()
            for name, norm in self._upload_norms(upload, rows=True)
        }
        return [{name: each[row] for name, each in columns.items()} for row in range(clients)]

    def _upload_norms(self, upload: Upload, rows: bool) -> list[tuple[str, Tensor]]:
        found = []
        for name, value in upload.items():
            if name in self.vectors:
                value = value - self.x if name in self.models else value
                dtype = accumulator_dtype(value)
                norm = torch.linalg.vector_norm(value, dim=-1 if rows else None, dtype=dtype)
                found.append((name, norm))
            elif not name.startswith("@"):  # a number; those of the diagnostics change no model
                found.append((name, torch.as_tensor(value).double().abs()))
        return found

    def fault(self, norms: Norms, steps: int) -> str | None:
        """Why an upload with these norms is rejected, or None; `steps` are its client's."""
        for name, norm in norms.items():
            bound = self.bound(name, steps)
            if not norm <= bound:
                return f"{OVER_BOUND}: {name} has norm {norm:.3g}, the bound is {bound:.3g}"
        return None

    def bound(self, name: str, steps: int) -> float:
        """The largest allowed norm of an upload of this name."""
        usual = self.usual.get(name, ())
        if not usual:
            return self._first_bound(name)
        effort = self.rate * steps
        allowed = max(each.bound(self.ratio, effort) for each in usual)
        return max(allowed, self.floor) if name in self.vectors else allowed

    def _first_bound(self, name: str) -> float:
        """The bound while nothing is known of what is usual: relative to the model's own size."""
        if name == BUFFERS:
            numbers = sum(value.numel() for value in _floating(self.buffers).values())
            size = max(_joint_norm(_floating(self.buffers)), math.sqrt(numbers))
            return FIRST_BUFFER_SCALE * size
        if name not in self.vectors:
            return math.inf
        # An upload may be a gradient: a learning rate below 1 turns it into a smaller move.
        return FIRST_SCALE * model_size(self.x) * max(1.0, 1 / max(self.rate, 1e-12))


class NormHistory:
    """The norms of a run's uploads: of its first rounds, and of its recent rounds.

    Each client counts once, with its latest upload, so that one client cannot raise the median by
    taking part often. Norms of rejected uploads count too: if norms really grow (with another
    learning rate, say), the bound follows once those of most recent clients have grown.
    """

    def __init__(self, bound: NormBound):
        self.bound = bound
        self._first: dict[str, list[Entries]] = {}
        self._recent: dict[str, list[Entries]] = {}
        """by name, the entries of each round"""

    def limits(self, template: NormLimits) -> NormLimits:
        """The limits of the next round: `template` with what is usual so far."""
        usual = {}
        for name, recent in self._recent.items():
            found = [_usual(recent), _usual(self._first[name])]
            usual[name] = [each for each in found if each is not None]
        return replace(template, usual=usual)

    def tightened(
        self, limits: NormLimits, norms: Mapping[Hashable, Norms], steps: Mapping[Hashable, int]
    ) -> NormLimits | None:
        """Limits from a round's own medians, if there were none before and they reject something.

        Only the first rounds need it: their uploads are compared with each other.
        """
        known = {name for name, each in limits.usual.items() if each}
        usual = dict(limits.usual)
        for name, entries in _by_name(norms, steps, limits.rate).items():
            own = None if name in known else _usual([entries])
            if own is not None:
                usual[name] = [own]
        tighter = replace(limits, usual=usual)
        faults = (tighter.fault(own, steps[client]) for client, own in norms.items())
        return tighter if usual != limits.usual and any(faults) else None

    def add(
        self, norms: Mapping[Hashable, Norms], steps: Mapping[Hashable, int], rate: float
    ) -> None:
        """Learn from the norms of a round, by client."""
        for name, entries in _by_name(norms, steps, rate).items():
            first = self._first.setdefault(name, [])
            if len(first) < self.bound.window:
                first.append(entries)
            recent = self._recent.setdefault(name, [])
            recent.append(entries)
            del recent[: -self.bound.window]

    def saved(self) -> dict[str, Any]:
        """The history as plain values, for a run store."""
        return {"first": self._first, "recent": self._recent}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue with what `saved` returned."""
        self._first, self._recent = dict(saved["first"]), dict(saved["recent"])


def model_size(x: Tensor) -> float:
    """The norm of a model, at least that of a model whose parameters are ±1."""
    norm = float(torch.linalg.vector_norm(x, dtype=accumulator_dtype(x)))
    return max(norm, math.sqrt(x.numel()))


def harmless_norm(x: Tensor, x0: Tensor, stateful: bool) -> float:
    """The norm up to which an upload is never rejected, given the present and initial model."""
    found = HARMLESS_SHARE * float(torch.linalg.vector_norm(x, dtype=accumulator_dtype(x)))
    if stateful:
        way = torch.linalg.vector_norm(x - x0, dtype=accumulator_dtype(x))
        found = max(found, TRAVELLED_FACTOR * float(way))
    return found


def measured_vectors(sums: Mapping[str, Any]) -> frozenset[str]:
    """The names of uploaded vectors whose norms are bounded; diagnostics change no model."""
    return frozenset({name for name in sums if not name.startswith("@")} | {COHORT, CHANGE})


def _usual(rounds: Sequence[Entries]) -> Usual | None:
    """The median norm and effort, with the latest entry of each client; None if they are few."""
    latest = {client: (norm, effort) for each in rounds for client, norm, effort in each if client}
    whole = [(norm, effort) for each in rounds for client, norm, effort in each if not client]
    if len(latest) < MIN_NORMS and not whole:
        return None
    found = [*latest.values(), *whole]
    return Usual(median(norm for norm, _ in found), median(effort for _, effort in found))


def _by_name(
    norms: Mapping[Hashable, Norms], steps: Mapping[Hashable, int], rate: float
) -> dict[str, Entries]:
    """The entries of a round by the name of the upload."""
    found: dict[str, Entries] = {}
    for client, own in norms.items():
        for name, norm in own.items():
            if name != CHANGE:  # as large as the way since the client's last participation
                # A finite stand-in for an overflow: a store cannot keep infinity.
                entry = [repr(client), min(norm, 1e300), rate * steps[client]]
                found.setdefault(name, []).append(entry)
    for name, entries in found.items():
        if len(entries) >= LARGE_COHORT:
            norm = median(entry[1] for entry in entries)
            found[name] = [["", norm, median(entry[2] for entry in entries)]]
    return found


def _floating(buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The buffers that are not counters."""
    return {name: value for name, value in buffers.items() if value.is_floating_point()}


def _joint_norm(values: Mapping[str, Tensor]) -> float:
    """The norm of several tensors together."""
    norms = [
        float(torch.linalg.vector_norm(value, dtype=accumulator_dtype(value)))
        for value in values.values()
    ]
    return math.hypot(*norms)
