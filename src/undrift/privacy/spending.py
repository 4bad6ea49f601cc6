"""What a private run has spent, from its records and what it released besides.

ε takes a moment to compute, so that only records of evaluated rounds have one. A run that was
interrupted may have released more: its ε is computed here from the numbers of releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from undrift.core.records import Record
from undrift.privacy.accountant import Measured, epsilon_spent
from undrift.privacy.sampling import CohortLaw
from undrift.utils.errors import UndriftError

COMMON_ONLY = "only of data that belong to no client"
"""What records say of the metrics of a private run that withholds those of clients' data."""


class Released(NamedTuple):
    """How often a run released something, as a ledger outside of its records says."""

    rounds: int = 0
    """noisy sums of rounds"""
    evaluations: int = 0
    """noisy metrics"""


@dataclass(frozen=True)
class Spending:
    """What a private run has spent: never less than what was released."""

    epsilon: float
    delta: float
    record: Mapping[str, Any]
    """what the last record with an ε says of privacy"""
    uncommitted: int = 0
    """releases of rounds and metrics that were not committed, which ε includes"""
    missing: int = 0
    """releases that ε does not include, because it cannot be computed here"""

    def sentence(self) -> str:
        """ε, δ, neighbours, the assumption on the sampling, and what the metrics are."""
        said = self.record
        more = ""
        if self.missing:
            more = (
                f" It is larger by now: {_counted(self.missing)} since are not included, since "
                f"that needs pip install 'undrift[privacy]'."
            )
        elif self.uncommitted:
            more = f" It includes {_counted(self.uncommitted)} that the run did not commit."
        metrics = f" Metrics: {said['metrics']}." if "metrics" in said else ""
        return (
            f"Client-level privacy: ε = {self.epsilon:.4g} at δ = {self.delta:.3g} (neighbours: "
            f"{said.get('neighbours')}; {said.get('sampling')}).{more}{metrics}"
        )


def _counted(releases: int) -> str:
    return f"{releases} release{'s' if releases > 1 else ''}"


def accounting(law: CohortLaw, accountant: str, metrics_noise: float) -> dict[str, float | str]:
    """What ε depends on besides the noise, δ and the releases, as a record has it."""
    return {
        "law": law.kind,
        "clients": law.clients,
        "probability": law.probability,
        "amplified": int(law.amplified),
        "accountant": accountant,
        "metrics_noise": metrics_noise,
    }


def spending(records: Sequence[Record], released: Released | None = None) -> Spending | None:
    """What a run has spent; None if it is not private, or if no ε is finite.

    `released` are all releases of a run with a ledger, committed or not.
    """
    private = [each for each in records if each.privacy]
    known = next((each for each in reversed(private) if "epsilon" in each.privacy), None)
    if known is None:
        return None
    then, last = known.privacy, private[-1].privacy
    spent = Spending(float(then["epsilon"]), float(then["delta"]), then)  # type: ignore[arg-type]
    ledger = Released() if released is None else released
    # Records of older versions have no numbers of releases: one for every round.
    before = _releases(then, known.round)
    committed = _releases(last, private[-1].round)
    now = Released(*map(max, committed, ledger))
    if now == before:
        return spent
    uncommitted = sum(now) - sum(committed)
    missing = Spending(spent.epsilon, spent.delta, then, missing=sum(now) - sum(before))
    if "accounting" not in then:
        return missing
    try:
        epsilon = _epsilon(then, now)
    except UndriftError:  # the accountant's library is not installed
        return missing
    return Spending(epsilon, spent.delta, then, uncommitted)


def _releases(privacy: Mapping[str, Any], round: int) -> Released:
    return Released(int(privacy.get("releases", round)), int(privacy.get("evaluations", 0)))


def _epsilon(privacy: Mapping[str, Any], now: Released) -> float:
    """ε of some releases, from what a record says of the accounting."""
    known = privacy["accounting"]
    law = CohortLaw(
        known["law"], known["clients"], known["probability"], amplified=bool(known["amplified"])
    )
    metrics = Measured(known["metrics_noise"], now.evaluations)
    return epsilon_spent(
        privacy["noise"], law, now.rounds, privacy["delta"], known["accountant"], 1, metrics
    )
