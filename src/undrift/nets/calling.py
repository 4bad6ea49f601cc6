"""How a model is called with a batch, and what its outputs hold.

`call_model` is the only place where the package calls a user's model: one tensor as
`model(inputs)`, several as `model(*inputs)`, named ones as `model(**inputs)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from undrift.data.samples.structure import Tree, map_tensors, rows_of, target_name, tensors_of

LABELS = "labels"
"""What models that compute their own loss call their targets."""


def call_model(module: nn.Module, inputs: Tree) -> Any:
    """The model's outputs for a batch of inputs."""
    if isinstance(inputs, Tensor):
        return module(inputs)
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs)


def inputs_for(module: nn.Module, inputs: Tree) -> Tree:
    """The inputs without targets that the model does not take.

    A batch of named tensors may hold its targets. A model that takes an argument of that name, or
    `labels`, gets them; for all others they are the targets of the loss only.
    """
    name = target_name(inputs)
    if name is None:
        return inputs
    takes = inspect.signature(module.forward).parameters
    known = [each for each in (name, LABELS) if each in takes]
    others = {key: value for key, value in inputs.items() if key != name}
    return {**others, known[0]: inputs[name]} if known else others


def placed(tree: Tree, like: Tensor) -> Tree:
    """Tensors on the device of `like`, floating-point ones in its dtype."""

    def move(values: Tensor) -> Tensor:
        if values.is_floating_point():
            return values.to(like.device, like.dtype)
        return values.to(like.device)

    return map_tensors(move, tree)


def has_own_loss(outputs: Any) -> bool:
    """Whether a model computed its loss itself, as those of Hugging Face do when given labels."""
    found = _entry(outputs, "loss")
    return isinstance(found, Tensor) and found.numel() == 1


def own_loss(outputs: Any, targets: Any) -> Tensor:
    """The loss that the model computed itself."""
    return _entry(outputs, "loss").reshape(())


def scores_of(outputs: Any) -> Tensor | None:
    """The scores among a model's outputs: the one tensor, or its `logits`."""
    if isinstance(outputs, Tensor):
        return outputs
    found = _entry(outputs, "logits")
    return found if isinstance(found, Tensor) else None


def in_float32(outputs: Any) -> Any:
    """Outputs with their floating-point tensors in float32, so that losses of them are exact."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.is_floating_point() else outputs
    if isinstance(outputs, list | tuple):
        return tuple(in_float32(each) for each in outputs)
    entries = _entries(outputs)
    if entries is None:
        return outputs
    return _like(outputs, {name: in_float32(each) for name, each in entries.items()})


def output_numbers(outputs: Any, samples: int) -> int:
    """How many numbers the outputs of one sample have, at least 1."""
    rows = [each for each in tensors_of(outputs) if each.ndim and len(each) == samples]
    return max(1, sum(each[:1].numel() for each in rows))


def outputs_of_samples(outputs: Any, samples: int) -> Any:
    """Outputs without what does not belong to single samples, such as the loss of the batch."""

    def belongs(value: Any) -> bool:
        found = list(tensors_of(value))
        return bool(found) and all(each.ndim > 0 and len(each) == samples for each in found)

    entries = _entries(outputs)
    if entries is None:
        return outputs
    return _like(outputs, {name: each for name, each in entries.items() if belongs(each)})


def joined_outputs(pieces: Sequence[Any]) -> Any:
    """The outputs of consecutive pieces as those of all samples."""
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat(list(pieces))
    if isinstance(first, list | tuple):
        return tuple(joined_outputs(each) for each in zip(*pieces, strict=True))
    each = [_entries(piece) or {} for piece in pieces]
    return _like(first, {name: joined_outputs([one[name] for one in each]) for name in each[0]})


def rows_of_outputs(outputs: Any, rows: slice) -> Any:
    """The outputs of some samples, where all tensors belong to single samples."""
    entries = _entries(outputs)
    if entries is None:
        return rows_of(outputs, rows)
    return _like(outputs, {name: rows_of_outputs(each, rows) for name, each in entries.items()})


def for_streaming(outputs: Any, samples: int) -> Any:
    """What a streaming metric takes: the scores, or all outputs of samples if there are none."""
    scores = scores_of(outputs)
    return outputs_of_samples(outputs, samples) if scores is None else scores


def _entry(outputs: Any, name: str) -> Any:
    """An entry of outputs that have names; None if there is none."""
    if isinstance(outputs, Mapping):
        return outputs.get(name)
    return None if isinstance(outputs, Tensor) else getattr(outputs, name, None)


def _entries(outputs: Any) -> dict[str, Any] | None:
    """The entries of outputs that have names, without those that are None."""
    if isinstance(outputs, Mapping):
        found = dict(outputs)
    elif is_dataclass(outputs):
        found = {each.name: getattr(outputs, each.name) for each in fields(outputs)}
    else:
        return None
    return {name: each for name, each in found.items() if each is not None}


def _like(outputs: Any, entries: dict[str, Any]) -> Any:
    """Entries in an object of the same kind, so that a metric finds them under the same names."""
    return type(outputs)(**entries)
