"""What is learned: the loss, and the metrics by which a model is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from undrift.data.part import Part
from undrift.errors import UndriftError, first_line, require

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → the mean loss over the batch, a scalar tensor."""
Metric = Callable[[Tensor, Tensor], float | Tensor]
"""(outputs, targets) → a number, over all samples of a part at once."""


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether each sample's class is right (for sequences: the share of right places)."""
    right = (outputs.argmax(1) == targets).cpu().double()
    return right.flatten(1).mean(1) if right.ndim > 1 else right


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples whose class is right."""
    return float(correct(outputs, targets).mean())


def absolute_error(outputs: Tensor, targets: Tensor) -> float:
    """The mean absolute error."""
    return float((outputs - targets).abs().mean())


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of each sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each sample."""
    return F.mse_loss(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Task:
    """A loss and the metrics that fit it."""

    loss: Loss
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    per_sample: Loss | None = None
    """the loss of each sample, where it is known"""
    classifies: bool = False
    """whether outputs are scores for classes, so that there is accuracy per client"""

    def measured(self, part: str, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Every metric of a part, under its name."""
        found = {}
        for name, metric in self.metrics.items():
            try:
                found[f"{part}_{name}"] = float(metric(outputs, targets))
            except Exception as error:
                raise UndriftError(
                    f"The metric {name!r} gives no number on the {part} part: {first_line(error)}."
                ) from error
        return found

    def by_client(self, outputs: Tensor, targets: Tensor, part: Part) -> Tensor:
        """The mean loss of each client, `[N]` in double precision, on the CPU."""
        sizes = part.sizes
        if self.per_sample is None:
            pieces = zip(outputs.split(sizes.tolist()), targets.split(sizes.tolist()), strict=True)
            return torch.tensor([float(self.loss(o, t)) for o, t in pieces], dtype=torch.float64)
        losses = self.per_sample(outputs, targets)
        losses = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        sums = torch.zeros(len(sizes), dtype=torch.float64)
        sums.index_add_(0, owner, losses.cpu().double())
        return sums / sizes


def task_for(
    outputs: Tensor,
    targets: Tensor,
    labels: tuple[int, int] | None,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> Task:
    """The task that fits a model's outputs and the targets.

    Without a loss of the user's own, whole-number targets are classes (cross-entropy) and others
    are values (squared error), and outputs that do not fit are refused. With one, only that loss
    must fit; accuracy is measured where outputs are scores for classes. `labels` are the smallest
    and the largest whole-number target.
    """
    shape, wanted = list(outputs.shape), list(targets.shape)
    scores = len(shape) == len(wanted) + 1 and [shape[0], *shape[2:]] == wanted
    if labels is None:
        require(
            loss is not None or shape == wanted,
            f"The model returns shape {shape}, but the targets have shape {wanted}: for "
            f"regression the two must be the same, so use targets[:, None] or .squeeze(-1).",
        )
        standard: dict[str, Metric] = {"absolute_error": absolute_error} if loss is None else {}
        task = Task(F.mse_loss, standard, squared_errors)
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
            f"{shape[1] - 1 if scores else 0}.",
        )
        standard = {"accuracy": accuracy} if known else {}
        task = Task(F.cross_entropy, standard, cross_entropies, classifies=known)
    own = dict(metrics or {})
    if loss is None:
        return Task(task.loss, {**task.metrics, **own}, task.per_sample, task.classifies)
    return Task(loss, {**task.metrics, **own}, None, task.classifies)
