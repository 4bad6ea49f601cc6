"""All that advice is based on, and the yes-or-no questions that follow from the numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from undrift.advice.federation import FederationSetup
from undrift.advice.gradients import Curvature, GradientFacts, measure_curvature, measure_gradients
from undrift.advice.participation import (
    ClockFacts,
    Delays,
    LocalWork,
    Participation,
    forecast_federation,
)
from undrift.core.method import Conditions
from undrift.core.regularizers import Regularizer
from undrift.data.description import Spread, describe, plain
from undrift.local.solvers import Local
from undrift.loops.paces import word_of

SKEWED = 0.3
"""Label skew is strong if it moves this share of a client's samples to other classes, beyond
chance: the two Dirichlet settings of FedDyn's paper, 0.6 and 0.3, are above it."""
DISSIMILAR = 2.0
"""B² from which on what clients do not share of their gradients is as large as what they share."""
UNEQUAL = 0.02
"""χ² from which on unequal work counts. The floor of FedNova's Theorem 2 is 2χ²σ_g², which for
B² = 10 is then a third of the squared gradient that training starts with."""
FEW = 0.25
"""With a smaller share of the clients in a round, what a client keeps is four rounds old when it is
used, and SCAFFOLD's corrections are as stale as that."""
SEEN_AGAIN = 2.0
"""Seen less often than this in a whole run, a client has hardly any use for what it keeps."""
IDLE = 0.5
"""Clients that wait for others longer than they work make asynchronous training worth a try."""

ANSWERS = (
    "composite",
    "asynchronous",
    "skewed",
    "dissimilar",
    "unequal",
    "single_steps",
    "few",
    "hardly_seen_again",
    "keeps_state",
    "waiting",
)
"""The questions that the rules ask."""


@dataclass(frozen=True)
class LabelSkew:
    """How far clients' labels are from everybody's, as total variation, mean by samples."""

    classes: int
    distance: float
    chance: float
    """what it would be if every client's labels were drawn at random"""
    classes_per_client: float
    """the median"""

    @property
    def beyond_chance(self) -> float:
        """The part that chance does not explain."""
        return max(0.0, self.distance - self.chance)


@dataclass(frozen=True)
class Facts:
    """What a federation is like: measured, not trained."""

    name: str
    clients: int
    samples: int
    parameters: int
    bytes_per_number: int
    objective: str
    sizes: Spread
    heaviest: float
    """the largest N·q_k: how many times as much as the mean client the heaviest counts"""
    lightest: float
    """the largest 1/(N·q_k)"""
    labels: LabelSkew | None
    """None where targets are not classes"""
    gradients: GradientFacts
    curvature: Curvature
    rate: float | None
    """η, the local learning rate; None where clients solve their problem exactly"""
    rate_proposed: bool
    """whether it comes from the curvature, as none was given"""
    rate_limit: float
    """how far a single step of the local solver may go"""
    work: LocalWork | None
    participation: Participation
    clock: ClockFacts | None
    delays: Delays | None
    setting: Conditions
    gradients_per_reply: float
    pace: str | None
    """the pace that is asked for, in a word"""
    regularizer: Regularizer | None
    stateless: bool
    """whether clients were said to keep nothing"""

    @property
    def composite(self) -> bool:
        """Whether the objective has a regulariser that only a prox can handle."""
        return self.regularizer is not None

    @property
    def asynchronous(self) -> bool:
        """Whether replies are to be taken in as they arrive."""
        return self.delays is not None

    @property
    def skewed(self) -> bool:
        """Whether labels are strongly skewed."""
        return self.labels is not None and self.labels.beyond_chance >= SKEWED

    @property
    def dissimilar(self) -> bool:
        """Whether clients pull in different directions: by their labels or their gradients."""
        return self.clients > 1 and (self.skewed or self.gradients.beyond_chance >= DISSIMILAR)

    @property
    def unequal(self) -> bool:
        """Whether clients do so unequal work that plain averaging minimises something else."""
        return self.work is not None and self.work.chi_square >= UNEQUAL

    @property
    def single_steps(self) -> bool:
        """Whether everybody takes one step a round, so that nobody can drift."""
        return self.work is not None and self.work.steps_most <= 1

    @property
    def few(self) -> bool:
        """Whether few of the clients take part in a round."""
        return self.participation.share <= FEW

    @property
    def hardly_seen_again(self) -> bool:
        """Whether a client is hardly ever seen twice."""
        return self.participation.visits < SEEN_AGAIN

    @property
    def keeps_state(self) -> bool:
        """Whether clients may keep something from one round to another, and will use it."""
        return not self.stateless and not self.hardly_seen_again

    @property
    def waiting(self) -> bool:
        """Whether clients mostly wait for others, and nobody said that they must."""
        return self.pace is None and self.clock is not None and self.clock.idle >= IDLE

    def as_dict(self) -> dict[str, Any]:
        """All numbers and answers, without what there is one of per client."""
        found = asdict(self)
        if found["work"] is not None:
            for name in ("ids", "q", "w"):
                del found["work"][name]
        found["regularizer"] = None if self.regularizer is None else repr(self.regularizer)
        found["answers"] = {name: getattr(self, name) for name in ANSWERS}
        return plain(found)


def find_facts(federation: FederationSetup, curvature: Curvature, proposed: bool) -> Facts:
    """Measure a federation whose learning rate is known."""
    seen = forecast_federation(federation)
    roster, x0 = federation.roster, federation.x0
    sizes = federation.losses.sizes.cpu().numpy().astype(np.int64)
    pace = federation.pace
    local = federation.solver
    return Facts(
        name=_name(federation),
        clients=len(roster),
        samples=int(sizes.sum()),
        parameters=x0.numel(),
        bytes_per_number=x0.element_size(),
        objective=federation.objective,
        sizes=Spread.over(sizes),
        heaviest=float(roster.weights.max()) * len(roster),
        lightest=1 / (float(roster.weights.min()) * len(roster)),
        labels=_labels(federation),
        gradients=measure_gradients(federation),
        curvature=curvature,
        rate=local.rate(0) if local.takes_steps else None,
        rate_proposed=proposed,
        rate_limit=2 / curvature.L if curvature.L > 0 else float("inf"),
        work=seen.work,
        participation=seen.participation,
        clock=seen.clock,
        delays=seen.delays,
        setting=seen.setting,
        gradients_per_reply=seen.gradients,
        pace=None if pace is None else word_of(pace),
        regularizer=federation.regularizer,
        stateless=federation.stateless,
    )


def curvature_of(federation: FederationSetup) -> Curvature:
    """L at the initial model, with the weight decay that is part of every f_k."""
    local: Local | None = federation.local
    return measure_curvature(federation, 0.0 if local is None else local.weight_decay)


def expected_distance(share: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """E ½ Σ_c |p̂(c) − p(c)| for n samples drawn from p, for each n of `sizes`.

    The mean deviation of a binomial number has a closed form (De Moivre):
    E|X − np| = 2(m + 1) C(n, m + 1) p^(m+1) (1 − p)^(n−m) with m = ⌊np⌋.
    """
    p = torch.from_numpy(share[(share > 0) & (share < 1)]).double()[None, :]
    n, back = np.unique(sizes, return_inverse=True)
    found = torch.zeros(len(n), dtype=torch.float64)
    for first in range(0, len(n), 4096):
        size = torch.from_numpy(n[first : first + 4096]).double()[:, None]
        m = (size * p).floor()
        logarithm = (
            torch.lgamma(size + 1)
            - torch.lgamma(m + 1)
            - torch.lgamma((size - m).clamp(min=1))
            + (m + 1) * p.log()
            + (size - m) * torch.log1p(-p)
        )
        found[first : first + 4096] = (logarithm.exp() / size).sum(1)
    return found.numpy()[back]


def _labels(federation: FederationSetup) -> LabelSkew | None:
    data = federation.data
    if data is None:
        return None
    described = describe(data)
    if described.labels is None:
        return None
    sizes = data.train.sizes.cpu().numpy().astype(np.int64)
    counts = np.array(described.labels.counts, dtype=float)
    chance = expected_distance(counts / counts.sum(), sizes)
    return LabelSkew(
        classes=described.labels.classes,
        distance=described.labels.distance_weighted,
        chance=float(sizes @ chance / sizes.sum()),
        classes_per_client=described.labels.per_client.median,
    )


def _name(federation: FederationSetup) -> str:
    data = federation.data
    return type(federation.losses).__name__ if data is None else data.name
