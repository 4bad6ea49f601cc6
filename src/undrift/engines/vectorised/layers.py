"""Layers that work on many clients at once: parameters `[C, …]`, inputs `[C, B, …]`.

Each layer has its forward and its backward pass written out, so that there is no graph to build,
and a linear layer can take its step in the backward pass, without a gradient in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

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

    def __init__(self) -> None:
        self.first = False
        """whether nobody needs the gradient of its inputs"""

    @abstractmethod
    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        """The outputs; what the backward pass needs is remembered."""

    @abstractmethod
    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        """The gradient of the inputs, from that of the outputs."""


class Linear(Layer):
    """y = x Wᵀ + b"""

    def __init__(self, weight: int, bias: int | None):
        super().__init__()
        self._weight = weight
        self._bias = bias
        self._x: Tensor | None = None

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._x = x
        W = parameters[self._weight].transpose(1, 2)
        if self._bias is None:
            return torch.bmm(x, W)
        return torch.baddbmm(parameters[self._bias][:, None], x, W)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        assert self._x is not None
        # The gradient of the inputs is that at the weights before the step.
        back = gradient if self.first else torch.bmm(gradient, parameters[self._weight])
        sink.product(self._weight, gradient.transpose(1, 2), self._x)
        if self._bias is not None:
            sink.plain(self._bias, gradient.sum(1))
        return back


class ReLU(Layer):
    """max(x, 0)"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._y = x.clamp_(min=0)
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.threshold_backward(gradient, self._y, 0)


class Tanh(Layer):
    """tanh(x)"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._y = x.tanh_()
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.tanh_backward(gradient, self._y)


class Sigmoid(Layer):
    """1 / (1 + exp(−x))"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._y = x.sigmoid_()
        return self._y

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return torch.ops.aten.sigmoid_backward(gradient, self._y)


class Flatten(Layer):
    """All but the clients and the samples in one row."""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._shape = x.shape
        return x.flatten(2)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return gradient.view(self._shape)


class Dropout(Layer):
    """Zeroes, drawn for each client from its own key, in the order in which it draws alone."""

    def __init__(self, p: float):
        super().__init__()
        self._p = p

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        assert draws is not None
        self._mask = draws.dropout(x, self._p)
        return x * self._mask

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return gradient * self._mask


PLAIN: dict[type[nn.Module], Callable[[], Layer]] = {
    nn.ReLU: ReLU,
    nn.Tanh: Tanh,
    nn.Sigmoid: Sigmoid,
}


def stacked_layers(module: nn.Module, names: Sequence[str]) -> list[Layer] | str:
    """The layers of a module, or a sentence on why it has none of this kind.

    `names` are those of its trainable parameters, in their order.
    """
    found: list[Layer] = []
    place = {name: number for number, name in enumerate(names)}
    used: list[str] = []

    def walk(each: nn.Module, path: str) -> str | None:
        """Add the layers of a module; what has no such layer is named."""
        if type(each) is nn.Sequential:
            found_wrong = (walk(child, f"{path}{name}.") for name, child in each.named_children())
            return next(filter(None, found_wrong), None)
        if type(each) is nn.Linear:
            own = [f"{path}{name}" for name, _ in each.named_parameters()]
            if any(name not in place for name in own):
                return f"{path[:-1]} has frozen parameters"
            used.extend(own)
            found.append(Linear(place[own[0]], place[own[1]] if len(own) > 1 else None))
        elif type(each) is nn.Flatten and each.start_dim == 1 and each.end_dim == -1:
            found.append(Flatten())
        elif type(each) is nn.Dropout:
            found.extend([Dropout(each.p)] if each.p > 0 else [])
        elif type(each) in PLAIN:
            found.append(PLAIN[type(each)]())
        elif type(each) is not nn.Identity:
            return f"{path[:-1] or 'the model'} is a {type(each).__name__}"
        return None

    wrong = walk(module, "")
    if wrong:
        return wrong
    if sorted(used) != sorted(names) or any(m._forward_hooks for m in module.modules()):
        return "it shares parameters or has hooks"
    for layer in found:
        layer.first = True
        if isinstance(layer, Linear):
            break
    return found
