"""The structure of a batch: one tensor, several, or named ones, with or without targets.

A batch is a tree of tensors whose first dimension counts its samples: what a collate function
gives. Everything that handles batches goes through these functions, so that a plain pair of
tensors stays as fast as without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from undrift.utils.errors import UndriftError

Tree = Any
"""A tensor, or a tuple, list or mapping of trees."""
TARGET_NAMES = ("labels", "label", "targets", "target", "y")
"""Names under which a batch with named tensors holds its targets."""


def target_name(batch: Tree) -> str | None:
    """The name of the targets in a batch of named tensors; None if it has none."""
    if not isinstance(batch, Mapping):
        return None
    return next((name for name in TARGET_NAMES if name in batch), None)


def split_batch(batch: Tree) -> tuple[Tree, Tree | None]:
    """The model's inputs and the targets of a batch; None for targets that it does not have.

    The last entry of a tuple is its target: (input, target) or (first, second, target). Named
    tensors stay together, since many models take their labels as an argument.
    """
    if isinstance(batch, Mapping):
        name = target_name(batch)
        return batch, None if name is None else batch[name]
    if isinstance(batch, list | tuple):
        if len(batch) == 2:
            return batch[0], batch[1]
        if len(batch) > 2:
            return tuple(batch[:-1]), batch[-1]
        if len(batch) == 1:
            return batch[0], None
        raise UndriftError("A batch is an empty tuple, but must hold tensors.")
    return batch, None


def join_batch(inputs: Tree, targets: Tree | None) -> Tree:
    """The batch that `split_batch` split."""
    if targets is None or target_name(inputs) is not None:
        return inputs
    return (*inputs, targets) if isinstance(inputs, tuple) else (inputs, targets)


def map_tensors(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """A tree of the same structure with every tensor changed; what is no tensor stays."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        # Mappings such as a tokenizer's have constructors of their own.
        return {name: map_tensors(change, each) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return tuple(map_tensors(change, each) for each in tree)
    return tree


def tensors_of(tree: Tree) -> Iterator[Tensor]:
    """All tensors of a tree, in order; also those of data classes, such as a model's outputs."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for each in tree.values():
            yield from tensors_of(each)
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from tensors_of(each)
    elif is_dataclass(tree):
        for field in fields(tree):
            yield from tensors_of(getattr(tree, field.name))


def rows_of(tree: Tree, rows: Tensor | slice) -> Tree:
    """Some rows of every tensor of a tree."""
    return tree[rows] if isinstance(tree, Tensor) else map_tensors(lambda each: each[rows], tree)


def rows_in(tree: Tree) -> int:
    """The number of rows of a tree's tensors, or of samples that are read when needed."""
    structured = isinstance(tree, Mapping | list | tuple)
    return len(next(tensors_of(tree))) if structured else len(tree)


def row_numbers(tree: Tree) -> int:
    """How many numbers one row of a tree has, at least 1."""
    return max(1, sum(each[:1].numel() for each in tensors_of(tree) if each.ndim))


def concatenated(trees: Sequence[Tree]) -> Tree:
    """Trees of the same structure, one after another."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, Mapping):
        return {name: concatenated([each[name] for each in trees]) for name in first}
    if isinstance(first, list | tuple):
        return tuple(concatenated(list(each)) for each in zip(*trees, strict=True))
    raise UndriftError(f"A batch holds a {type(first).__name__}, but must hold tensors only.")


def named_tensors(tree: Tree, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a tree, each with where it is, such as "['input_ids']" or "[0]"."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, each in tree.items():
            yield from named_tensors(each, f"{name}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for number, each in enumerate(tree):
            yield from named_tensors(each, f"{name}[{number}]")


def is_plain(tree: Tree) -> bool:
    """Whether a tree is one tensor, which the fastest strategies need."""
    return isinstance(tree, Tensor)
