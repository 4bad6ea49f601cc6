"""Stacked layers: they compute many clients at once, with parameters `[C, …]`, inputs `[C, B, …]`.

Forward and backward passes are written by hand. So there is no autograd graph to build, and a
linear layer can apply its SGD step inside the backward pass, without storing the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from undrift.engines.compiled.dense import DenseChain
from undrift.engines.vectorised.factored import FactoredWeight
from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.utils.products import products


class Sink(ABC):
    """Receives the gradients of parameters: stores them, or applies them as a step at once."""

    @abstractmethod
    def product(self, number: int, left: Tensor, right: Tensor) -> None:
        """Take the gradient of parameter `number` as a product: left @ right for each client."""

    @abstractmethod
    def plain(self, number: int, gradient: Tensor) -> None:
        """Take the gradient of parameter `number`, `[C, …]`."""


class Layer(ABC):
    """One layer of a network, for many clients at once.

    `forward` stores on the layer what `backward` needs, so each thread needs its own layers.
    """

    trains = False
    """whether it has parameters"""
    draws_masks = False
    """whether it has dropout"""
    owns_outputs = False
    """whether its outputs are newly allocated and not needed by its own backward pass, so that the
    next layer may overwrite them"""

    def __init__(self) -> None:
        self.is_first = False
        """whether no trained layer comes before it, so that the gradient of its inputs is not
        needed"""
        self.may_overwrite = False
        """whether it may write into its inputs, which no other layer needs"""

    @abstractmethod
    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        """The outputs `[C, B, …]`; it stores what the backward pass needs."""

    @abstractmethod
    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        """Give the parameters' gradients to `sink`; return the gradient of the inputs.

        `gradient` is that of the outputs. The returned one is meaningless if `is_first`.
        """


class Linear(Layer):
    """y = x Wᵀ + b on the last axis, as `nn.Linear`."""

    trains = True
    owns_outputs = True

    def __init__(self, weight: int, bias: int | None):
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.factored: FactoredWeight | None = None
        """the weight, while it trains without being formed; `parameters` does not have it then"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._axes_between = x.shape[1:-1]
        self._x = x = _as_rows(x)
        bias = None if self.bias is None else parameters[self.bias]
        if self.factored is not None:
            y = self.factored.forward(x)
            return y if bias is None else y.add_(bias.unsqueeze(1))
        return self._restore_axes(products(x, parameters[self.weight], bias))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        gradient = _as_rows(gradient)
        # This must come first: a fused sink changes the weights, but the gradient of the inputs
        # is that at the weights before the step.
        back = gradient if self.is_first else self._back(gradient, parameters)
        sink.product(self.weight, gradient.transpose(1, 2), self._x)
        if self.bias is not None:
            sink.plain(self.bias, gradient.sum(1))
        return self._restore_axes(back)

    def _back(self, gradient: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        if self.factored is not None:
            return self.factored.backward(gradient)
        return products(gradient, parameters[self.weight].transpose(1, 2))

    def _restore_axes(self, rows: Tensor) -> Tensor:
        """Restore the axes that the inputs had between clients and features."""
        return rows if len(self._axes_between) == 1 else rows.unflatten(1, self._axes_between)


def _as_rows(x: Tensor) -> Tensor:
    """`[C, …, features]` reshaped to `[C, rows, features]`."""
    return x if x.ndim == 3 else x.flatten(1, -2)


class ReLU(Layer):
    """max(x, 0)"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._y = x.clamp_(min=0) if self.may_overwrite else x.clamp(min=0)
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.threshold_backward(gradient, self._y, 0)


class Tanh(Layer):
    """tanh(x)"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._y = x.tanh_() if self.may_overwrite else x.tanh()
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.tanh_backward(gradient, self._y)


class Sigmoid(Layer):
    """1 / (1 + exp(−x))"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._y = x.sigmoid_() if self.may_overwrite else x.sigmoid()
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.sigmoid_backward(gradient, self._y)


class Elementwise(Layer):
    """Any function that is applied to each number, with its derivative."""

    owns_outputs = True

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        derivative: Callable[[Tensor, Tensor], Tensor],
    ):
        super().__init__()
        self._function = function
        self._derivative = derivative
        """(gradient of the outputs, inputs) → gradient of the inputs"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._x = x
        return self._function(x)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return self._derivative(gradient, self._x)


class Flatten(Layer):
    """All axes but clients and samples joined into one, as `nn.Flatten()`."""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._shape = x.shape
        return x.reshape(*x.shape[:2], -1)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return gradient.reshape(self._shape)


class Dropout(Layer):
    """`nn.Dropout` with each client's own masks, the same as if it trained alone."""

    owns_outputs = True
    draws_masks = True

    def __init__(self, p: float):
        super().__init__()
        self._p = p

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        assert masks is not None
        self._mask = masks.dropout(x, self._p)
        return x * self._mask

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return gradient * self._mask


class Branches(Layer):
    """Chains of layers that start from the same inputs; subclasses join their ends."""

    def __init__(self, *branches: Sequence[Layer]):
        super().__init__()
        self._branches = branches
        self._train = [any(layer.trains for layer in branch) for branch in branches]
        self.trains = any(self._train)
        self.draws_masks = any(layer.draws_masks for branch in branches for layer in branch)

    @property
    def wanted(self) -> list[bool]:
        """Which branches need the gradients of their ends."""
        return [not self.is_first or trains for trains in self._train]

    def ends(
        self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None
    ) -> list[Tensor]:
        """The outputs of the branches."""
        found = []
        for branch in self._branches:
            y = x
            for layer in branch:
                y = layer.forward(y, parameters, masks)
            found.append(y)
        return found

    def back(
        self,
        gradients: Sequence[Tensor | None],
        like: Tensor,
        parameters: Sequence[Tensor],
        sink: Sink,
    ) -> Tensor:
        """The gradient of the inputs, from those of the ends; `like` if it is not needed."""
        backs = []
        for branch, back in zip(self._branches, gradients, strict=True):
            if back is None:
                continue
            for layer in reversed(branch):
                back = layer.backward(back, parameters, sink)
                if layer.is_first:
                    break
            backs.append(back)
        if self.is_first:
            return like
        total, *others = backs
        for each in others:
            total = total + each
        return total

    def link(self) -> None:
        """Set `is_first` and `may_overwrite` of the layers in the branches."""
        for branch in self._branches:
            link_layers(branch, first=self.is_first)


class Residual(Branches):
    """The sum of two branches: a residual block."""

    owns_outputs = True

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        one, other = self.ends(x, parameters, masks)
        if one.shape != other.shape:
            raise ValueError(f"Branches of shapes {one.shape} and {other.shape} cannot be added.")
        return one + other

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        gradients = [gradient if each else None for each in self.wanted]
        return self.back(gradients, gradient, parameters, sink)


def link_layers(layers: Sequence[Layer], first: bool = True) -> None:
    """Set `is_first` and `may_overwrite` of the layers of a chain.

    `first` is whether the gradient of the chain's inputs is not needed.
    """
    # The inputs of a chain are the samples, or are shared by two branches: never overwrite them.
    overwritable = False
    for layer in layers:
        layer.is_first, layer.may_overwrite = first, overwritable
        first = first and not layer.trains
        # Flatten returns a view, which may be overwritten if what it is a view of may be.
        overwritable = layer.owns_outputs or (overwritable and isinstance(layer, Flatten))
        if isinstance(layer, Branches):
            layer.link()


def dense_chain(layers: Sequence[Layer], shapes: Sequence[torch.Size]) -> DenseChain | None:
    """The same as a chain of linear layers with ReLU between them, or None if it is none."""
    at = [0, *accumulate(shape.numel() for shape in shapes)]
    linears: list[Linear] = []
    expected: type[Layer] = Linear
    for layer in layers:
        if isinstance(layer, Flatten) and not linears:
            continue
        if type(layer) is not expected:
            return None
        if isinstance(layer, Linear):
            linears.append(layer)
        expected = ReLU if isinstance(layer, Linear) else Linear
    if not linears or expected is Linear:
        return None
    places = [(at[each.weight], -1 if each.bias is None else at[each.bias]) for each in linears]
    weights, biases = zip(*places, strict=True)
    inputs = shapes[linears[0].weight][1]
    return DenseChain((inputs, *(shapes[each.weight][0] for each in linears)), weights, biases)


def merge_channels(x: Tensor) -> Tensor:
    """`[C, B, channels, …]` to `[B, C·channels, …]`."""
    return x.transpose(0, 1).flatten(1, 2)


def split_channels(x: Tensor, clients: int) -> Tensor:
    """`[B, C·channels, …]` to `[C, B, channels, …]`."""
    return x.unflatten(1, (clients, -1)).transpose(0, 1)
