"""`undrift deploy site --dry-run`: what a site would send for one round, with all values.

The answers are those of a real `Site` to the first orders of a run, made in a temporary folder.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from undrift.deploy.orders import EvaluationOrder, RunTerms, WorkOrder
from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.deploy.policy.audit import described
from undrift.deploy.policy.limits import Limits
from undrift.deploy.site import Site
from undrift.deploy.wire_format import decode
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import require
from undrift.utils.keys import generator


@dataclass(frozen=True)
class Preview:
    """What a site would send for the first round of a method."""

    label: str
    steps: int
    answer: bytes
    """the answer to the order to train, as it would be sent"""
    values: dict[str, Any]
    tensors: dict[str, Tensor]
    """the same, decoded"""
    metrics: dict[str, dict[str, Any]]
    """the metrics that would be sent, by model"""


def preview(experiment: Experiment, name: str, limits: Limits) -> list[Preview]:
    """What a site would send for the first round of every method that its limits allow.

    The other sites' numbers of samples are unknown here: all are taken to be as large as this one.
    """
    with tempfile.TemporaryDirectory() as folder:
        site = Site(experiment, name, Path(folder), limits)
        wanted = limits.methods or experiment.labels
        return [_preview(site, label) for label in experiment.labels if label in wanted]


def _preview(site: Site, label: str) -> Preview:
    experiment, seed = site.experiment, site.experiment.seeds[0]
    sites = [str(each) for each in experiment.data.parameters["sites"]]
    roster = {each: (float(len(site.data.train)), 1 / len(sites)) for each in sites}
    terms = RunTerms(f"dry run {label}", label, seed, 1, experiment.rounds, roster)
    run = AgreedRun(experiment, label, seed, site.name, roster)
    losses = site.losses_of(seed)

    def draw(purpose: str) -> float:
        return generator(seed, purpose, 0).random()

    x0, buffers = losses.initial(), losses.initial_buffers()
    download = run.method.download(run.method.begin(run.method.init(x0.clone()), draw))
    download = download.replace(**run.first_settings)
    metrics = {}
    for model in run.evaluation.models:
        order = EvaluationOrder(terms, 0, model, x0, buffers)
        metrics[model] = _decoded(site.answer(order.encoded()))[0]["metrics"]
    answer = site.answer(WorkOrder(terms, 0, 0, 0, 0, None, download, buffers).encoded())
    values, tensors = _decoded(answer)
    return Preview(label, int(values["steps"]), answer, values, tensors, metrics)


def as_lines(found: Preview) -> list[str]:
    """A preview in lines: what is sent, in which shape and size, without the single values."""
    lines = [f"{found.label}: {found.steps} steps, an answer of {len(found.answer)} bytes"]
    for name, each in described(found.tensors).items():
        shape = "x".join(map(str, each["shape"]))
        lines.append(
            f"  {name}: {shape} {each['type']}, {each['bytes']} bytes, norm {each['norm']:.6g}"
        )
    for name, value in found.values.items():
        if name == "numbers":
            lines += [f"  number {own}: {number:.6g}" for own, number in value.items()]
        else:
            lines.append(f"  {name}: {value}")
    for model, metrics in found.metrics.items():
        shown = ", ".join(f"{name} {value}" for name, value in metrics.items())
        lines.append(f"  metrics of the model {model!r}, another answer: {shown}")
    return lines


def as_values(found: Preview) -> dict[str, Any]:
    """A preview as plain values, all of them."""
    return {
        "method": found.label,
        "bytes": len(found.answer),
        "values": found.values,
        "tensors": {name: value.tolist() for name, value in found.tensors.items()},
        "metrics": found.metrics,
    }


def _decoded(answer: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    values, tensors = decode(answer, len(answer))
    require("error" not in values, f"The site would refuse this: {values.get('error')}")
    return values, tensors
