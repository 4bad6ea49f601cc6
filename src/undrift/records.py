"""What is written down of every round."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field, fields
from typing import Any


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
    """how far clients drifted apart, how unequal their work was (see `undrift.diagnostics`), in
    the rounds that are evaluated"""
    cohort: list[Hashable] = field(default_factory=list)
    rejected: dict[Hashable, str] = field(default_factory=dict)
    """clients whose reply was unusable, with the reason"""
    absent: list[Hashable] = field(default_factory=list)
    """clients of the cohort that managed no work"""
    bytes_down: dict[str, int] = field(default_factory=dict)
    bytes_up: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    gradients: int = 0
    """gradients of single samples that were computed"""
    virtual_seconds: float = 0.0
    """the time of the virtual clock after the round, where there is one"""
    seconds: float = 0.0
    """wall time of the round, without evaluation"""

    def to_json(self) -> str:
        """One line of JSON; `rejected` is a list of [client, reason], since ids may be numbers."""
        values = asdict(self)
        values["rejected"] = [list(pair) for pair in self.rejected.items()]
        for name in ("metrics", "diagnostics"):
            values[name] = {key: _written(value) for key, value in values[name].items()}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(line: str | bytes) -> Record:
        """The record of such a line; fields it does not know are left out."""
        known = {each.name for each in fields(Record)}
        values = {key: value for key, value in json.loads(line).items() if key in known}
        values["rejected"] = dict(values.get("rejected", []))
        for name in ("metrics", "diagnostics"):
            values[name] = {key: float(value) for key, value in values.get(name, {}).items()}
        return Record(**values)

    def flat(self) -> dict[str, Any]:
        """One row of a data frame: metrics and diagnostics by name, and totals of the rest."""
        return {
            "round": self.round,
            **self.metrics,
            **self.diagnostics,
            "clients": len(self.cohort),
            "rejected": len(self.rejected),
            "absent": len(self.absent),
            "bytes_down": sum(self.bytes_down.values()),
            "bytes_up": sum(self.bytes_up.values()),
            "steps": self.steps,
            "gradients": self.gradients,
            "virtual_seconds": self.virtual_seconds,
            "seconds": self.seconds,
        }


def _written(value: float) -> float | str:
    """JSON has no infinity and no NaN: those are written as words."""
    return value if math.isfinite(value) else str(value)
