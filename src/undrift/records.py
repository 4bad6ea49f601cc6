"""What is written down of every round."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class Record:
    """One round of one method.

    `metrics` holds the metrics of the server's model under their names ("test_accuracy") and
    those of other reported models under a prefix ("cohort/test_accuracy").
    """

    round: int
    """the number of rounds done, so that 0 is the initial model"""
    metrics: dict[str, float] = field(default_factory=dict)
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
    seconds: float = 0.0
    """wall time of the round, without evaluation"""
