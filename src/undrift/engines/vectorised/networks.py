"""The gradients of many clients at once: through layers written out, or through vmap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from undrift.engines.vectorised.batches import Batch
from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.layers import Dropout, Layer, Sink, stacked_layers
from undrift.errors import first_line
from undrift.keys import torch_generator_set_to
from undrift.modules import ModuleLosses
from undrift.tasks import Task, cross_entropies, squared_errors

Derivative = Callable[[Tensor, Tensor, Tensor | float], Tensor]
"""(outputs, targets, weights of the samples) → the gradient of the outputs."""


class Network(ABC):
    """A model that many clients train at once."""

    name: str
    fuses: bool = False
    """whether gradients may go straight into a step"""
    draws: bool = False
    """whether it has dropout"""

    @abstractmethod
    def backward(
        self,
        parameters: Sequence[Tensor],
        batch: Batch,
        scale: Tensor | float,
        sink: Sink,
        draws: Draws | None,
    ) -> None:
        """Put the gradients of every client's s·(mean loss over its batch) into a sink."""

    def copy(self) -> Network:
        """One for another thread."""
        return deepcopy(self)


def cross_entropy_derivative(outputs: Tensor, targets: Tensor, weights: Tensor | float) -> Tensor:
    """Of Σ w·cross-entropy: w·(softmax − one-hot)."""
    p = outputs.softmax(-1)
    p.scatter_add_(-1, targets[..., None], -torch.ones_like(targets, dtype=p.dtype)[..., None])
    return p.mul_(weights[..., None] if isinstance(weights, Tensor) else weights)


def squared_error_derivative(outputs: Tensor, targets: Tensor, weights: Tensor | float) -> Tensor:
    """Of Σ w·(mean squared error of a sample): w·2(o − t)/D."""
    per_sample = outputs[0, 0].numel()
    g = (outputs - targets).mul_(2.0 / per_sample)
    return g.mul_(_over_samples(weights, g))


class StackedNetwork(Network):
    """Layers written out: `layers.py` has them."""

    name = "stacked layers"
    fuses = True

    def __init__(self, layers: list[Layer], derivative: Derivative):
        self._layers = layers
        self._derivative = derivative
        self.draws = any(isinstance(layer, Dropout) for layer in layers)

    def backward(
        self,
        parameters: Sequence[Tensor],
        batch: Batch,
        scale: Tensor | float,
        sink: Sink,
        draws: Draws | None,
    ) -> None:
        x = batch.x
        for layer in self._layers:
            x = layer.forward(x, parameters, draws)
        weights = batch.shares(x)
        if isinstance(scale, Tensor):
            weights = weights * scale[:, None]
        elif scale != 1.0:
            weights = weights * scale
        if isinstance(weights, Tensor) and weights.shape[1] == 1:
            weights = weights.expand(*x.shape[:2])
        g = self._derivative(x, batch.y, weights)
        for layer in reversed(self._layers):
            g = layer.backward(g, parameters, sink)
            if layer.first:
                break


class VmappedNetwork(Network):
    """Any module that torch.func can map over clients."""

    name = "vmap"

    def __init__(self, module: nn.Module, names: Sequence[str], task: Task):
        self._module = module
        self._names = list(names)
        self._task = task
        frozen = {n: p for n, p in module.named_parameters() if n not in set(names)}
        constants = {**frozen, **dict(module.named_buffers())}

        def loss(parameters: list[Tensor], x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            own = dict(zip(self._names, parameters, strict=True))
            outputs = functional_call(module, {**own, **constants}, (x,))
            assert task.per_sample is not None
            losses = task.per_sample(outputs, y)
            losses = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
            return (losses * w).sum()

        self._gradient = vmap(grad(loss))

    def backward(
        self,
        parameters: Sequence[Tensor],
        batch: Batch,
        scale: Tensor | float,
        sink: Sink,
        draws: Draws | None,
    ) -> None:
        like = parameters[0]
        w = batch.shares(like)
        if not isinstance(w, Tensor):
            w = like.new_full(batch.x.shape[:2], w)
        w = w * (scale[:, None] if isinstance(scale, Tensor) else scale)
        self._module.train()
        for number, gradient in enumerate(self._gradient(list(parameters), batch.x, batch.y, w)):
            sink.plain(number, gradient)

    def refused_by(self, losses: ModuleLosses) -> str | None:
        """Why torch.func cannot map the module over clients, or None if it can."""
        part = losses.train_part
        rows = part.rows[:2].repeat(2)
        x = part.x[rows].view(2, 2, *part.x.shape[1:])
        y = part.y[rows].view(2, 2, *part.y.shape[1:])
        parameters = [p.detach()[None].repeat(2, *[1] * p.ndim) for n, p in self._own()]
        weights = parameters[0].new_full((2, 2), 0.5)
        self._module.train()
        try:
            with torch_generator_set_to(0, losses.device):
                self._gradient(parameters, x, y, weights)
        except Exception as error:  # whatever torch.func says
            return f"it cannot be mapped over clients ({first_line(error)})"
        return None

    def _own(self) -> list[tuple[str, Tensor]]:
        named = dict(self._module.named_parameters())
        return [(name, named[name]) for name in self._names]

    def copy(self) -> Network:
        return VmappedNetwork(deepcopy(self._module), self._names, self._task)


def stacked_network(losses: ModuleLosses) -> StackedNetwork | str:
    """The network with its layers written out, or why there is none."""
    task = losses.task
    derivative: Derivative
    if task.per_sample is cross_entropies and losses.train_part.y.ndim == 1:
        derivative = cross_entropy_derivative
    elif task.per_sample is squared_errors:
        derivative = squared_error_derivative
    else:
        return "its loss is not cross-entropy over classes or squared error"
    layers = stacked_layers(losses.flat.module, losses.flat.names)
    return layers if isinstance(layers, str) else StackedNetwork(layers, derivative)


def vmapped_network(losses: ModuleLosses) -> VmappedNetwork | str:
    """The network mapped over clients, or why there is none."""
    if losses.moving:
        return "it has statistics that training changes"
    if losses.task.per_sample is None:
        return "its loss is not known for single samples"
    if any(isinstance(m, nn.Dropout) and m.p > 0 for m in losses.flat.module.modules()):
        return "it has dropout, which is drawn for each client by itself"
    module = deepcopy(losses.flat.module)
    for p in module.parameters():
        p.grad = None
        p.data = p.data.clone()
    found = VmappedNetwork(module, losses.flat.names, losses.task)
    return found.refused_by(losses) or found


def _over_samples(weights: Tensor | float, like: Tensor) -> Tensor | float:
    if not isinstance(weights, Tensor):
        return weights
    return weights.view(*weights.shape, *[1] * (like.ndim - 2))
