"""The embedding of whole numbers, for many clients at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.layers import Layer, Sink


class Embedding(Layer):
    """Row x of a client's table: whole numbers `[C, B, …]` to `[C, B, …, E]`."""

    trains = True
    gives_away = True

    def __init__(self, table: int):
        super().__init__()
        self._table = table

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._x = x
        return parameters[self._table][each_client(x), x]

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        C, rows, width = parameters[self._table].shape
        # As one table with the clients' rows below each other.
        below = self._x + rows * each_client(self._x)
        whole = torch.ops.aten.embedding_dense_backward(gradient, below, C * rows, -1, False)
        sink.plain(self._table, whole.view(C, rows, width))
        return gradient


def each_client(x: Tensor) -> Tensor:
    """The numbers of the clients, `[C, 1, …]`."""
    return torch.arange(len(x), device=x.device).view(-1, *[1] * (x.ndim - 1))


def embedding(module: nn.Embedding, numbers: Sequence[int]) -> Embedding | str:
    """The layer that does what the module does, or what is in the way."""
    for option in ("padding_idx", "max_norm"):
        if getattr(module, option) is not None:
            return f"has {option}"
    for option in ("sparse", "scale_grad_by_freq"):
        if getattr(module, option):
            return f"has {option}"
    return Embedding(numbers[0])
