"""The criterion of a model: the loss it trains on and the metrics it is judged by.

`criterion_for` chooses the default from the model's outputs and the targets, and rejects
combinations that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undrift.data.samples.structure import Tree, join_batch
from undrift.nets.calling import call_model, has_own_loss, in_float32, own_loss, scores_of
from undrift.nets.metrics import Function, Streaming
from undrift.utils.errors import UndriftError, first_line, require

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → the mean loss over the batch, a scalar tensor."""
Step = Callable[[nn.Module, Any], Tensor]
"""(model, batch) → the mean loss over the batch: a user's own way from a batch to a loss."""
Metric = Callable[[Tensor, Tensor], float | Tensor] | Streaming
"""A function (outputs, targets) → number, or an object with `update`, `compute` and `reset`."""
Metrics = Mapping[str, Metric | str] | Sequence[str]
"""Metrics by name, or a list of names of `undrift.nets.metrics`."""
FP32, BF16 = "fp32", "bf16"
PRECISIONS = {
    FP32: "float32 throughout",
    BF16: "mixed: forward and backward passes of clients' training in bfloat16 (torch.autocast); "
    "weights, updates, method and evaluation in float32",
}
"""Every precision of training by name, with a description for help texts."""
LOSS = "loss"
"""Name of the loss among the metrics."""
FEW_CLASSES = 16
"""Below this number of classes, torch's cross-entropy takes several times as long as the formula
in `cross_entropies`."""


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for each correctly classified sample, else 0 (for sequences: for each position)."""
    # `max` finds the same indices as `argmax` and is faster.
    return (outputs.max(1).indices == targets).cpu().double()


def absolute_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """The absolute error of each sample."""
    return (outputs - targets).abs()


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each sample."""
    if outputs.shape[1] >= FEW_CLASSES:
        return F.cross_entropy(outputs, targets, reduction="none")
    below = outputs - outputs.detach().amax(1, keepdim=True)  # so that exp cannot overflow
    return below.exp().sum(1).log() - below.gather(1, targets[:, None])[:, 0]


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each sample."""
    return F.mse_loss(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Criterion:
    """A loss and the metrics that go with it."""

    loss: Loss
    metrics: Mapping[str, Function] = field(default_factory=dict)
    """the user's own functions that are not means over samples, so that they need the outputs of
    all samples at once"""
    per_sample: Loss | None = None
    """(outputs, targets) → the loss of each sample; None if a batch's loss is not their mean"""
    means: Mapping[str, Loss] = field(default_factory=dict)
    """the metrics that are means over samples, each as a function of every sample; "accuracy" is
    among them if outputs are scores for classes"""
    not_per_sample: str = ""
    """why `per_sample` is None, as the end of a sentence that begins with "The loss" """
    streaming: Mapping[str, Streaming] = field(default_factory=dict)
    """the user's own metrics that take the outputs piece by piece"""
    chunked: Mapping[str, Function] = field(default_factory=dict)
    """the user's own functions that are means over samples, so that chunks of them suffice"""
    step: Step | None = None
    """the user's own way from a batch to its loss, in place of `loss`"""
    batchwise: bool = False
    """whether the loss of many samples is that of their batches, weighted by their sizes: where a
    model or a step computes it, and it is not known for single samples"""
    precision: str = FP32
    """one of `PRECISIONS`: how `loss_of` calls the model"""

    @property
    def needs_outputs(self) -> bool:
        """Whether the loss or a metric needs the outputs of all samples at once."""
        return (self.per_sample is None and not self.batchwise) or bool(self.metrics)

    @property
    def uses_outputs(self) -> bool:
        """Whether evaluation needs the outputs besides the loss."""
        return self.needs_outputs or bool(self.streaming)

    def loss_of(self, module: nn.Module, inputs: Tree, targets: Tree) -> Tensor:
        """How a batch becomes a loss: a scalar tensor, the mean over the batch."""
        if self.precision == FP32:
            if self.step is not None:
                return self.step(module, join_batch(inputs, targets))
            return self.loss(call_model(module, inputs), targets)
        device = next(module.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            if self.step is not None:
                return self.step(module, join_batch(inputs, targets)).float()
            outputs = call_model(module, inputs)
        # The logarithms and sums of a loss need more digits than bfloat16 has.
        return self.loss(in_float32(outputs), targets)

    def values_of_samples(
        self, outputs: Tensor, targets: Tensor, cuts: Sequence[int] = ()
    ) -> dict[str, Tensor]:
        """The loss and the metrics of each sample, `[n]`, where these are means over samples.

        `cuts` are the positions at which another client begins, if clients are told apart: a
        chunked metric has the same value for all samples between two of them.
        """
        known = {} if self.per_sample is None else {LOSS: self.per_sample}
        found = {
            name: mean_of_each_sample(f(outputs, targets))
            for name, f in {**known, **self.means}.items()
        }
        for name, metric in self.chunked.items():
            try:
                found[name] = _over_cuts(metric, outputs, targets, cuts)
            except Exception as error:
                raise UndriftError(
                    f"The metric {name!r} returns no number: {first_line(error)}."
                ) from error
        return found

    def weighted_loss(self, weights: Tensor) -> Loss:
        """(outputs, targets) → Σ w_i · the loss of sample i; needs `per_sample`."""
        assert self.per_sample is not None
        per_sample = self.per_sample
        return lambda outputs, targets: weights @ mean_of_each_sample(per_sample(outputs, targets))

    def own_metrics(self, part: str, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The user's own metrics on a part, as `"{part}_{metric}"`."""
        found = {}
        for name, metric in self.metrics.items():
            try:
                found[f"{part}_{name}"] = float(metric(outputs, targets))
            except Exception as error:
                raise UndriftError(
                    f"The metric {name!r} returns no number on the {part} part: "
                    f"{first_line(error)}."
                ) from error
        return found


def _over_cuts(metric: Function, outputs: Tensor, targets: Tensor, cuts: Sequence[int]) -> Tensor:
    """The value of a chunk for each of its samples, cut into chunks of one client by `cuts`."""
    values = torch.empty(len(targets), dtype=torch.float64)
    ends = [*cuts, len(targets)]
    for first, last in zip([0, *cuts], ends, strict=True):
        if first < last:
            found = float(metric(outputs[first:last], targets[first:last]))
            values[first:last] = found
    return values


def structured_criterion(
    outputs: Any,
    targets: Any,
    loss: Loss | None,
    metrics: Mapping[str, Metric] | None,
    step: Step | None,
) -> Criterion:
    """The criterion of a step, or of a model whose outputs or targets are not one tensor.

    Without a loss from the user, the model must compute its own.
    """
    plain, streaming = _split(metrics)
    scores = scores_of(outputs)
    known = isinstance(scores, Tensor) and isinstance(targets, Tensor) and step is None
    classes = known and scores.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point()  # type: ignore[union-attr]
    means: dict[str, Loss] = {"accuracy": _correct_scores} if classes else {}
    if step is not None:
        reason = "is computed by a step"
        return Criterion(own_loss, plain, None, {}, reason, streaming, step=step, batchwise=True)
    if loss is None:
        require(
            has_own_loss(outputs),
            f"What the model returns is a {type(outputs).__name__}, but must be one tensor: give "
            f"loss=…, a function of (outputs, targets), step=…, a function of (model, batch), or a "
            f"model that returns its own loss.",
        )
        reason = "is computed by the model"
        return Criterion(own_loss, plain, None, means, reason, streaming, batchwise=True)
    reason = "takes outputs that are not one tensor"
    return Criterion(loss, plain, None, means, reason, streaming, batchwise=True)


def _split(
    metrics: Mapping[str, Metric] | None,
) -> tuple[dict[str, Function], dict[str, Streaming]]:
    """The user's metrics that are functions, and those that take the outputs piece by piece."""
    own = dict(metrics or {})
    streaming = {name: each for name, each in own.items() if isinstance(each, Streaming)}
    plain: dict[str, Function] = {n: f for n, f in own.items() if n not in streaming}  # type: ignore[misc]
    return plain, streaming


def _correct_scores(outputs: Any, targets: Tensor) -> Tensor:
    scores = scores_of(outputs)
    assert scores is not None
    return correct(scores, targets)


def mean_of_each_sample(values: Tensor) -> Tensor:
    """The mean of each sample's values, `[n, …]` to `[n]`."""
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def criterion_for(
    outputs: Tensor,
    targets: Tensor,
    labels: tuple[int, int] | None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> Criterion:
    """The criterion that fits a model's outputs and the targets.

    Without a loss from the user, integer targets are classes (cross-entropy) and floating-point
    targets are values (squared error), and outputs that do not fit are rejected. With one, only
    that loss must fit; accuracy is measured if outputs are scores for classes.

    Parameters
    ----------
    outputs, targets
        of a few samples
    labels
        the smallest and the largest integer target; None for floating-point targets
    loss, metrics
        the user's own, if any
    """
    shape, wanted = list(outputs.shape), list(targets.shape)
    many = len(shape) > 1 and shape[1] > 1
    scores = len(shape) == len(wanted) + 1 and [shape[0], *shape[2:]] == wanted
    if labels is None:
        require(
            loss is not None or shape == wanted,
            f"The model returns shape {shape}, but the targets have shape {wanted}: for "
            f"regression the two must be the same, so use targets[:, None] or .squeeze(-1)"
            + (
                "; if they are classes, make them whole numbers: 1 and not 1.0 in a file, "
                "targets.long() in Python."
                if many
                else "."
            ),
        )
        means: dict[str, Loss] = {"absolute_error": absolute_errors} if loss is None else {}
        criterion = Criterion(F.mse_loss, {}, squared_errors, means)
    else:
        low, high = labels
        known = scores and low >= 0 and high < shape[1]
        require(
            loss is not None or scores,
            f"The model returns shape {shape} for targets of shape {wanted}, but classification "
            f"needs [batch, classes]: one score per class and sample (targets for regression are "
            f"floating-point numbers).",
        )
        require(
            loss is not None or known,
            f"The labels go from {low} to {high}, but the model has scores for classes 0 … "
            f"{shape[1] - 1 if scores else 0}"
            + ("." if many else "; if they are values, make them floating-point, targets.float()."),
        )
        means = {"accuracy": correct} if known else {}
        criterion = Criterion(F.cross_entropy, {}, cross_entropies, means)
    plain, streaming = _split(metrics)
    if loss is None:
        return replace(criterion, metrics=plain, streaming=streaming)
    return Criterion(loss, plain, None, means, streaming=streaming)
