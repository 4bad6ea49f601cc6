"""The measurements that advice is based on, and the yes-or-no answers derived from them."""

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
"""Label skew is strong from this total variation on, beyond chance. Both Dirichlet settings of
FedDyn's paper, α = 0.6 and 0.3, are above it."""
DISSIMILAR = 2.0
"""Clients disagree from this B² on: gradients then differ as much as they have in common."""
UNEQUAL = 0.02
"""Unequal work matters from this χ² on. The error floor of FedNova's Theorem 2 is 2χ²σ_g²: for
B² = 10 and this χ², a third of the squared gradient at the start."""
FEW = 0.25
"""Few clients take part up to this share: a client's state, and so SCAFFOLD's correction, is then
at least four rounds old when it is used."""
SEEN_AGAIN = 2.0
"""A client that takes part less often than this in a whole run hardly uses its state."""
IDLE = 0.5
"""Asynchronous training is worth a try if clients wait for this share of their time or more."""

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
"""The answers that the rules use."""


@dataclass(frozen=True)
class LabelSkew:
    """Total variation between a client's labels and all labels, averaged by samples."""

    classes: int
    distance: float
    chance: float
    """its expectation if every client's labels were drawn from all labels at random"""
    classes_per_client: float
    """median over clients"""

    @property
    def beyond_chance(self) -> float:
        """The distance that chance does not explain."""
        return max(0.0, self.distance - self.chance)


@dataclass(frozen=True)
class Facts:
    """The measurements of a federation, made without training."""

    name: str
    clients: int
    samples: int
    parameters: int
    bytes_per_number: int
    objective: str
    sizes: Spread
    heaviest: float
    """the largest N·q_k: the weight of the heaviest client relative to the mean"""
    lightest: float
    """the largest 1/(N·q_k)"""
    labels: LabelSkew | None
    """None if targets are not classes"""
    gradients: GradientFacts
    curvature: Curvature
    rate: float | None
    """η, the local learning rate; None for exact local solutions"""
    rate_proposed: bool
    """whether it was proposed from the curvature because none was given"""
    rate_limit: float
    """the largest stable rate of gradient descent on a quadratic, 2/L"""
    work: LocalWork | None
    participation: Participation
    clock: ClockFacts | None
    delays: Delays | None
    setting: Conditions
    gradients_per_reply: float
    pace: str | None
    """the given pace, by its word in a file; None if none was given"""
    regularizer: Regularizer | None
    stateless: bool
    """whether clients cannot keep state between rounds"""

    @property
    def composite(self) -> bool:
        """Whether the objective has a regulariser g, which needs a method with a prox."""
        return self.regularizer is not None

    @property
    def asynchronous(self) -> bool:
        """Whether training is asynchronous."""
        return self.delays is not None

    @property
    def skewed(self) -> bool:
        """Whether label skew is strong."""
        return self.labels is not None and self.labels.beyond_chance >= SKEWED

    @property
    def dissimilar(self) -> bool:
        """Whether clients pull in different directions, by their labels or their gradients."""
        return self.clients > 1 and (self.skewed or self.gradients.beyond_chance >= DISSIMILAR)

    @property
    def unequal(self) -> bool:
        """Whether work is so unequal that plain averaging minimises another objective."""
        return self.work is not None and self.work.chi_square >= UNEQUAL

    @property
    def single_steps(self) -> bool:
        """Whether every client takes one step per round, so that none can drift."""
        return self.work is not None and self.work.steps_most <= 1

    @property
    def few(self) -> bool:
        """Whether few clients take part in a round."""
        return self.participation.share <= FEW

    @property
    def hardly_seen_again(self) -> bool:
        """Whether a client hardly ever takes part twice."""
        return self.participation.visits < SEEN_AGAIN

    @property
    def keeps_state(self) -> bool:
        """Whether clients can keep state between rounds and take part often enough to use it."""
        return not self.stateless and not self.hardly_seen_again

    @property
    def waiting(self) -> bool:
        """Whether clients mostly wait for others, and no pace was given that requires it."""
        return self.pace is None and self.clock is not None and self.clock.idle >= IDLE

    def as_dict(self) -> dict[str, Any]:
        """All numbers and answers as plain values, without the numbers per client."""
        found = asdict(self)
        if found["work"] is not None:
            for name in ("ids", "q", "w"):
                del found["work"][name]
        found["regularizer"] = None if self.regularizer is None else repr(self.regularizer)
        found["answers"] = {name: getattr(self, name) for name in ANSWERS}
        return plain(found)


def find_facts(federation: FederationSetup, curvature: Curvature, proposed: bool) -> Facts:
    """Measure a federation; `proposed` says that its learning rate was not given."""
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
    """The smoothness L at the initial model, including weight decay."""
    local: Local | None = federation.local
    return measure_curvature(federation, 0.0 if local is None else local.penalty)


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
