"""`SecureAggregation`, the settings of secure aggregation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from undrift.privacy.secure.attempt import MIN_SITES, Attempt, default_threshold
from undrift.privacy.secure.fixed_point import WORD_TYPES, FixedPoint
from undrift.utils.errors import require, require_range, require_whole

SITES = "sites"
NOISE_AT = ("server", SITES)
"""Who adds the noise of differential privacy."""
DEFAULT_RANGE = 1000.0
"""R if nothing is said."""
WORD_BITS = tuple(WORD_TYPES)
"""The allowed numbers of bits of a coordinate in a masked upload."""
FULL_BITS = 64
"""Words of so many bits round less than single precision does."""


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
    site_noise
        whether the sites add the noise of differential privacy, each a share of it
    colluding
        c, the number of sites that may collude with the server
    word_bits
        b, the bits of a coordinate in a masked upload: 16, 24, 32 or 64
    """

    threshold: int | None = None
    range: float = DEFAULT_RANGE
    site_noise: bool = False
    colluding: int = 0
    word_bits: int = FULL_BITS

    def __post_init__(self) -> None:
        require_whole("privacy.colluding", self.colluding, at_least=0)
        if self.threshold is not None:
            require_whole("privacy.threshold", self.threshold, at_least=2)
        require_range("privacy.range", self.range, above=0)
        require(
            self.word_bits in WORD_BITS,
            f"privacy.word_bits is {self.word_bits}, but must be one of "
            f"{', '.join(map(str, WORD_BITS))}.",
        )
        # The shares of noise would be rounded one by one, which changes the law of their sum.
        require(
            not self.site_noise or not self.rounds,
            f"privacy.word_bits is {self.word_bits}, which would round the sites' noise to another "
            f'distribution: set word_bits = {FULL_BITS}, or noise_at = "server".',
        )

    @property
    def rounds(self) -> bool:
        """Whether words are so short that an upload is visibly rounded."""
        return self.word_bits < FULL_BITS

    def coding(self, sites: int) -> FixedPoint:
        """How the uploads of so many sites are encoded."""
        return FixedPoint.finest(sites, self.range, self.word_bits)

    def attempt(
        self, run: str, round: int, number: int, cohort: Sequence[str], full: int
    ) -> Attempt:
        """The attempt to sum the uploads of a cohort.

        `full` is the size of the cohort if all sites were there: a server that says that sites are
        away must not lower the threshold by that.
        """
        return Attempt(run, round, number, tuple(cohort), self.least_sites(full))

    def noise_shares(self, full: int) -> int:
        """The fewest shares of noise that a decoded sum has from sites that do not collude: t − c.

        Every site adds 1/(t − c) of the variance, so that t − c sites add enough.
        """
        return self.least_sites(full) - self.colluding

    def least_sites(self, full: int) -> int:
        """t, the fewest sites of a cohort whose sum is decoded."""
        return default_threshold(full) if self.threshold is None else self.threshold

    def check(self, sites: int) -> None:
        """Refuse settings with which no round of so many sites could be completed."""
        self.coding(sites)
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
        require(
            2 * self.least_sites(sites) > sites + self.colluding,
            f"With {sites} sites, a threshold of {self.least_sites(sites)} is secure while at most "
            f"{2 * self.least_sites(sites) - sites - 1} sites collude with the server, but "
            f"privacy.colluding is {self.colluding}.",
        )
