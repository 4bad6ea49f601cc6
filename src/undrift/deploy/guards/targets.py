"""Whether a target of a deployment is reached by the sites, and not by one of them alone.

Metrics come from the sites, which may invent them; a target ends a run for good.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from undrift.core.targets import Target, reached
from undrift.deploy.federation import RemoteFederation
from undrift.deploy.guards.metrics import has_own_models, metric_weights

if TYPE_CHECKING:
    from undrift.deploy.loops import DeployedLoop

LARGEST_SHARE = 0.5
"""The largest share of one site in a metric that a target is compared with."""
MIN_SITES = 2
"""How many sites must reach a target on their own data."""


def is_supported(
    run: DeployedLoop, metric: str, target: Target, metrics: Mapping[str, float]
) -> bool:
    """Whether a target that the metric reached counts.

    In a federation of three sites or more, two of them must reach it on their own data, and it must
    be reached if no site counts more than half.
    """
    if len(run.roster) <= MIN_SITES:
        return True
    model, _, name = metric.rpartition("/")
    found = run.engine.site_metrics[run.evaluation.models.index(model or "server")]
    offset = 0.0
    if name == "objective":  # the training loss, and terms that the server computes itself
        prefix = metric.removesuffix("objective")
        offset = metrics[metric] - metrics[f"{prefix}train_loss"]
        name = "train_loss"
    if not any(name in own for own in found.values()):
        return True  # a number about several sites, such as the spread of their accuracies
    values = {s: own[name] + offset for s, own in found.items() if math.isfinite(own[name])}

    def reaches(value: float) -> bool:
        return reached({metric: target}, {metric: value}) is not None

    losses = run.losses
    assert isinstance(losses, RemoteFederation)
    own = has_own_models(losses, model)
    shares = _capped_shares(metric_weights(losses, run.weights, name, found, own))
    mean = sum(shares[site] * values.get(site, math.nan) for site in shares)
    return sum(map(reaches, values.values())) >= MIN_SITES and reaches(mean)


def _capped_shares(weights: Mapping[Hashable, float]) -> dict[Hashable, float]:
    """The weights scaled to the sum one, with none above `LARGEST_SHARE` unless it is alone."""
    total = sum(weights.values())
    if not total:
        return {}
    largest = max(weights, key=lambda site: weights[site])
    others = total - weights[largest]
    if weights[largest] > others > 0:
        weights = {**weights, largest: others}
        total = 2 * others
    return {site: weight / total for site, weight in weights.items()}
