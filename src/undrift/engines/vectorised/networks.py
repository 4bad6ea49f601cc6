"""The gradients of many clients at once: layers written out, vmap, or one client's module."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from undrift.engines.vectorised.batches import Batch
from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.layers import Dropout, Layer, Sink
from undrift.engines.vectorised.steps import Lists, vectors_like
from undrift.engines.vectorised.tracing import stacked_layers
from undrift.nets.criteria import Criterion, cross_entropies, squared_errors
from undrift.nets.dropout import Coins, KeyedDropout, with_keyed_dropout
from undrift.nets.modes import set_training
from undrift.nets.modules import ModuleLosses
from undrift.utils.errors import first_line
from undrift.utils.keys import torch_generator_set_to

SMALL = 16_384
"""Numbers in a small parameter."""
REGISTER = 16
"""Numbers in single precision that a processor works on at once."""

Derivative = Callable[[Tensor, Tensor, Tensor | float], Tensor]
"""(outputs, targets, weights of the samples) → the gradient of the outputs."""


class Network(ABC):
    """A model that clients train.

    `channels_last` keeps the kernels of convolutions in that order of memory, with which a
    processor may be faster.
    """

    name: str
    most: int | None = None
    """how many clients can train at once, if that is bounded"""
    fuses: bool = False
    """whether gradients may go straight into a step"""
    draws: bool = False
    """whether it has dropout"""
    channels_last: bool = False
    _room: Lists | None = None
    _clients: int = 0
    _vectors: Tensor | None = None

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

    def arranged(self, lists: Lists) -> Lists:
        """Vectors in the network's order of memory."""
        return [_last(each) if self._turned(each) else each for each in lists]

    def vectors(self, like: Tensor, clients: int) -> Tensor:
        """Room for a vector of every client, the same every time, unless it is given away."""
        if self._vectors is None or len(self._vectors) < clients:
            self._vectors = vectors_like(like, clients)
        return self._vectors[:clients]

    def give_away(self) -> None:
        """What was put into `vectors` is kept by others."""
        self._vectors = None

    def room(self, lists: Lists) -> Lists:
        """Room for parameters in the network's order: the given views of vectors, or other tensors.

        Small ones of several clients lie side by side, since their products are slow otherwise.
        """
        clients = len(lists[0])
        apart = [self._turned(each) or each[0].numel() < SMALL for each in lists]
        if self._room is None or self._clients < clients:
            self._clients = clients
            self._room = self.arranged(
                [
                    torch.empty(each.shape if own else 0, dtype=each.dtype, device=each.device)
                    for each, own in zip(lists, apart, strict=True)
                ]
            )
        rooms = zip(lists, self._room, apart, strict=True)
        return [room[:clients] if own else each for each, room, own in rooms]

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Set the statistics that training changes, for a network that can have any."""

    def buffers(self) -> dict[str, Tensor]:
        """These statistics."""
        return {}

    def _turned(self, each: Tensor) -> bool:
        return self.channels_last and each.ndim == 5


def _last(kernel: Tensor) -> Tensor:
    """A kernel `[C, out, in, height, width]` with its channels last in memory."""
    return kernel.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def cross_entropy_derivative(outputs: Tensor, targets: Tensor, weights: Tensor | float) -> Tensor:
    """Of Σ w·cross-entropy: w·(softmax − one-hot)."""
    p = _softmax(outputs)
    p.scatter_add_(-1, targets[..., None], _minus_ones(*targets.shape, p.dtype, p.device))
    return p.mul_(weights[..., None] if isinstance(weights, Tensor) else weights)


@lru_cache
def _minus_ones(clients: int, samples: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((clients, samples, 1), -1.0, dtype=dtype, device=device)


def _softmax(outputs: Tensor) -> Tensor:
    """Softmax over the last dimension; torch's own is slow for less than a register."""
    if outputs.shape[-1] >= REGISTER:
        return outputs.softmax(-1)
    e = outputs.sub(outputs.amax(-1, keepdim=True)).exp_()
    return e.div_(e.sum(-1, keepdim=True))


def squared_error_derivative(outputs: Tensor, targets: Tensor, weights: Tensor | float) -> Tensor:
    """Of Σ w·(mean squared error of a sample): w·2(o − t)/D."""
    per_sample = outputs[0, 0].numel()
    g = (outputs - targets).mul_(2.0 / per_sample)
    if not isinstance(weights, Tensor):
        return g.mul_(weights)
    return g.mul_(weights.view(*weights.shape, *[1] * (g.ndim - 2)))


class StackedNetwork(Network):
    """Layers written out: `layers.py` has them."""

    name = "stacked layers"
    fuses = True

    def __init__(self, layers: list[Layer], derivative: Derivative, channels_last: bool = False):
        self._layers = layers
        self._derivative = derivative
        self.draws = any(isinstance(layer, Dropout) for layer in layers)
        self.channels_last = channels_last

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
        g = self._derivative(x, batch.y, _weights(batch, scale))
        for layer in reversed(self._layers):
            g = layer.backward(g, parameters, sink)
            if layer.first:
                break


class VmappedNetwork(Network):
    """Any module that torch.func can map over clients."""

    name = "vmap"

    def __init__(self, module: nn.Module, names: Sequence[str], task: Criterion):
        self._module = module
        self._names = list(names)
        self._task = task
        frozen = {n: p for n, p in module.named_parameters() if n not in set(names)}
        constants = {**frozen, **dict(module.named_buffers())}
        everywhere = _names_of_tied(module)

        def loss(parameters: list[Tensor], x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            named = zip(self._names, parameters, strict=True)
            own = {name: p for first, p in named for name in everywhere[first]}
            # Torch's own way with what is tied leaves a module that is used twice changed.
            outputs = functional_call(module, {**own, **constants}, (x,), tie_weights=False)
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
        w = _weights(batch, scale)
        if not isinstance(w, Tensor):
            w = parameters[0].new_full(batch.x.shape[:2], w)
        set_training(self._module)
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
        set_training(self._module)
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


class ModuleNetwork(Network):
    """Any module, one client after another."""

    name = "one by one"
    most = 1
    fuses = True

    def __init__(self, losses: ModuleLosses, channels_last: bool = False):
        self._module = set_training(_own_copy(losses))
        self._moving, self._task = losses.moving, losses.task
        self._parameters: list[nn.Parameter] = [
            p for p in self._module.parameters() if p.requires_grad
        ]
        with_keyed_dropout(self._module, Coins(losses.device))
        self._dropouts = [m for m in self._module.modules() if isinstance(m, KeyedDropout)]
        self.draws = bool(self._dropouts)
        self.channels_last = channels_last

    def backward(
        self,
        parameters: Sequence[Tensor],
        batch: Batch,
        scale: Tensor | float,
        sink: Sink,
        draws: Draws | None,
    ) -> None:
        for p, own in zip(self._parameters, parameters, strict=True):
            p.data = own[0]
        if draws is not None:
            for dropout in self._dropouts:
                dropout.coins = draws.coins[0]
        (size,) = batch.sizes
        x, y = batch.x[0, :size], batch.y[0, :size]
        if self.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.enable_grad():
            loss = self._task.loss(self._module(x), y) * float(scale)
            gradients = torch.autograd.grad(
                loss, self._parameters, allow_unused=True, materialize_grads=True
            )
        for number, gradient in enumerate(gradients):
            sink.plain(number, gradient[None])

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        for name, value in self._module.named_buffers():
            if name in buffers:
                value.copy_(buffers[name])

    def buffers(self) -> dict[str, Tensor]:
        named = self._module.named_buffers()
        return {name: value.clone() for name, value in named if name in self._moving}


def stacked_network(losses: ModuleLosses, channels_last: bool = False) -> StackedNetwork | str:
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
    return layers if isinstance(layers, str) else StackedNetwork(layers, derivative, channels_last)


def vmapped_network(losses: ModuleLosses) -> VmappedNetwork | str:
    """The network mapped over clients, or why there is none."""
    if losses.moving:
        return "it has statistics that training changes"
    if losses.task.per_sample is None:
        return "its loss is not known for single samples"
    if any(isinstance(m, nn.Dropout) and m.p > 0 for m in losses.flat.module.modules()):
        return "it has dropout, which is drawn for each client by itself"
    found = VmappedNetwork(_own_copy(losses), losses.flat.names, losses.task)
    return found.refused_by(losses) or found


def _own_copy(losses: ModuleLosses) -> nn.Module:
    """A module with parameters of its own, in place of views of one vector."""
    module = deepcopy(losses.flat.module)
    for p in module.parameters():
        p.grad = None
        p.data = p.data.clone()
    return module


def _names_of_tied(module: nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by the first of them; a module that is used twice has one."""
    found: dict[nn.Parameter, list[str]] = {}
    for path, each in module.named_modules():
        for name, parameter in each.named_parameters(recurse=False, remove_duplicate=False):
            found.setdefault(parameter, []).append(f"{path}.{name}" if path else name)
    return {names[0]: names for names in found.values()}


def _weights(batch: Batch, scale: Tensor | float) -> Tensor | float:
    """The weight of each sample in s·(its client's mean), `[C, B]`, or one for all."""
    weights = batch.weights
    if not isinstance(scale, Tensor):
        return weights * scale if scale != 1.0 else weights
    return (weights * scale[:, None]).expand(*batch.x.shape[:2])
