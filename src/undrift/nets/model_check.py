"""Tries a model and its loss on a few samples before anything trains.

`ModuleLosses` uses it to reject combinations that do not fit with one sentence, and to learn what
the engines need: the criterion, the size of the outputs and the buffers that training changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from undrift.data.part import Part
from undrift.nets.criteria import Criterion, Loss, Metric, criterion_for
from undrift.nets.flat import FlatModule
from undrift.nets.modes import set_training
from undrift.nets.per_sample import per_sample_loss, probe_rows
from undrift.utils.errors import UndriftError, first_line, require, require_type, warn


def check_model(
    module: nn.Module,
    train: Part,
    test: Part | None,
    loss: Loss | None,
    metrics: Mapping[str, Metric] | None,
) -> tuple[Criterion, int]:
    """The criterion that fits a model and its data, and how many numbers an output has.

    It leaves the module in evaluation mode.
    """
    module.eval()
    outputs = targets = None
    for part in (test, train):
        if part is None or not len(part):
            continue
        rows = part.rows[:2]
        targets = part.y[rows]
        outputs = _outputs_of(module, part.x[rows])
    require(outputs is not None, "There are no samples.")
    require_type("What the model returns", outputs, Tensor, "one tensor")
    assert outputs is not None
    assert targets is not None
    criterion = criterion_for(outputs, targets, _label_range(train, test), loss, metrics)
    value = _loss_of(criterion, outputs, targets)
    require(
        isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad,
        "The loss must return the mean over the batch, a single number with a gradient.",
    )
    width = outputs[:1].numel()
    if loss is None:
        _warn_about_one_hot(targets)
        return criterion, width
    rows = probe_rows(train)
    with torch.no_grad():
        probed = module(train.x[rows])
    per_sample = per_sample_loss(loss, probed, train.y[rows], train.y.device)
    if isinstance(per_sample, str):
        return replace(criterion, not_per_sample=per_sample), width
    return replace(criterion, per_sample=per_sample), width


def buffers_changed_by_training(
    flat: FlatModule, train: Part, before: Mapping[str, Tensor]
) -> frozenset[str]:
    """The buffers that training changes, such as BatchNorm's; the others are constants."""
    if not before:
        return frozenset()
    rows = train.rows[:2].repeat(2)  # batch statistics need more than one sample
    set_training(flat.module)
    with torch.no_grad():
        flat.module(train.x[rows])
    after = flat.buffers()
    return frozenset(name for name, value in before.items() if not _equal(value, after[name]))


def warn_about_buffers(changing: frozenset[str]) -> None:
    """Warn once about layers whose buffers training changes."""
    layers = sorted({name.rpartition(".")[0] for name in changing})
    if layers:
        warn(
            f"The model has buffers in {', '.join(layers)} that training changes; they are "
            f"averaged over the cohort by sample weight, which no method's theory covers: "
            f"GroupNorm has none."
        )


def _label_range(train: Part, test: Part | None) -> tuple[int, int] | None:
    """The smallest and the largest integer target; None for floating-point targets."""
    y = train.y
    if y.is_floating_point() or not len(y):
        return None
    low, high = int(y.min()), int(y.max())
    if test is not None and len(test.y):
        low, high = min(low, int(test.y.min())), max(high, int(test.y.max()))
    return low, high


def _outputs_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """The model's outputs for a few samples; the model's own errors become one sentence."""
    try:
        return module(inputs)
    except Exception as error:
        integers = not inputs.is_floating_point() and "dtype" in str(error)
        cure = "; data.with_inputs(lambda x: x.float() / 255) makes fractions of bytes"
        raise UndriftError(
            f"The model cannot take inputs of shape {list(inputs.shape)} and type "
            f"{inputs.dtype}: {first_line(error)}{cure if integers else ''}."
        ) from error


def _loss_of(criterion: Criterion, outputs: Tensor, targets: Tensor) -> object:
    """The loss of a few samples; the loss's own errors become one sentence."""
    shapes = f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)}"
    try:
        with warnings.catch_warnings():
            # torch only warns here, but would broadcast every output against every target.
            warnings.filterwarnings("error", message="Using a target size")
            return criterion.loss(outputs, targets)
    except Exception as error:
        raise UndriftError(
            f"The loss failed on {shapes} and type {targets.dtype}: {first_line(error)}."
        ) from error


def _warn_about_one_hot(targets: Tensor) -> None:
    """Warn about one-hot rows: they are taken as values, which is seldom intended."""
    rows = targets.is_floating_point() and targets.ndim == 2 and targets.shape[1] > 1
    if rows and bool(((targets == 0) | (targets == 1)).all() & (targets.sum(1) == 1).all()):
        warn(
            "The targets look like one-hot classes, but are floating-point numbers, so that the "
            "loss is the squared error: targets.argmax(1) makes classes of them."
        )


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaN counting as equal to NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())
