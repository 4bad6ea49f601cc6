"""One execution of the protocol: who takes part, and what every key and signature is bound to."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

MIN_SITES = 3
"""With two sites, each learns the other's upload from the sum."""


class SecureError(Exception):
    """A message of the protocol that is refused, or an attempt that cannot be completed."""


@dataclass(frozen=True)
class Attempt:
    """One execution of the protocol, which uses keys of its own.

    Parameters
    ----------
    run
        identifies the run of a method with a seed
    round
        the round, counted from 0
    number
        how often the server has been started: a round that was not completed is tried again
    cohort
        the sites that are asked, in the order of their shares
    threshold
        t: the sum is decoded only with t sites, and t sites can recover the masks of others
    """

    run: str
    round: int
    number: int
    cohort: tuple[str, ...]
    threshold: int

    def __post_init__(self) -> None:
        sites, t = len(self.cohort), self.threshold
        if len(set(self.cohort)) != sites or sites < MIN_SITES:
            raise SecureError(f"Secure aggregation needs {MIN_SITES} different sites, not {sites}.")
        # Otherwise two disjoint groups of sites could each agree to another list of survivors.
        if not sites < 2 * t or t > sites:
            raise SecureError(
                f"The threshold of {sites} sites must be from {sites // 2 + 1} to {sites}, not {t}."
            )

    def index(self, site: str) -> int:
        """The number of a site's shares, from 1."""
        return self.cohort.index(site) + 1

    def content(self, purpose: str, *parts: bytes) -> bytes:
        """Bytes that a key or a signature is bound to, different for every purpose and attempt."""
        return b"".join(
            _with_length(part)
            for part in (
                b"undrift secure aggregation 1",
                purpose.encode(),
                self.run.encode(),
                self.round.to_bytes(8, "big"),
                self.number.to_bytes(8, "big"),
                self.threshold.to_bytes(8, "big"),
                names_digest(self.cohort),
                *parts,
            )
        )

    def require_enough(self, sites: Collection[str], stage: str) -> None:
        """Raise if a stage has fewer sites than the threshold."""
        if len(sites) < self.threshold:
            raise SecureError(
                f"Only {len(sites)} of {len(self.cohort)} sites came through the stage {stage!r}, "
                f"fewer than the threshold {self.threshold}."
            )

    def require_members(self, sites: Collection[str], stage: str) -> None:
        """Raise if a stage names a site that is not in the cohort, or one twice."""
        unknown = set(sites) - set(self.cohort)
        if unknown or len(set(sites)) != len(sites):
            raise SecureError(f"The stage {stage!r} names sites that are not in the cohort.")


def default_threshold(sites: int) -> int:
    """⌊2n/3⌋ + 1 of n sites: secure while at most a third of them collude with the server."""
    return min(sites, 2 * sites // 3 + 1)


def names_digest(names: Sequence[str]) -> bytes:
    """A hash of a list of names; other lists have other hashes."""
    return hashlib.sha256(b"".join(_with_length(name.encode()) for name in names)).digest()


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part
