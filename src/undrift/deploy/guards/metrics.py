"""The metrics of a deployment: checks those that sites send, and combines them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Mapping

import torch
from torch import Tensor

from undrift.core.targets import PARTS
from undrift.deploy.federation import RemoteFederation
from undrift.deploy.protocol import OVERHEAD_BYTES, raise_site_error
from undrift.deploy.transport import Answer
from undrift.deploy.wire_format import InvalidMessage, decode
from undrift.loops.measuring import OWN_MODELS

MAX_METRICS = 100
"""The most metrics that one site may send."""
METRIC_NAME = re.compile(r"\w[\w .²-]{0,60}")
"""Allowed names of metrics, after the part and an underscore."""


def metrics_in(answer: Answer, parts: Collection[str]) -> dict[str, float]:
    """The metrics in an answer, checked to be of the parts that were asked for."""
    if answer.failure is not None:
        raise InvalidMessage(answer.failure)
    values, tensors = decode(answer.data, OVERHEAD_BYTES)
    raise_site_error(values)
    found = values.get("metrics")
    if tensors or not isinstance(found, dict) or not 0 < len(found) <= MAX_METRICS:
        raise InvalidMessage("it has no metrics")
    for name, value in found.items():
        part, _, metric = name.partition("_")
        shown = repr(name[:40])
        if part not in parts or not METRIC_NAME.fullmatch(metric):
            raise InvalidMessage(f"{shown} was not asked for")
        if value is None:  # undefined at this site
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidMessage(f"{shown} must be a number")
        if metric == "accuracy" and not 0 <= value <= 1:
            raise InvalidMessage(f"{shown} must be in [0, 1]")
    return {name: math.nan if value is None else float(value) for name, value in found.items()}


def has_own_models(losses: RemoteFederation, model: str) -> bool:
    """Whether every site measures a model of its own under this name."""
    return model in OWN_MODELS or losses.personal is not None


def combined_metrics(
    losses: RemoteFederation,
    weights: Tensor,
    found: Mapping[Hashable, Mapping[str, float]],
    parts: Collection[str] = PARTS,
    own: bool = False,
) -> dict[str, float]:
    """The metrics of all sites from those of each: training losses by q_k, others by samples.

    Metrics of models of which every site has its `own` are means by q_k, as in simulations. Numbers
    of samples are those that count, which the operator may have fixed or capped. A site on which a
    metric is undefined does not count in it; an undefined loss is not hidden.
    """
    names = dict.fromkeys(name for metrics in found.values() for name in metrics)
    combined = {}
    for name in names:
        shares = metric_weights(losses, weights, name, found, own)
        total = sum(shares.values())
        if total:
            combined[name] = sum(w / total * found[site][name] for site, w in shares.items())
    combined |= {} if own else _accuracy_spread(found)
    if "train_loss" not in combined and "train" in parts:
        combined["train_loss"] = float("nan")
    return combined


def metric_weights(
    losses: RemoteFederation,
    weights: Tensor,
    name: str,
    found: Mapping[Hashable, Mapping[str, float]],
    own: bool = False,
) -> dict[Hashable, float]:
    """The weight of each site in a metric: q_k for the training loss, else samples of the part.

    It is always q_k if every site has its `own` model.
    """
    by_weight = {name} if own else {"train_loss"}
    q = dict(zip(losses.ids, weights.tolist(), strict=True))
    part = name.partition("_")[0]
    return {
        site: q[site] if name in by_weight else losses.counted_samples[str(site)].get(part, 0)
        for site, metrics in found.items()
        if name in metrics and (name.endswith("_loss") or not math.isnan(metrics[name]))
    }


def _accuracy_spread(found: Mapping[Hashable, Mapping[str, float]]) -> dict[str, float]:
    """Accuracy per site: mean, standard deviation, and mean of the worst tenth of the sites."""
    for part in ("test", "train"):
        name = f"{part}_accuracy"
        each = [metrics[name] for metrics in found.values() if name in metrics]
        if len(each) > 1:
            values = torch.tensor(each, dtype=torch.float64).sort().values
            worst = values[: max(1, len(values) // 10)]
            return {
                f"{part}_client_accuracy_mean": float(values.mean()),
                f"{part}_client_accuracy_std": float(values.std(correction=0)),
                f"{part}_client_accuracy_worst_tenth": float(worst.mean()),
            }
    return {}
