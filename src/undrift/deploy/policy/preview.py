"""`undrift deploy site --dry-run`: what a site would send for one round, with all values.

The answers are those of a real `Site` to the first orders of a run, made in a temporary folder.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from undrift.deploy.agreement import facts
from undrift.deploy.orders import DESCRIBE, STATISTICS, EvaluationOrder, RunTerms, WorkOrder
from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.deploy.policy.audit import described
from undrift.deploy.policy.limits import Limits
from undrift.deploy.policy.protections import protections
from undrift.deploy.site import Site
from undrift.deploy.site_data.agreed import agreement, wanted
from undrift.deploy.wire_format import decode, encode
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
    statistics: list[dict[str, Any]]
    """the statistics that would be sent before the run, if this were the only site"""
    revealed: list[str]
    """what these tell the server, in sentences"""
    protections: list[str]
    """what compresses, clips, noises and masks the upload before it leaves"""
    noisy_metrics: bool
    """whether the server adds noise to the metrics before it publishes their means"""


def preview(experiment: Experiment, name: str, limits: Limits) -> list[Preview]:
    """What a site would send for the first round of every method that its limits allow.

    The other sites' numbers of samples are unknown here: all are taken to be as large as this one.
    """
    with tempfile.TemporaryDirectory() as folder:
        site = Site(experiment, name, Path(folder), limits)
        site.masks_uploads = False  # what is shown is what the masks would hide
        wanted = limits.methods or experiment.labels
        return [_preview(site, label) for label in experiment.labels if label in wanted]


def _preview(site: Site, label: str) -> Preview:
    experiment, seed = site.experiment, site.experiment.seeds[0]
    sites = [str(each) for each in experiment.data.parameters["sites"]]
    roster = {each: (float(len(site.data.train)), 1 / len(sites)) for each in sites}
    name = hashlib.sha256(label.encode()).hexdigest()[:16]
    statistics = _agree_alone(site, name)
    terms = RunTerms(name, label, seed, 1, experiment.rounds, roster)
    run = AgreedRun(experiment, label, seed, site.name, roster)
    losses = site.losses_of(seed)

    def draw(purpose: str) -> float:
        return generator(seed, purpose, 0).random()

    x0, buffers = losses.initial(), losses.initial_buffers()
    download = run.method.download(run.method.begin(run.method.init(x0.clone()), draw))
    download = download.replace(**run.first_settings)
    metrics = {}
    for model in run.evaluation.models if run.evaluation.parts else ():
        order = EvaluationOrder(terms, 0, model, x0, buffers)
        metrics[model] = _decoded(site.answer(order.encoded()))[0]["metrics"]
    answer = site.answer(WorkOrder(terms, 0, 0, 0, 0, None, download, buffers).encoded())
    values, tensors = _decoded(answer)
    revealed = wanted(experiment).revealed()
    steps = int(values["steps"])
    protected = protections(experiment, run)
    noisy = run.privacy is not None and run.privacy.noisy_metrics is not None
    return Preview(
        label, steps, answer, values, tensors, metrics, statistics, revealed, protected, noisy
    )


def _agree_alone(site: Site, run: str) -> list[dict[str, Any]]:
    """The site's answers to the questions before a run; it then has an agreement with itself."""
    needed = wanted(site.experiment)
    if not needed:
        return []
    common = {"experiment": facts(site.experiment), "run": run}
    asking, found = agreement(needed), []
    question = next(asking)
    while True:
        request = encode({"kind": STATISTICS, **common, "question": question}, {})
        found.append(_decoded(site.answer(request))[0]["statistics"])
        try:
            question = asking.send({site.name: found[-1]})
        except StopIteration as done:
            request = encode({"kind": DESCRIBE, **common, "agreed": done.value.plain()}, {})
            _decoded(site.answer(request))
            return found


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
    lines += [f"  the upload is {each}" for each in found.protections]
    lines += [f"  before the run: {each}" for each in found.revealed]
    for model, metrics in found.metrics.items():
        shown = ", ".join(f"{name} {value}" for name, value in metrics.items())
        lines.append(f"  metrics of the model {model!r}, another answer: {shown}")
    if found.noisy_metrics:
        lines.append("  the server adds noise to the means of metrics, if it is honest")
    if not found.metrics:
        lines.append("  no metrics: they would be outside the guarantee of [privacy]")
    return lines


def as_values(found: Preview) -> dict[str, Any]:
    """A preview as plain values, all of them."""
    return {
        "method": found.label,
        "bytes": len(found.answer),
        "values": found.values,
        "tensors": {name: value.tolist() for name, value in found.tensors.items()},
        "protections": found.protections,
        "metrics": found.metrics,
        "statistics": found.statistics,
    }


def _decoded(answer: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    values, tensors = decode(answer, len(answer))
    require("error" not in values, f"The site would refuse this: {values.get('error')}")
    return values, tensors
