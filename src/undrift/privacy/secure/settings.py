"""`SecureAggregation`, the settings of secure aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from undrift.privacy.secure.attempt import MIN_SITES, Attempt, default_threshold
from undrift.utils.errors import require, require_range, require_whole


@dataclass(frozen=True)
class SecureAggregation:
    """How a deployment hides single uploads from its server.

    Parameters
    ----------
    threshold
        t, the number of sites without which no sum is decoded; above half of the cohort. Left out,
        ⌊2n/3⌋ + 1, where n is the size of the cohort when all sites are there
    range
        R, the largest absolute value of a coordinate of an upload times its weight
    """

    threshold: int | None = None
    range: float = 1000.0

    def __post_init__(self) -> None:
        if self.threshold is not None:
            require_whole("privacy.threshold", self.threshold, at_least=2)
        require_range("privacy.range", self.range, above=0)

    def attempt(
        self, run: str, round: int, number: int, cohort: Sequence[str], full: int
    ) -> Attempt:
        """The attempt to aggregate the uploads of a cohort.

        `full` is the size of the cohort if all sites were there: a server that says that sites are
        away must not lower the threshold by that.
        """
        threshold = default_threshold(full) if self.threshold is None else self.threshold
        return Attempt(run, round, number, tuple(cohort), threshold)

    def check(self, sites: int) -> None:
        """Refuse settings with which no round of so many sites could be completed."""
        require(
            sites >= MIN_SITES,
            f"Secure aggregation needs at least {MIN_SITES} sites, not {sites}: the sum of two "
            f"uploads tells each of two sites the other's.",
        )
        if self.threshold is not None:
            require(
                sites < 2 * self.threshold <= 2 * sites,
                f"privacy.threshold is {self.threshold}, but must be from {sites // 2 + 1} to "
                f"{sites} with {sites} sites: above half of them.",
            )
