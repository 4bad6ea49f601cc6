"""What a reproduction finds: numbers next to the published ones, claims, and the figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from undrift.report.tables import OverSeeds
from undrift.reproduce.figure import Panel


@dataclass(frozen=True)
class Number:
    """A number of the paper, next to ours.

    Parameters
    ----------
    where
        the row or panel it belongs to: "10 %, IID, 98.2 %"
    what
        what it is of: "FedDyn"
    published
        as the paper prints it, or None where it prints none
    measured
        one value per seed; `missed` counts seeds that did not get there, so that the mean is a
        lower bound
    digits
        how many digits of ours are shown
    """

    where: str
    what: str
    published: float | str | None
    measured: OverSeeds
    digits: int = 4

    def shown(self) -> str:
        """Ours in words: "38 ± 2", or "> 1000" where a seed did not get there."""
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
        """The paper's."""
        if self.published is None:
            return "–"
        return self.published if isinstance(self.published, str) else f"{self.published:.6g}"


@dataclass(frozen=True)
class Claim:
    """Something the paper says: an ordering, a shape, a limit; and whether it holds here.

    Parameters
    ----------
    text
        the claim in a sentence
    holds
        whether it does; None where this run cannot tell
    evidence
        the numbers that say so
    """

    text: str
    holds: bool | None
    evidence: str


@dataclass(frozen=True)
class Findings:
    """All that a reproduction found."""

    numbers: Sequence[Number] = ()
    claims: Sequence[Claim] = ()
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = field(default=())
    """what a reader must know of this run"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the figure."""
        return {
            "numbers": [_plain(number) for number in self.numbers],
            "claims": [asdict(claim) for claim in self.claims],
            "notes": list(self.notes),
        }

    @staticmethod
    def from_dict(found: dict[str, Any]) -> Findings:
        """Those of `as_dict`."""
        numbers = []
        for each in found["numbers"]:
            over = each["measured"]
            measured = OverSeeds(tuple(map(float, over["values"])), over["missed"])
            numbers.append(Number(**{**each, "measured": measured}))
        claims = [Claim(**each) for each in found["claims"]]
        return Findings(numbers, claims, (), found["notes"])


def _plain(number: Number) -> dict[str, Any]:
    """JSON has no infinity: that of a run that diverged is written as a word."""
    told = asdict(number)
    values = number.measured.values
    told["measured"]["values"] = [v if math.isfinite(v) else str(v) for v in values]
    return told


def over_seeds(*values: float, missed: int = 0) -> OverSeeds:
    """A measured number that does not come from runs."""
    return OverSeeds(tuple(map(float, values)), missed)
