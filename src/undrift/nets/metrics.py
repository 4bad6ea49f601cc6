"""Metrics that see a model's outputs piece by piece, so that no metric needs all of them at once.

A streaming metric has the methods of torchmetrics: `update(outputs, targets)` for each piece of a
part, in the order of its samples, `compute()` for the number, and `reset()`. Objects of
torchmetrics itself fit, and so does any object of the user's with these methods. AUC, F1, balanced
accuracy, perplexity and Dice are here; `ud.metrics` is this module.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from undrift.utils.errors import UndriftError, require, require_choice, require_type

Function = Callable[[Tensor, Tensor], Any]
"""(outputs, targets) → a number."""


@runtime_checkable
class Streaming(Protocol):
    """What a streaming metric must have, as every metric of torchmetrics does."""

    def update(self, outputs: Any, targets: Any) -> Any:
        """Take the outputs and targets of the next samples."""

    def compute(self) -> Any:
        """The metric over all samples since the last `reset`: a number."""

    def reset(self) -> Any:
        """Forget all samples."""


class StreamingMetric(ABC):
    """A base class for metrics of your own; any object with these methods serves as well."""

    def __init__(self) -> None:
        self.reset()

    @abstractmethod
    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take the outputs and targets of the next samples."""

    @abstractmethod
    def compute(self) -> float:
        """The metric over all samples since the last `reset`."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all samples."""


class MeanOverSamples(StreamingMetric):
    """The mean over samples of your function, which is called with one piece after another.

    Parameters
    ----------
    function
        (outputs, targets) → the value of each sample, or their mean as one number
    """

    def __init__(self, function: Function):
        require(callable(function), "MeanOverSamples takes a function of (outputs, targets).")
        self.function = function
        super().__init__()

    def reset(self) -> None:
        self._sum, self._samples = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        values = torch.as_tensor(self.function(outputs, targets), dtype=torch.float64)
        self._sum += float(values.mean()) * len(targets)
        self._samples += len(targets)

    def compute(self) -> float:
        return self._sum / self._samples if self._samples else math.nan


class AUC(StreamingMetric):
    """The exact area under the ROC curve; ties count one half. NaN if there is only one class.

    It keeps the scores of all samples, not the outputs' history: one number a sample for two
    classes. With more classes it is the mean over classes, one against the rest, of the softmax
    probabilities, and keeps one number per sample and class. Targets of the outputs' own shape are
    labels that are judged one by one (multi-label).
    """

    def reset(self) -> None:
        self._scores: list[Tensor] = []
        self._truths: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.ndim == targets.ndim + 1 and outputs.shape[1] == 2:
            scores = (outputs[:, 1] - outputs[:, 0]).reshape(-1, 1)
            truths = (targets == 1).reshape(-1, 1)
        elif outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 2:
            classes = outputs.shape[1]
            scores = outputs.softmax(1).movedim(1, -1).reshape(-1, classes)
            truths = F.one_hot(targets.long().flatten(), classes).bool()
        else:
            _require_same_size("AUC", outputs, targets)
            labels = outputs[0].numel() if len(outputs) else 1
            scores = outputs.reshape(-1, labels)
            truths = targets.reshape(-1, labels) > 0.5
        self._scores.append(scores.detach().cpu().clone())
        self._truths.append(truths.cpu())

    def compute(self) -> float:
        if not self._scores:
            return math.nan
        scores, truths = torch.cat(self._scores), torch.cat(self._truths)
        areas = [_area(s, t) for s, t in zip(scores.T, truths.T, strict=True)]
        return float(torch.tensor(areas, dtype=torch.float64).nanmean())


class ClassCounts(StreamingMetric):
    """Counts of true, predicted and correctly predicted samples by class.

    The predicted class is the one with the largest score; with one score per target (logits of two
    classes, or of the labels of multi-label targets) it is whether the score is above zero.
    """

    def reset(self) -> None:
        self._counts = torch.zeros(3, 0, dtype=torch.float64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        predicted, true, classes = _classes(type(self).__name__, outputs, targets)
        rows = [true, predicted, predicted[predicted == true]]
        found = torch.stack([torch.bincount(row, minlength=classes) for row in rows]).double().cpu()
        missing = found.shape[1] - self._counts.shape[1]
        self._counts = F.pad(self._counts, (0, max(0, missing)))
        self._counts[:, : found.shape[1]] += found

    @property
    def true(self) -> Tensor:
        """Samples of each class."""
        return self._counts[0]

    @property
    def predicted(self) -> Tensor:
        """Samples predicted as each class."""
        return self._counts[1]

    @property
    def correct(self) -> Tensor:
        """Samples of each class that were predicted as that class."""
        return self._counts[2]

    def overlap(self) -> Tensor:
        """2·correct/(true + predicted) of each class; NaN for a class that does not occur."""
        return 2 * self.correct / (self.true + self.predicted)


class F1(ClassCounts):
    """The F1 score, the harmonic mean of precision and recall.

    Parameters
    ----------
    average
        "macro" for the mean over classes that occur, "micro" for all samples together, "binary"
        for class 1 alone
    """

    def __init__(self, average: str = "macro"):
        require_choice("F1's average", average, ("macro", "micro", "binary"))
        self.average = average
        super().__init__()

    def compute(self) -> float:
        if self.average == "micro":
            total = self.true.sum() + self.predicted.sum()
            return float(2 * self.correct.sum() / total) if total else math.nan
        each = self.overlap()
        if self.average == "binary":
            return float(each[1]) if len(each) > 1 else math.nan
        return float(each.nanmean())


class BalancedAccuracy(ClassCounts):
    """The mean over classes of the share of their samples that is predicted correctly."""

    def compute(self) -> float:
        return float((self.correct / self.true).nanmean())


class Dice(ClassCounts):
    """The Dice coefficient 2|A∩B|/(|A| + |B|) of a segmentation, over all samples together.

    Parameters
    ----------
    background
        whether class 0 counts too; the coefficient is the mean over classes that occur
    """

    def __init__(self, background: bool = False):
        self.background = background
        super().__init__()

    def compute(self) -> float:
        each = self.overlap()
        return float((each if self.background else each[1:]).nanmean())


class Perplexity(StreamingMetric):
    """exp of the mean cross-entropy per token.

    Parameters
    ----------
    ignore_index
        the target of positions that do not count, such as padding
    """

    def __init__(self, ignore_index: int = -100):
        self.ignore_index = ignore_index
        super().__init__()

    def reset(self) -> None:
        self._sum, self._tokens = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        entropies = F.cross_entropy(
            outputs, targets, ignore_index=self.ignore_index, reduction="none"
        )
        self._sum += float(entropies.double().sum())
        self._tokens += int((targets != self.ignore_index).sum())

    def compute(self) -> float:
        return math.exp(self._sum / self._tokens) if self._tokens else math.nan


METRICS: dict[str, type[StreamingMetric]] = {
    "auc": AUC,
    "f1": F1,
    "balanced_accuracy": BalancedAccuracy,
    "perplexity": Perplexity,
    "dice": Dice,
}
"""The metrics that files and arguments may name."""


def named_metrics(metrics: Any) -> dict[str, Any]:
    """The metrics by name, from a mapping (whose values may be names) or a list of names."""
    if metrics is None:
        return {}
    if isinstance(metrics, str):
        metrics = [metrics]
    if isinstance(metrics, Sequence):
        for name in metrics:
            require_choice("A metric", name, METRICS)
        metrics = {name: name for name in metrics}
    require_type("metrics", metrics, Mapping, "a mapping from metric names, or a list of names")
    return {name: _metric(name, metric) for name, metric in metrics.items()}


def _metric(name: str, metric: Any) -> Any:
    if isinstance(metric, str):
        require_choice(f"The metric {name!r}", metric, METRICS)
        return METRICS[metric]()
    if isinstance(metric, type) and isinstance(metric, Streaming):
        raise UndriftError(
            f"The metric {name!r} is the class {metric.__name__}, but must be an object: write "
            f"{metric.__name__}()."
        )
    require(
        callable(metric) or isinstance(metric, Streaming),
        f"The metric {name!r} must be a function of (outputs, targets), an object with update, "
        f"compute and reset, or one of the names {', '.join(METRICS)}.",
    )
    return metric


def _classes(what: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, int]:
    """The predicted and the true class of every position, flat, and the number of classes."""
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
        return outputs.max(1).indices.flatten(), targets.long().flatten(), outputs.shape[1]
    _require_same_size(what, outputs, targets)
    return (outputs > 0).long().flatten(), (targets > 0.5).long().flatten(), 2


def _require_same_size(what: str, outputs: Tensor, targets: Tensor) -> None:
    require(
        outputs.numel() == targets.numel(),
        f"{what} needs scores for classes, or one score per target, but got outputs of shape "
        f"{list(outputs.shape)} for targets of shape {list(targets.shape)}.",
    )


def _area(scores: Tensor, truths: Tensor) -> float:
    """The area under the ROC curve by ranks; equal scores share the mean of their ranks."""
    positives = int(truths.sum())
    negatives = len(truths) - positives
    if not positives or not negatives:
        return math.nan
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts.double() - 1) / 2)[place]
    above = float(ranks[truths].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)
