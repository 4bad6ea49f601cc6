"""Paired tests over seeds: whether two methods differ by more than the seeds explain.

Methods of a comparison share cohorts and batches for each seed, so that the differences of their
final metrics, seed by seed, vary less than the metrics themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from undrift.report.recorded_runs import MethodRuns, Runs
from undrift.report.tables import find_baseline, sort_metrics

MAX_TERMS = 300
"""Terms of the continued fraction; a few dozen are enough for any number of seeds."""


@dataclass(frozen=True)
class PairedTest:
    """Student's paired t-test of one metric: a method minus the baseline, seed by seed."""

    method: str
    baseline: str
    metric: str
    differences: tuple[float, ...]
    """one per seed that both methods finished"""

    @property
    def mean(self) -> float:
        return fmean(self.differences)

    @property
    def std(self) -> float:
        """Standard deviation of the differences, with n − 1."""
        return stdev(self.differences)

    @property
    def t(self) -> float:
        """mean / (std / √n); infinite if all differences are equal and not zero."""
        if self.std == 0:
            return math.copysign(math.inf, self.mean) if self.mean else 0.0
        return self.mean / (self.std / math.sqrt(len(self.differences)))

    @property
    def p(self) -> float:
        """Two-sided p-value: how likely a |t| this large is if the methods do not differ."""
        return two_sided_p(self.t, len(self.differences) - 1)


def paired_table(runs: Runs, baseline: str | None = None) -> list[PairedTest]:
    """Return the tests of every method against the baseline, for metrics with two common seeds."""
    against = find_baseline(runs, baseline)
    table = []
    for metric in sort_metrics(runs.metrics):
        of_baseline = _by_seed(against, metric)
        for group in runs.groups:
            own = _by_seed(group, metric)
            both = [seed for seed in own if seed in of_baseline]
            if group is not against and len(both) > 1:
                found = tuple(own[seed] - of_baseline[seed] for seed in both)
                table.append(PairedTest(group.label, against.label, metric, found))
    return table


def _by_seed(group: MethodRuns, metric: str) -> dict[int, float]:
    """The final value of a metric for every seed in which it is finite."""
    found = {run.seed: run.metrics.get(metric, math.nan) for run in group.runs}
    return {seed: value for seed, value in found.items() if math.isfinite(value)}


def two_sided_p(t: float, freedom: int) -> float:
    """P(|T| ≥ |t|) for Student's T with this many degrees of freedom."""
    if math.isinf(t):
        return 0.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other side converges faster
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front / a / _fraction(_beta_terms(a, b, x))


def _beta_terms(a: float, b: float, x: float) -> list[float]:
    """The numerators d_1, d_2, … of the continued fraction 1 + d_1/(1 + d_2/(1 + …))."""
    terms = []
    for m in range(MAX_TERMS // 2):
        terms.append(-(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)))
        n = m + 1
        terms.append(n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n)))
    return terms


def _fraction(numerators: Sequence[float]) -> float:
    """1 + d_1/(1 + d_2/(1 + …)), from its last term to its first."""
    value = 1.0
    for d in reversed(numerators):
        value = 1 + d / value
    return value
