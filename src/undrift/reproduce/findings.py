"""What a reproduction finds: measured next to published numbers, claims, and the figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from undrift.report.tables import OverSeeds
from undrift.reproduce.figure import Panel


@dataclass(frozen=True)
class Number:
    """A published number next to the measured one.

    Parameters
    ----------
    where
        the row or panel of the number: "10 %, IID, 98.2 %"
    what
        the column or line of the number: "FedDyn"
    published
        as the paper prints it; None if it prints none
    measured
        one value per seed; `missed` counts seeds that did not reach a target: if there are any,
        the mean is a lower bound
    digits
        significant digits of the measured number
    """

    where: str
    what: str
    published: float | str | None
    measured: OverSeeds
    digits: int = 4

    def shown(self) -> str:
        """Format the measured number: "38 ± 2", or "> 1000" if a seed did not reach the target."""
        if not self.measured.values:
            return "–"
        if math.isinf(self.measured.mean):
            return "diverged"
        text = f"{self.measured.mean:.{self.digits}g}"
        if self.measured.missed:
            return f"> {text}"
        spread = self.measured.std
        return f"{text} ± {spread:.2g}" if len(self.measured.values) > 1 else text

    def printed(self) -> str:
        """Format the published number."""
        if self.published is None:
            return "–"
        return self.published if isinstance(self.published, str) else f"{self.published:.6g}"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, such as an order or a limit, and whether it holds here.

    Parameters
    ----------
    text
        the claim in a sentence
    holds
        True or False; None if this run cannot decide it
    evidence
        the numbers behind the verdict
    """

    text: str
    holds: bool | None
    evidence: str


@dataclass(frozen=True)
class Findings:
    """Everything that a reproduction found."""

    numbers: Sequence[Number] = ()
    claims: Sequence[Claim] = ()
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = field(default=())
    """notes about this run for the reader"""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the figure."""
        return {
            "numbers": [_plain(number) for number in self.numbers],
            "claims": [asdict(claim) for claim in self.claims],
            "notes": list(self.notes),
        }

    @staticmethod
    def from_dict(found: dict[str, Any]) -> Findings:
        """Return the findings from the output of `as_dict`."""
        numbers = []
        for each in found["numbers"]:
            over = each["measured"]
            measured = OverSeeds(tuple(map(float, over["values"])), over["missed"])
            numbers.append(Number(**{**each, "measured": measured}))
        claims = [Claim(**each) for each in found["claims"]]
        return Findings(numbers, claims, (), found["notes"])


def _plain(number: Number) -> dict[str, Any]:
    """Return plain values; infinity, of a run that diverged, as text, as JSON has none."""
    plain = asdict(number)
    values = number.measured.values
    plain["measured"]["values"] = [v if math.isfinite(v) else str(v) for v in values]
    return plain


def over_seeds(*values: float, missed: int = 0) -> OverSeeds:
    """Return a number over seeds from plain values."""
    return OverSeeds(tuple(map(float, values)), missed)
