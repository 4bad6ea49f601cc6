"""Layers that work on many clients at once: parameters `[C, …]`, inputs `[C, B, …]`.

Each layer has its forward and its backward pass written out, so that there is no graph to build,
and a linear layer can take its step in the backward pass, without a gradient in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from undrift.engines.vectorised.draws import Draws


class Sink(ABC):
    """Where the gradient of a parameter goes: into memory, or straight into a step."""

    @abstractmethod
    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        """The gradient of parameter `number` is left @ right, for each client."""

    @abstractmethod
    def plain(self, number: int, gradient: Tensor) -> None:
        """The gradient of parameter `number`."""


class Layer(ABC):
    """One layer of a network, for many clients at once."""

    trains = False
    """whether it has parameters"""
    gives_away = False
    """whether its outputs are memory of their own that its backward pass does not need"""

    def __init__(self) -> None:
        self.first = False
        """whether nobody needs the gradient of its inputs"""
        self.may_overwrite = False
        """whether nobody else needs its inputs"""

    @abstractmethod
    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        """The outputs; what the backward pass needs is remembered."""

    @abstractmethod
    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        """The gradient of the inputs, from that of the outputs."""


class Linear(Layer):
    """y = x Wᵀ + b, of the last axis"""

    trains = True
    gives_away = True

    def __init__(self, weight: int, bias: int | None):
        super().__init__()
        self._weight = weight
        self._bias = bias

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._between = x.shape[1:-1]
        self._x = x = _as_rows(x)
        W = parameters[self._weight].transpose(1, 2)
        if self._bias is None:
            y = torch.bmm(x, W)
        else:
            y = torch.baddbmm(parameters[self._bias].unsqueeze(1), x, W)
        return self._between_again(y)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        gradient = _as_rows(gradient)
        # The gradient of the inputs is that at the weights before the step.
        back = gradient if self.first else torch.bmm(gradient, parameters[self._weight])
        sink.product(self._weight, gradient.transpose(1, 2), self._x)
        if self._bias is not None:
            sink.plain(self._bias, gradient.sum(1))
        return self._between_again(back)

    def _between_again(self, rows: Tensor) -> Tensor:
        """Rows with the axes between clients and features that the inputs had."""
        return rows if len(self._between) == 1 else rows.unflatten(1, self._between)


def _as_rows(x: Tensor) -> Tensor:
    """`[C, …, features]` as `[C, rows, features]`."""
    return x if x.ndim == 3 else x.flatten(1, -2)


class ReLU(Layer):
    """max(x, 0)"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._y = x.clamp_(min=0) if self.may_overwrite else x.clamp(min=0)
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.threshold_backward(gradient, self._y, 0)


class Tanh(Layer):
    """tanh(x)"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._y = x.tanh_() if self.may_overwrite else x.tanh()
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.tanh_backward(gradient, self._y)


class Sigmoid(Layer):
    """1 / (1 + exp(−x))"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._y = x.sigmoid_() if self.may_overwrite else x.sigmoid()
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.sigmoid_backward(gradient, self._y)


class Curve(Layer):
    """Any function of each number, with its derivative."""

    gives_away = True

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        derivative: Callable[[Tensor, Tensor], Tensor],
    ):
        super().__init__()
        self._function = function
        self._derivative = derivative
        """(gradient, inputs) → the gradient of the inputs"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._x = x
        return self._function(x)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return self._derivative(gradient, self._x)


class Flatten(Layer):
    """All but the clients and the samples in one row."""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._shape = x.shape
        return x.reshape(*x.shape[:2], -1)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return gradient.reshape(self._shape)


class Dropout(Layer):
    """Zeroes, drawn for each client from its own key, in the order in which it draws alone."""

    gives_away = True

    def __init__(self, p: float):
        super().__init__()
        self._p = p

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        assert draws is not None
        self._mask = draws.dropout(x, self._p)
        return x * self._mask

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return gradient * self._mask


class Sum(Layer):
    """What two branches make of the same inputs, added."""

    gives_away = True

    def __init__(self, *branches: Sequence[Layer]):
        super().__init__()
        self._branches = branches
        self.trains = any(layer.trains for branch in branches for layer in branch)

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        ends = []
        for branch in self._branches:
            y = x
            for layer in branch:
                y = layer.forward(y, parameters, draws)
            ends.append(y)
        one, other = ends
        if one.shape != other.shape:
            raise ValueError(f"Branches of shapes {one.shape} and {other.shape} cannot be added.")
        return one + other

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        backs = []
        for branch in self._branches:
            back = gradient
            for layer in reversed(branch):
                back = layer.backward(back, parameters, sink)
                if layer.first:
                    break
            backs.append(back)
        return gradient if self.first else backs[0] + backs[1]

    def chain(self) -> None:
        """Tell the layers of the branches what they may leave out and overwrite."""
        for branch in self._branches:
            chained(branch, first=self.first)


def chained(layers: Sequence[Layer], first: bool = True) -> None:
    """Tell the layers of a chain what they may leave out, and what they may overwrite.

    `first` is whether nobody needs the gradient of what the chain begins with.
    """
    given_away = False
    for layer in layers:
        layer.first, layer.may_overwrite = first, given_away
        first = first and not layer.trains
        given_away = layer.gives_away or (given_away and isinstance(layer, Flatten))
        if isinstance(layer, Sum):
            layer.chain()


def channels_of_all(x: Tensor) -> Tensor:
    """`[C, B, channels, …]` as `[B, C·channels, …]`."""
    return x.transpose(0, 1).flatten(1, 2)


def channels_of_each(x: Tensor, clients: int) -> Tensor:
    """`[B, C·channels, …]` as `[C, B, channels, …]`."""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)
