"""Which functions and methods of tensors treat each sample by itself.

Only those that are listed here, with axes other than that of the samples, become stacked layers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from undrift.engines.vectorised.stacked.functions import SamplesFunction

Axes = Callable[..., Sequence[int] | None]
"""(arguments after the tensor) → the axes that they name, or None for a use that is not known."""


def _listed(dim: int | Sequence[int]) -> Sequence[int]:
    return [dim] if isinstance(dim, int) else list(dim)


def _reduced(dim: int | Sequence[int], keepdim: bool = False) -> Sequence[int]:
    return _listed(dim)


def _normalised(dim: int, dtype: None = None, _stacklevel: int = 3) -> Sequence[int]:
    return [dim]


def _swapped(dim0: int, dim1: int) -> Sequence[int]:
    return [dim0, dim1]


def _flattened(start_dim: int, end_dim: int = -1) -> Sequence[int]:
    return [start_dim, end_dim]


def _unflattened(dim: int, sizes: Sequence[int]) -> Sequence[int]:
    return [dim]


def _permuted(*dims: Any) -> Sequence[int] | None:
    dims = tuple(dims[0]) if len(dims) == 1 else dims
    return list(dims[1:]) if dims[0] == 0 else None


def _of_one(dim: int) -> Sequence[int]:
    return [dim]


def _parts(size: int, dim: int = 0) -> Sequence[int]:
    return [dim]


def _number(other: float) -> Sequence[int]:
    return []


METHODS: dict[str, Axes] = {
    "softmax": _normalised,
    "log_softmax": _normalised,
    "mean": _reduced,
    "sum": _reduced,
    "amax": _reduced,
    "transpose": _swapped,
    "swapaxes": _swapped,
    "permute": _permuted,
    "flatten": _flattened,
    "unflatten": _unflattened,
    "squeeze": _of_one,
    "unsqueeze": _of_one,
    "contiguous": lambda: [],
    "add": _number,
    "sub": _number,
    "mul": _number,
    "div": _number,
}
"""The methods of tensors, and how to read the axes that they work on."""

FUNCTIONS: dict[Any, Axes] = {
    **{getattr(torch, name): axes for name, axes in METHODS.items() if hasattr(torch, name)},
    F.softmax: _normalised,
    F.log_softmax: _normalised,
    operator.add: _number,
    operator.sub: _number,
    operator.mul: _number,
    operator.truediv: _number,
}

IN_PARTS: dict[Any, Axes] = {
    "chunk": _parts,
    "split": _parts,
    torch.chunk: _parts,
    torch.split: _parts,
}
"""What returns several tensors, of which a model reads each by its index."""


def function_of(node: fx.Node) -> SamplesFunction | None:
    """What a node computes from one tensor, or None if it is not known to suit."""
    if node.target is operator.getitem:
        return _indexed(node.args[1])
    if number_first(node):
        number, of = node.args[0], node.target
        return lambda x: of(number, x)  # type: ignore[operator]
    known: Mapping[Any, Axes] = METHODS if node.op == "call_method" else FUNCTIONS
    if node.op not in ("call_method", "call_function") or node.target not in known:
        return None
    return _checked(node, known[node.target])


def number_first(node: fx.Node) -> bool:
    """Whether a node is arithmetic of a number and a tensor, in this order, e.g. 1 − x."""
    known = FUNCTIONS.get(node.target) is _number and node.op == "call_function"
    return known and len(node.args) == 2 and isinstance(node.args[0], int | float)


def parts_of(node: fx.Node) -> Callable[[Tensor], Any] | None:
    """What a node that returns several tensors computes from one, or None if it is another."""
    axes = IN_PARTS.get(node.target)
    return None if axes is None else _checked(node, axes)


def _checked(node: fx.Node, axes: Axes) -> Callable[[Tensor], Any] | None:
    """The call of a node, which fails if it works on the axis of the samples."""
    rest, options, target = node.args[1:], dict(node.kwargs), node.target
    try:
        found = axes(*rest, **options)
    except (TypeError, IndexError):
        return None
    if found is None or not _constant([*rest, *options.values()]):
        return None
    named = list(found)

    def call(x: Tensor) -> Any:
        for axis in named:
            if axis % x.ndim == 0:
                raise ValueError(f"{node.name} works on the axis of the samples.")
        if isinstance(target, str):
            return getattr(x, target)(*rest, **options)
        return target(x, *rest, **options)  # type: ignore[operator]

    return call


def _constant(values: Sequence[Any]) -> bool:
    """Whether arguments are numbers, or lists of them, and not computed by the model."""
    for value in values:
        several = value if isinstance(value, tuple | list) else [value]
        if not all(each is None or isinstance(each, int | float) for each in several):
            return False
    return True


def _indexed(index: Any) -> SamplesFunction | None:
    """x[:, …] with numbers and slices of numbers."""
    if not isinstance(index, tuple) or not index or index[0] != slice(None):
        return None
    for each in index[1:]:
        bounds = [each.start, each.stop, each.step] if isinstance(each, slice) else [each]
        if each is not None and not _constant(bounds):
            return None
    return lambda x: x[index]


def _attention(
    attn_mask: None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> bool:
    return attn_mask is None and dropout_p == 0.0


JOINS: dict[Any, tuple[int, int, Callable[..., bool]]] = {
    F.scaled_dot_product_attention: (3, 3, _attention),
    torch.matmul: (2, 3, lambda: True),
    torch.bmm: (2, 3, lambda: True),
    operator.matmul: (2, 3, lambda: True),
    "matmul": (2, 3, lambda: True),
    "bmm": (2, 3, lambda: True),
    operator.mul: (2, 1, lambda: True),
    torch.mul: (2, 1, lambda: True),
    operator.sub: (2, 1, lambda: True),
    torch.sub: (2, 1, lambda: True),
    operator.truediv: (2, 1, lambda: True),
}
"""Functions of several tensors: of how many, of at least how many axes, and which options suit."""


def joining(node: fx.Node) -> tuple[list[fx.Node], SamplesFunction] | None:
    """The tensors that a node joins and what it computes from them; None if it does not suit."""
    if node.target not in JOINS:
        return None
    number, axes, suits = JOINS[node.target]
    joined, rest, options = list(node.args[:number]), node.args[number:], dict(node.kwargs)
    tensors = [each for each in joined if isinstance(each, fx.Node)]
    if len(tensors) < number or not _constant([*rest, *options.values()]):
        return None
    try:
        if not suits(*rest, **options):
            return None
    except TypeError:
        return None
    target = node.target

    def call(*inputs: Tensor) -> Tensor:
        # With fewer axes, a product would mix samples, or one tensor would be broadcast over them.
        if min(x.ndim for x in inputs) < axes or len({x.ndim for x in inputs}) > 1:
            raise ValueError(f"{node.name} may mix samples.")
        if isinstance(target, str):
            found: Tensor = getattr(inputs[0], target)(*inputs[1:], *rest, **options)
        else:
            found = target(*inputs, *rest, **options)  # type: ignore[operator]
        return found

    return tensors, call
