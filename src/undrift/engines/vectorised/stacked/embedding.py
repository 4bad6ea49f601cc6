"""`nn.Embedding` and `nn.EmbeddingBag` for many clients at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.stacked.functions import Function
from undrift.engines.vectorised.stacked.layers import Layer, Sink


class Embedding(Layer):
    """Row x of each client's table: integers `[C, B, …]` to `[C, B, …, E]`."""

    trains = True
    owns_outputs = True

    def __init__(self, table: int):
        super().__init__()
        self._table = table

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._x = x
        return parameters[self._table][client_indices(x), x]

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        C, rows, width = parameters[self._table].shape
        # One table with the clients' tables below each other, so that one call serves all.
        row_in_all = self._x + rows * client_indices(self._x)
        whole = torch.ops.aten.embedding_dense_backward(gradient, row_in_all, C * rows, -1, False)
        sink.plain(self._table, whole.view(C, rows, width))
        return gradient  # integers have no gradient; nobody reads this


def client_indices(x: Tensor) -> Tensor:
    """0 … C − 1, `[C, 1, …]`, to be broadcast with `x`."""
    return torch.arange(len(x), device=x.device).view(-1, *[1] * (x.ndim - 1))


def embedding(module: nn.Embedding, numbers: Sequence[int]) -> Embedding | str:
    """The stacked layer for a module, or the option that prevents it."""
    return _unusual_option(module) or Embedding(numbers[0])


def embedding_bag(module: nn.EmbeddingBag, numbers: Sequence[int]) -> list[Layer] | str:
    """The stacked layers for a module that is called with bags of equal size, `[B, words]`."""
    if module.mode not in ("mean", "sum"):
        return f"has the mode {module.mode!r}"
    how = module.mode
    return _unusual_option(module) or [
        Embedding(numbers[0]),
        Function(lambda x: x.mean(1) if how == "mean" else x.sum(1)),
    ]


def _unusual_option(module: nn.Embedding | nn.EmbeddingBag) -> str:
    """The option that prevents a stacked layer; empty if there is none."""
    for option in ("padding_idx", "max_norm"):
        if getattr(module, option) is not None:
            return f"has {option}"
    for option in ("sparse", "scale_grad_by_freq"):
        if getattr(module, option):
            return f"has {option}"
    return ""
