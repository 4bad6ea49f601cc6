"""What is written down of every round."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from undrift.utils.formatting import duration, size


class Span(NamedTuple):
    """One client at work, in virtual seconds: when it read the model, computed and sent."""

    client: Hashable
    start: float
    computing: float
    """when it had the model and began to compute"""
    sending: float
    """when it was done and began to send"""
    end: float
    """when its reply arrived, or when it was given up or failed"""
    outcome: str
    """"replied", "rejected", or the reason of its loss: one of `LOST`"""

    def until(self, end: float) -> Span:
        """The same, cut off at a time."""
        cut = (min(t, end) for t in (self.computing, self.sending, self.end))
        return Span(self.client, self.start, next(cut), next(cut), next(cut), self.outcome)


LOST = {
    "failed": "dropped out while at work",
    "left": "was no longer available",
    "late": "came after the round was over",
    "stale": "came too many updates late",
    "skipped": "came in a round with too few replies",
}
"""Why work that was begun came to nothing."""


@dataclass
class Record:
    """One round of one method.

    `metrics` holds the metrics of the server's model under their names ("test_accuracy") and
    those of other reported models under a prefix ("cohort/test_accuracy").
    """

    round: int
    """the number of rounds done, so that 0 is the initial model"""
    metrics: dict[str, float] = field(default_factory=dict)
    diagnostics: dict[str, float] = field(default_factory=dict)
    """drift of the clients and inequality of their work, in the rounds that are evaluated (see
    `undrift.core.diagnostics`)"""
    cohort: list[Hashable] = field(default_factory=list)
    rejected: list[tuple[Hashable, str]] = field(default_factory=list)
    """clients whose reply was unusable, each with the reason"""
    absent: list[Hashable] = field(default_factory=list)
    """clients of the cohort that managed no work"""
    lost: list[tuple[Hashable, str]] = field(default_factory=list)
    """clients whose work came to nothing, each with a reason of `LOST`"""
    strategy: str = ""
    """how the clients' work was computed"""
    partial: int = 0
    """replies with less work than was asked for"""
    updates: int = 1
    """how often the server's model was updated; 0 in a round that was skipped"""
    staleness: dict[int, int] = field(default_factory=dict)
    """how many replies were so many updates old, in asynchronous training"""
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    gradients: int = 0
    """gradients of single samples that were computed"""
    wasted_steps: int = 0
    wasted_gradients: int = 0
    """the work of clients whose reply was not used, as far as it got; not in `steps`"""
    busy_seconds: float = 0.0
    """virtual seconds of clients at work, added up"""
    idle_seconds: float = 0.0
    """virtual seconds of clients that had replied and waited for the others, added up"""
    virtual_seconds: float = 0.0
    """the time of the virtual clock after the round, where there is one"""
    spans: list[Span] = field(default_factory=list)
    """who worked when, in the first rounds of a run with a clock"""
    seconds: float = 0.0
    """wall time of the round, without evaluation"""

    def to_json(self) -> str:
        """One line of JSON; `staleness` is written as pairs, since JSON has no numbers as keys."""
        values = asdict(self)
        values["staleness"] = [list(pair) for pair in self.staleness.items()]
        for name in ("metrics", "diagnostics"):
            values[name] = {key: _written(value) for key, value in values[name].items()}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(line: str | bytes) -> Record:
        """The record of such a line; fields it does not know are left out."""
        known = {each.name for each in fields(Record)}
        values = {key: value for key, value in json.loads(line).items() if key in known}
        values["staleness"] = dict(values.get("staleness", []))
        for name in ("rejected", "lost"):
            values[name] = [(client, reason) for client, reason in values.get(name, [])]
        values["spans"] = [Span(*span) for span in values.get("spans", [])]
        for name in ("metrics", "diagnostics"):
            values[name] = {key: float(value) for key, value in values.get(name, {}).items()}
        return Record(**values)

    def __repr__(self) -> str:
        few = [n for n in self.metrics if "/" not in n and "_client_" not in n]
        told = [f"{name} {self.metrics[name]:.4g}" for name in few]
        if self.cohort:
            told.append(f"{len(self.replied)} of {len(self.cohort)} clients replied")
        sent = sum(self.bytes_down.values()) + sum(self.bytes_up.values())
        told += [f"{size(sent)} sent"] if sent else []
        told += [f"virtual time {duration(self.virtual_seconds)}"] if self.virtual_seconds else []
        return f"Record(round {self.round}: {', '.join(told) or 'not evaluated'})"

    @property
    def replied(self) -> list[Hashable]:
        """The clients whose replies were used, each as often as it replied."""
        left = Counter([*self.absent, *(client for client, _ in self.rejected + self.lost)])
        found = []
        for client in self.cohort:
            if left[client] > 0:
                left[client] -= 1
            else:
                found.append(client)
        return found

    def flat(self) -> dict[str, Any]:
        """One row of a data frame: metrics and diagnostics by name, and totals of the rest."""
        return {
            "round": self.round,
            **self.metrics,
            **self.diagnostics,
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


def _written(value: float) -> float | str:
    """JSON has no infinity and no NaN: those are written as words."""
    return value if math.isfinite(value) else str(value)
