"""`Mechanism`: the Gaussian mechanism of one run, round by round.

A loop asks it what to send to the clients' clipping, hands it each round's sums, and folds what it
releases. It counts releases, follows the clipping norm, and says what was spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.method import Method
from undrift.core.replies import Replies, Weight, once, q, q_draws
from undrift.privacy.accountant import Measured, accountant_used, default_delta, epsilon_spent
from undrift.privacy.calibration import measured, noise_for, rounds_within
from undrift.privacy.clipping import CLIP, WITHIN, Scales
from undrift.privacy.gaussian import EXACT, AdaptiveClip, Gaussian, NoisyMetrics
from undrift.privacy.noise_sources import NoiseSource
from undrift.privacy.released import ReleasedReplies
from undrift.privacy.sampling import CohortLaw
from undrift.privacy.spending import COMMON_ONLY, accounting
from undrift.utils.errors import require

BITS = "clipped bits"
"""The purpose of the noise in the number of uploads within the clipping norm."""
METRICS = "metrics"
"""The purpose of the noise in metrics of the clients' data."""


@dataclass(frozen=True)
class Guarantee:
    """What a run promises: everything that ε depends on, besides the number of releases."""

    noise: float
    """z, by which the run is accounted"""
    law: CohortLaw
    delta: float
    accountant: str
    metrics: NoisyMetrics | None = None

    def epsilon(self, releases: int, evaluations: int | None = None) -> float:
        """The ε that a number of releases spends.

        `evaluations` is the number of noisy metrics besides; None for those of so many rounds.
        """
        besides = measured(self.metrics, releases)
        if evaluations is not None:
            besides = Measured(besides.noise, evaluations)
        return epsilon_spent(
            self.noise, self.law, releases, self.delta, self.accountant, 1, besides
        )

    def most_releases(self, budget: float, more: int = 0) -> int:
        """The largest number of releases within a budget of ε, with `more` evaluations besides."""
        known = self.law, self.noise, self.delta, self.accountant, self.metrics
        return rounds_within(budget, *known, more)

    def sentence(self, releases: int) -> str:
        """What was spent, at which δ, for which neighbours, under which assumption."""
        used = accountant_used(self.law, self.accountant).upper()
        metrics = ""
        if self.metrics is not None:
            times = self.metrics.evaluations(releases)
            metrics = f" and {times} noisy metrics with {self.metrics.noise:.4g}"
        return (
            f"ε = {self.epsilon(releases):.4g} at δ = {self.delta:.3g} after {releases} rounds "
            f"with noise multiplier {self.noise:.4g}{metrics}; neighbours: {self.law.relation}; "
            f"{self.law.assumption}; accountant {used}."
        )


def guarantee_of(privacy: Gaussian, law: CohortLaw, rounds: int) -> Guarantee:
    """The guarantee of a run; noise that is not given is computed from ε and the rounds."""
    delta = default_delta(law.clients) if privacy.delta is None else privacy.delta
    found = privacy.noise
    if found is None:
        assert privacy.epsilon is not None  # checked by `Gaussian`
        known = law, max(1, rounds), delta, privacy.accountant, privacy.noisy_metrics
        found = noise_for(privacy.epsilon, *known)
    return Guarantee(found, law, delta, privacy.accountant, privacy.noisy_metrics)


class Mechanism:
    """The Gaussian mechanism of one run.

    Parameters
    ----------
    privacy
        the settings
    guarantee
        what follows from them for this run
    method, roster
        the method, whose uploads are summed, and all clients
    scales
        the public scales of the uploads
    source
        where noise comes from
    """

    def __init__(
        self,
        privacy: Gaussian,
        guarantee: Guarantee,
        method: Method,
        roster: Roster,
        scales: Scales,
        source: NoiseSource,
    ):
        self.privacy = privacy
        self.guarantee = guarantee
        self.source = source
        self.clip = privacy.first_clip
        """C_t, the clipping norm of the next round; None for no clipping"""
        self.used_clip = self.clip
        """the clipping norm of the last round"""
        self.releases = 0
        """how many noisy sums were released"""
        self.evaluations = 0
        """how many noisy metrics were released"""
        self._budget: tuple[tuple[Guarantee, int, int], int] | None = None
        self._label = method.name
        self._names = method.sums()
        self._roster = roster
        self._scales = scales
        self._totals = cache(self._total)
        self.largest = cache(self._most)
        """max by(k) over all clients, for a weight"""

    def settings(self) -> dict[str, float]:
        """What the server sends to the clients' clipping in this round."""
        if not isinstance(self.privacy.clip, AdaptiveClip):
            return {}
        assert self.clip is not None
        return {CLIP: self.clip}

    @property
    def bit_noise(self) -> float:
        """σ_b, the standard deviation of the noise in the sum of the bits of adaptive clipping."""
        clip, z = self.privacy.clip, self.guarantee.noise
        assert isinstance(clip, AdaptiveClip)
        if z == 0:
            return 0.0
        wanted = self.guarantee.law.mean / 20 if clip.noise is None else clip.noise
        return wanted if 2 * wanted > z else z

    @property
    def noise(self) -> float:
        """The noise multiplier of the uploads: more than z if the bits share the budget."""
        z = self.guarantee.noise
        if z == 0 or not isinstance(self.privacy.clip, AdaptiveClip):
            return z
        # A bit less ½ has norm ½, so that the bits alone have the noise multiplier 2σ_b.
        return (z**-2 - (2 * self.bit_noise) ** -2) ** -0.5

    def spent(self) -> float:
        """The ε spent so far."""
        return self.guarantee.epsilon(self.releases, self.evaluations)

    def recorded(self, accounted: bool) -> dict[str, Any]:
        """What records say of the last round; ε, which takes a moment to compute, if asked."""
        metrics = self.guarantee.metrics
        found: dict[str, Any] = {
            "noise": float(self.guarantee.noise),
            "delta": self.guarantee.delta,
            "releases": self.releases,
        }
        if metrics is not None:
            found["evaluations"] = self.evaluations
        if self.used_clip is not None:
            found["clip"] = float(self.used_clip)
        if accounted:
            found["metrics"] = self._metrics_said()
        if accounted and self.guarantee.noise > 0 and math.isfinite(spent := self.spent()):
            law = self.guarantee.law
            found |= {"epsilon": spent, "neighbours": law.relation}
            found["sampling"] = law.assumption
            noise = 0.0 if metrics is None else metrics.noise
            found["accounting"] = accounting(law, self.guarantee.accountant, noise)
        return found

    def exhausted(self, rounds: int) -> str | None:
        """Why the budget allows no further release, or None; `rounds` are those of the run."""
        budget = self.privacy.epsilon
        if budget is None or self.releases < self._most_releases(rounds):
            return None
        return (
            f"the privacy budget is spent: another round would exceed ε = {budget:g} at δ = "
            f"{self.guarantee.delta:.3g}"
        )

    def _most_releases(self, rounds: int) -> int:
        """The number of releases that the budget allows; at least `rounds` if it allows those."""
        budget, guarantee = self.privacy.epsilon, self.guarantee
        assert budget is not None
        more = self._more_evaluations()
        known = guarantee, rounds, more
        if self._budget is None or self._budget[0] != known:
            planned = measured(guarantee.metrics, rounds, more).times
            enough = guarantee.epsilon(rounds, planned) <= budget
            self._budget = known, rounds if enough else guarantee.most_releases(budget, more)
        return self._budget[1]

    def _more_evaluations(self) -> int:
        """Evaluations besides the regular ones so far, such as that of a former last round."""
        metrics = self.guarantee.metrics
        if metrics is None:
            return 0
        return max(0, self.evaluations - 1 - self.releases // metrics.every)

    def _metrics_said(self) -> str:
        """What records say about the metrics beside them."""
        if self.guarantee.metrics is not None:
            z = self.guarantee.metrics.noise
            return f"of clients' data: noisy means, accounted with noise multiplier {z:g}"
        if self.privacy.metrics == EXACT:
            return "exact, outside the guarantee"
        return COMMON_ONLY

    def may_measure(self) -> bool:
        """Whether the budget allows one more release of noisy metrics."""
        budget = self.privacy.epsilon
        if budget is None:
            return True
        return self.guarantee.epsilon(self.releases, self.evaluations + 1) <= budget

    def release_metrics(
        self, by_client: Mapping[str, Mapping[Hashable, float]], parts: Sequence[str], round: int
    ) -> dict[str, float]:
        """The noisy means over all clients of their losses and accuracies; counts as released.

        Σ_k q_k (m_k/B − ½) is noised, where m_k is cut to [0, B]: one client moves all of the n
        sums together by at most max q_k·√n/2. `by_client` has the clients' metrics by name.
        """
        metrics = self.guarantee.metrics
        assert metrics is not None
        self.evaluations += 1
        bounds = {"loss": metrics.largest_loss, "accuracy": 1.0}
        names = [(f"{part}_{name}", most) for part in parts for name, most in bounds.items()]
        deviation = metrics.noise * self.largest(q) * math.sqrt(len(names)) / 2
        noise = self.source.normal(METRICS, round, len(names)).mul_(deviation).tolist()
        found = {}
        for (name, most), added in zip(names, noise, strict=True):
            if name not in by_client:  # it is not defined for this model
                continue
            total = 0.5 + added
            for client, value in by_client[name].items():
                cut = min(max(float(value), 0.0), most) / most
                total += float(q(self._roster.client(client))) * (cut - 0.5)
            found[name] = most * min(max(total, 0.0), 1.0)
        return found

    def deviation(self, rate: float) -> Callable[[str], float]:
        """The standard deviation of the noise in an uploaded vector, for the weight 1.

        `rate` is the learning rate of the round.
        """
        clipped = 0.0 if self.clip is None else self.noise * self.clip
        scales = self._scales(rate)
        return lambda name: clipped * scales.get(name, 1.0)

    def release(self, replies: Replies, like: Tensor, round: int, rate: float) -> ReleasedReplies:
        """The noisy sums of a round; they count as released, whatever becomes of them.

        `like` is a vector of the model's shape, and `rate` the learning rate of the round.
        """
        self.used_clip = self.clip
        deviation = self.deviation(rate)

        def noise(name: str) -> Tensor:
            return self.source.normal(name, round, like.numel()).mul_(deviation(name))

        released = ReleasedReplies(
            replies,
            self._names,
            noise if self.clip is not None and self.noise else None,
            like,
            self.guarantee.law.probability,
            self._totals,
            self.largest,
        )
        self.releases += 1
        self._adapt(replies, round)
        return released

    def _adapt(self, replies: Replies, round: int) -> None:
        """Move the clipping norm towards the quantile."""
        clip = self.privacy.clip
        if not isinstance(clip, AdaptiveClip):
            return
        assert self.clip is not None
        total = replies.sum(WITHIN, by=once) if replies.count else 0.0
        total += self.bit_noise * float(self.source.normal(BITS, round, 1))
        within = min(1.0, max(0.0, 0.5 + total / self.guarantee.law.mean))
        self.clip *= math.exp(-clip.rate * (within - clip.quantile))

    def _total(self, by: Weight) -> float:
        """Σ by(k) over all clients, in the order of the roster."""
        return float(sum(float(by(self._roster.client(id))) for id in self._roster.ids))

    def _most(self, by: Weight) -> float:
        """The largest weight of a client; with capped weights the cap, which is public."""
        cap, numbers = self.privacy.max_samples, self._roster.counts
        if cap is not None and numbers is not None and by in (q, q_draws):
            return cap / float(sum(numbers.values()))
        return max(float(by(self._roster.client(id))) for id in self._roster.ids)

    def saved(self) -> dict[str, Any]:
        """What a resumed run needs: never less than what was spent."""
        counts = {"releases": self.releases, "evaluations": self.evaluations}
        return {"noise": self.guarantee.noise, "clip": self.clip, "terms": self._terms(), **counts}

    def _terms(self) -> dict[str, float | str | None]:
        """The settings that must stay as they are, by the words of an error.

        ε is computed from the number of releases, as if all of them had the present settings.
        """
        law, clip, metrics = self.guarantee.law, self.privacy.clip, self.guarantee.metrics
        return {
            "clip": "adaptive" if isinstance(clip, AdaptiveClip) else clip,
            "delta": self.guarantee.delta,
            "max_samples": self.privacy.max_samples,
            "steps": self.privacy.steps,
            "metrics": str(self.privacy.metrics) if metrics is None else f"noise {metrics.noise}",
            "cohorts": law.kind,
            "the number of clients": law.clients,
            "the sampling probability": law.probability,
            "the amplification by sampling": "yes" if law.amplified else "no",
        }

    def _require_same(self, saved: Mapping[str, Any]) -> None:
        """An error if the settings differ from those of the rounds that are accounted."""
        then: dict[str, Any] = {"noise": saved["noise"], **saved.get("terms", {})}
        given = self.privacy.noise
        now: dict[str, Any] = {"noise": saved["noise"] if given is None else given, **self._terms()}
        if "terms" not in saved and not isinstance(self.privacy.clip, AdaptiveClip):
            then["clip"] = saved["clip"]  # a store of an older version
        for name, value in then.items():
            old, new = ("none" if each is None else each for each in (value, now.get(name)))
            require(
                old == new,
                f"{self._label} was private with {name} = {old} so far, but is resumed with {new}, "
                f"and one ε cannot cover both: set it to {old} again, or run the experiment in "
                f"another folder, which spends anew.",
            )

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue with what `saved` returned; an error if settings that ε depends on changed.

        A run whose rounds were extended keeps its noise: the budget then ends it.
        """
        self._require_same(saved)
        self.guarantee = replace(self.guarantee, noise=saved["noise"])
        self.clip = saved["clip"]
        self.releases = saved["releases"]
        self.evaluations = saved.get("evaluations", 0)
