"""What is learned: the loss, and the metrics by which a model is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from undrift.data.federated import Part
from undrift.errors import UndriftError, require

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → the mean loss over the batch, a scalar tensor."""
Metric = Callable[[Tensor, Tensor], float | Tensor]
"""(outputs, targets) → a number, over all samples of a part at once."""


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether each sample's class is right (for sequences: the share of right places)."""
    right = (outputs.argmax(1) == targets).double()
    return right.flatten(1).mean(1) if right.ndim > 1 else right


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples whose class is right."""
    return float(correct(outputs, targets).mean())


def absolute_error(outputs: Tensor, targets: Tensor) -> float:
    """The mean absolute error."""
    return float((outputs - targets).abs().mean())


class Task:
    """A loss and its metrics.

    Parameters
    ----------
    loss
        (outputs, targets) → mean loss; None chooses cross-entropy for whole-number targets
        and squared error for the rest
    metrics
        further metrics by name, each (outputs, targets) → number
    """

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Metric],
        per_sample: Loss | None = None,
        correct: Callable[[Tensor, Tensor], Tensor] | None = None,
    ):
        self.loss = loss
        self.metrics = dict(metrics)
        self.correct = correct
        self._per_sample = per_sample

    @staticmethod
    def for_targets(
        y: Tensor, loss: Loss | None = None, metrics: Mapping[str, Metric] | None = None
    ) -> Task:
        """The task that fits the targets, with the user's own loss and metrics if given."""
        more = dict(metrics or {})
        if not y.is_floating_point():
            own = loss or F.cross_entropy
            each = (lambda o, t: F.cross_entropy(o, t, reduction="none")) if loss is None else None
            return Task(own, {"accuracy": accuracy} | more, each, correct)
        own = loss or F.mse_loss
        each = (lambda o, t: F.mse_loss(o, t, reduction="none")) if loss is None else None
        return Task(own, {"absolute_error": absolute_error} | more, each)

    def by_client(self, outputs: Tensor, targets: Tensor, part: Part) -> Tensor:
        """The mean loss of each client, `[N]` in double precision, on the CPU."""
        sizes = part.sizes
        if self._per_sample is None:
            pieces = zip(outputs.split(sizes.tolist()), targets.split(sizes.tolist()), strict=True)
            return torch.tensor([float(self.loss(o, t)) for o, t in pieces], dtype=torch.float64)
        losses = self._per_sample(outputs, targets)
        losses = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        sums = torch.zeros(len(sizes), dtype=torch.float64)
        sums.index_add_(0, owner, losses.double().cpu())
        return sums / sizes

    def check(self, outputs: Tensor, targets: Tensor, all_targets: Tensor) -> None:
        """Refuse outputs that do not fit the targets."""
        require(
            isinstance(outputs, Tensor),
            f"The model must return one tensor, not {type(outputs).__name__}.",
        )
        shape, wanted = list(outputs.shape), list(targets.shape)
        if self.correct is not None:
            require(
                len(shape) == len(wanted) + 1 and [shape[0], *shape[2:]] == wanted,
                f"The model returns shape {shape} for targets of shape {wanted}, but "
                f"classification needs [batch, classes]: one score per class and sample.",
            )
            low, high = int(all_targets.min()), int(all_targets.max())
            require(
                low >= 0 and high < shape[1],
                f"The labels go from {low} to {high}, but the model has scores for classes 0 … "
                f"{shape[1] - 1}.",
            )
        elif self._per_sample is not None:
            require(
                shape == wanted,
                f"The model returns shape {shape}, but the targets have shape {wanted}: for "
                f"regression the two must be the same.",
            )
        loss = self.loss(outputs, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise UndriftError("The loss must return the mean over the batch, a single number.")
