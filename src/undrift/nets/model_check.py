"""Tries a model and its loss on a few samples before anything trains.

`ModuleLosses` uses it to reject combinations that do not fit with one sentence, and to learn what
the engines need: the criterion, the size of the outputs and the buffers that training changes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from undrift.data.part import Part
from undrift.data.samples.structure import Tree, join_batch, named_tensors, rows_in, tensors_of
from undrift.nets.calling import call_model, output_numbers
from undrift.nets.criteria import (
    Criterion,
    Loss,
    Metric,
    Step,
    criterion_for,
    structured_criterion,
)
from undrift.nets.flat import FlatModule
from undrift.nets.modes import set_training
from undrift.nets.per_sample import per_sample_loss, probe_rows
from undrift.nets.streaming import is_mean_over_samples
from undrift.utils.errors import UndriftError, first_line, require, warn

PROBE_NUMBERS = 2**20
"""Largest number of output numbers on which a metric is tried."""
PROBE_SAMPLES_LEAST = 4
"""Samples on which a metric is tried however large their outputs are."""


def check_model(
    module: nn.Module,
    train: Part,
    test: Part | None,
    loss: Loss | None,
    metrics: Mapping[str, Metric] | None,
    step: Step | None = None,
) -> tuple[Criterion, int]:
    """The criterion that fits a model and its data, and how many numbers an output has.

    It leaves the module in evaluation mode.
    """
    module.eval()
    inputs: Any = None
    outputs: Any = None
    targets: Any = None
    for part in (test, train):
        if part is None or not len(part):
            continue
        inputs, targets = part.samples(part.rows[:2])
        outputs = _outputs_of(module, inputs) if step is None else _outputs_if_any(module, inputs)
    require(outputs is not None or step is not None, "There are no samples.")
    width = output_numbers(outputs, rows_in(inputs))
    plain = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
    if step is not None or not plain:
        criterion = structured_criterion(outputs, targets, loss, metrics, step)
    else:
        criterion = criterion_for(outputs, targets, _label_range(train, test), loss, metrics)
    if step is None:
        value = _loss_of(criterion, outputs, targets)
    else:
        value = _loss_of_step(criterion, module, inputs, targets)
    require(
        isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad,
        "The loss must return the mean over the batch, a single number with a gradient.",
    )
    if plain and step is None:
        criterion = _with_chunked_metrics(criterion, module, train, width)
    if loss is None or step is not None:
        if plain:
            _warn_about_one_hot(targets)
        return criterion, width
    inputs, targets = train.samples(probe_rows(train))
    with torch.no_grad():
        probed = call_model(module, inputs)
    per_sample = per_sample_loss(loss, probed, targets, next(tensors_of(targets)).device)
    if isinstance(per_sample, str):
        # The outputs of all samples of lazy data would not fit into memory.
        lazy = criterion.batchwise or train.lazy is not None
        return replace(criterion, not_per_sample=per_sample, batchwise=lazy), width
    return replace(criterion, per_sample=per_sample, not_per_sample="", batchwise=False), width


def _with_chunked_metrics(
    criterion: Criterion, module: nn.Module, train: Part, width: int
) -> Criterion:
    """The criterion with those of the user's functions as chunked that are means over samples."""
    if not criterion.metrics:
        return criterion
    rows = probe_rows(train)
    rows = rows[:: -(-len(rows) // max(PROBE_SAMPLES_LEAST, PROBE_NUMBERS // width))]
    with torch.no_grad():
        inputs, targets = train.samples(rows)
        outputs = call_model(module, inputs)
        chunked = {
            name: metric
            for name, metric in criterion.metrics.items()
            if is_mean_over_samples(metric, outputs, targets)
        }
    whole = {name: f for name, f in criterion.metrics.items() if name not in chunked}
    return replace(criterion, metrics=whole, chunked=chunked)


def buffers_changed_by_training(
    flat: FlatModule, train: Part, before: Mapping[str, Tensor], criterion: Criterion
) -> frozenset[str]:
    """The buffers that training changes, such as BatchNorm's; the others are constants."""
    if not before:
        return frozenset()
    inputs, targets = train.samples(train.rows[:2].repeat(2))  # batch statistics need several
    set_training(flat.module)
    with torch.no_grad():
        criterion.loss_of(flat.module, inputs, targets)
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
    y = train.y if train.lazy is None else train.samples(train.rows[:2])[1]
    if y.is_floating_point() or not len(y):
        return None
    low, high = int(y.min()), int(y.max())
    if test is not None and isinstance(test.y, Tensor) and len(test.y):
        low, high = min(low, int(test.y.min())), max(high, int(test.y.max()))
    return low, high


def _outputs_of(module: nn.Module, inputs: Tree) -> Any:
    """The model's outputs for a few samples; the model's own errors become one sentence."""
    try:
        return call_model(module, inputs)
    except Exception as error:
        one = isinstance(inputs, Tensor)
        integers = one and not inputs.is_floating_point() and "dtype" in str(error)
        cure = "; data.with_inputs(lambda x: x.float() / 255) makes fractions of bytes"
        raise UndriftError(
            f"The model cannot take inputs of {shapes_of(inputs)}: {first_line(error)}"
            f"{cure if integers else ''}."
        ) from error


def _outputs_if_any(module: nn.Module, inputs: Tree) -> Any:
    """The outputs of a model that a step calls, which need not take the inputs themselves."""
    try:
        with torch.no_grad():
            return call_model(module, inputs)
    except Exception:  # then only the size of an output stays unknown
        return None


def _loss_of_step(criterion: Criterion, module: nn.Module, inputs: Tree, targets: Tree) -> object:
    """The loss of a step for a few samples; the step's own errors become one sentence."""
    try:
        return criterion.loss_of(module, inputs, targets)
    except Exception as error:
        raise UndriftError(
            f"The step failed on a batch of {shapes_of(join_batch(inputs, targets))}: "
            f"{first_line(error)}."
        ) from error


def shapes_of(batch: Tree) -> str:
    """The shapes and types of a batch, as words."""
    if isinstance(batch, Tensor):
        return f"shape {list(batch.shape)} and type {batch.dtype}"
    each = [f"{name} {list(t.shape)} ({t.dtype})" for name, t in named_tensors(batch)]
    return f"shapes {', '.join(each)}"


def _loss_of(criterion: Criterion, outputs: Any, targets: Any) -> object:
    """The loss of a few samples; the loss's own errors become one sentence."""
    if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
        shapes = (
            f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)} "
            f"and type {targets.dtype}"
        )
    else:
        shapes = f"outputs of type {type(outputs).__name__}"
    try:
        with warnings.catch_warnings():
            # torch only warns here, but would broadcast every output against every target.
            warnings.filterwarnings("error", message="Using a target size")
            return criterion.loss(outputs, targets)
    except Exception as error:
        raise UndriftError(f"The loss failed on {shapes}: {first_line(error)}.") from error


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
