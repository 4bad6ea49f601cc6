"""Records: the numbers that are stored for every round of a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from undrift.utils.formatting import duration, size
from undrift.utils.shapes import NUMBER, Row, misfit


class Span(NamedTuple):
    """One client's work on the virtual clock, in seconds: receiving, computing and sending."""

    client: Hashable
    start: float
    """when it began to receive the model"""
    computing: float
    """when it began to compute"""
    sending: float
    """when it began to send its reply"""
    end: float
    """when its reply arrived, or when it failed or the server stopped waiting"""
    outcome: str
    """"replied", "rejected", or why it was lost: one of `LOST`"""

    def until(self, end: float) -> Span:
        """The span with all times limited to `end`."""
        cut = (min(t, end) for t in (self.computing, self.sending, self.end))
        return Span(self.client, self.start, next(cut), next(cut), next(cut), self.outcome)


LOST = {
    "failed": "dropped out while at work",
    "left": "was no longer available",
    "late": "replied after the round was over",
    "stale": "replied too many updates late",
    "skipped": "replied in a round with too few replies",
}
"""Reasons why a client's work was lost, each as the end of "the client …"."""


@dataclass
class Record:
    """One round of one method.

    `metrics` holds the metrics of the server's model under their names ("test_accuracy") and
    those of tracked models under a prefix ("cohort/test_accuracy").
    """

    round: int
    """number of rounds done; 0 is the initial model"""
    metrics: dict[str, float] = field(default_factory=dict)
    measured: dict[str, tuple[int, int]] = field(default_factory=dict)
    """by part of the data, on how many of its samples the metrics were measured, and how many it
    has; empty without samples, and in a deployment, where sites measure on all of theirs"""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """drift and consistency, in rounds that are evaluated: see `undrift.core.diagnostics`"""
    privacy: dict[str, Any] = field(default_factory=dict)
    """of a private run: the noise multiplier, the clipping norm of the round, δ, the number of
    releases so far and, in rounds that are evaluated, the ε spent so far, the neighbours, the
    assumption on the sampling, what ε was computed from ("accounting"), and what the metrics are.
    Everything else in a record but noisy metrics is outside the guarantee."""
    cohort: list[Hashable] = field(default_factory=list)
    rejected: list[tuple[Hashable, str]] = field(default_factory=list)
    """clients whose reply could not be used, each with the reason"""
    absent: list[Hashable] = field(default_factory=list)
    """clients of the cohort that did no work"""
    lost: list[tuple[Hashable, str]] = field(default_factory=list)
    """clients whose work was lost, each with the reason: a key of `LOST`"""
    expelled: list[Hashable] = field(default_factory=list)
    """sites of a deployment that the operator had expelled"""
    strategy: str = ""
    """the engine's strategy for computing the clients' work"""
    partial: int = 0
    """number of replies with less work than asked for"""
    updates: int = 1
    """number of updates of the server's model; 0 in a round that was skipped"""
    staleness: dict[int, int] = field(default_factory=dict)
    """number of replies by their staleness in updates, in asynchronous training"""
    bytes_down: dict[str, int] = field(default_factory=dict)
    """bytes sent to clients, by tensor"""
    bytes_up: dict[str, int] = field(default_factory=dict)
    """bytes sent by clients, by tensor"""
    steps: int = 0
    """local steps of clients whose reply was used"""
    gradients: int = 0
    """per-sample gradients of clients whose reply was used"""
    wasted_steps: int = 0
    """local steps of clients whose reply was not used, as far as they got"""
    wasted_gradients: int = 0
    """per-sample gradients of clients whose reply was not used, as far as they got"""
    busy_seconds: float = 0.0
    """virtual seconds that clients worked, summed over clients"""
    idle_seconds: float = 0.0
    """virtual seconds that clients waited for others after replying, summed over clients"""
    virtual_seconds: float = 0.0
    """time of the virtual clock after the round; 0 without a clock"""
    spans: list[Span] = field(default_factory=list)
    """when each client worked, in the first rounds of a run with a clock"""
    seconds: float = 0.0
    """wall-clock seconds of the round, without evaluation"""

    def to_json(self) -> str:
        """One line of JSON; `staleness` becomes pairs, because JSON keys cannot be numbers."""
        # Not `asdict`, which copies every entry of the cohort.
        values = dict(vars(self))
        values["staleness"] = [list(pair) for pair in self.staleness.items()]
        for name in ("metrics", "diagnostics"):
            values[name] = {key: _json_number(value) for key, value in values[name].items()}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(line: str | bytes) -> Record:
        """The record of a line from `to_json`; unknown fields are ignored."""
        known = {each.name for each in fields(Record)}
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        values = {key: value for key, value in found.items() if key in known}
        wrong = misfit(values | {"round": values.get("round")}, SHAPES)
        if wrong is not None:
            raise ValueError(wrong)
        values["staleness"] = dict(values.get("staleness", []))
        for name in ("rejected", "lost"):
            values[name] = [(client, reason) for client, reason in values.get(name, [])]
        values["measured"] = {
            part: (some, every) for part, (some, every) in values.get("measured", {}).items()
        }
        values["spans"] = [Span(*span) for span in values.get("spans", [])]
        for name in ("metrics", "diagnostics"):
            values[name] = {key: float(value) for key, value in values.get(name, {}).items()}
        return Record(**values)

    def __repr__(self) -> str:
        names = [n for n in self.metrics if "/" not in n and "_client_" not in n]
        shown = [f"{name} {self.metrics[name]:.4g}" for name in names]
        if self.cohort:
            shown.append(f"{len(self.replied)} of {len(self.cohort)} clients replied")
        sent = sum(self.bytes_down.values()) + sum(self.bytes_up.values())
        shown += [f"{size(sent)} sent"] if sent else []
        shown += [f"virtual time {duration(self.virtual_seconds)}"] if self.virtual_seconds else []
        return f"Record(round {self.round}: {', '.join(shown) or 'not evaluated'})"

    @property
    def replied(self) -> list[Hashable]:
        """The clients whose replies were used, each as often as it replied."""
        # In asynchronous training a client may be in the cohort several times.
        unused = Counter([*self.absent, *(client for client, _ in self.rejected + self.lost)])
        replied = []
        for client in self.cohort:
            if unused[client] > 0:
                unused[client] -= 1
            else:
                replied.append(client)
        return replied

    def flat(self) -> dict[str, Any]:
        """One row of a data frame: metrics and diagnostics by name, totals of everything else."""
        return {
            "round": self.round,
            **self.metrics,
            **self.diagnostics,
            **{n: v for n, v in self.privacy.items() if isinstance(v, int | float)},
            **{f"measured_{part}": some for part, (some, _) in self.measured.items()},
            "clients": len(self.cohort),
            "rejected": len(self.rejected),
            "absent": len(self.absent),
            "lost": len(self.lost),
            "partial": self.partial,
            "updates": self.updates,
            "bytes_down": sum(self.bytes_down.values()),
            "bytes_up": sum(self.bytes_up.values()),
            "steps": self.steps,
            "gradients": self.gradients,
            "wasted_steps": self.wasted_steps,
            "wasted_gradients": self.wasted_gradients,
            "busy_seconds": self.busy_seconds,
            "idle_seconds": self.idle_seconds,
            "virtual_seconds": self.virtual_seconds,
            "seconds": self.seconds,
        }


def estimate_note(records: Sequence[Record]) -> str | None:
    """A sentence on metrics that come from a part of the samples; None if all samples were used."""
    partial = {
        (part, some, every)
        for record in records
        for part, (some, every) in record.measured.items()
        if some < every
    }
    if not partial:
        return None
    shares = ", ".join(f"{some} of {every} {part} samples" for part, some, every in sorted(partial))
    last = "; the last round was measured on all" if _whole(records[-1]) else ""
    return f"Training metrics are estimates from {shares}{last}."


def _whole(record: Record) -> bool:
    """Whether a record has metrics, all of them from all samples."""
    return bool(record.measured) and all(some == every for some, every in record.measured.values())


_ID = (str, int, float)
_METRICS = {str: (*NUMBER, str)}  # a word for infinity and NaN
SHAPES: dict[str, Any] = {
    "round": int,
    "metrics": _METRICS,
    "measured": {str: Row((int, int))},
    "diagnostics": _METRICS,
    "privacy": {str: (*NUMBER, str, {str: (*NUMBER, str)})},
    "cohort": [_ID],
    "rejected": [Row((_ID, str))],
    "absent": [_ID],
    "lost": [Row((_ID, str))],
    "strategy": str,
    "partial": int,
    "updates": int,
    "staleness": [Row((int, int))],
    "bytes_down": {str: int},
    "bytes_up": {str: int},
    "steps": int,
    "gradients": int,
    "wasted_steps": int,
    "wasted_gradients": int,
    "busy_seconds": NUMBER,
    "idle_seconds": NUMBER,
    "virtual_seconds": NUMBER,
    "spans": [Row((_ID, NUMBER, NUMBER, NUMBER, NUMBER, str))],
    "seconds": NUMBER,
}
"""The types of a record's values in JSON."""


def _json_number(value: float) -> float | str:
    """The value, or a word for infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else str(value)
