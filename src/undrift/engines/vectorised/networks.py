"""Networks: the forms of a model that compute the gradients of clients in a chunk.

`StackedNetwork` has hand-written layers for many clients, `VmappedNetwork` maps any module over
clients with torch.func, and `ModuleNetwork` runs the user's module for one client at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from undrift.data.samples.structure import Tree, map_tensors, tensors_of
from undrift.engines.compiled.dense import DenseChain
from undrift.engines.fast_linear import use_fast_linear
from undrift.engines.vectorised.batches import Batch
from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.stacked.layers import (
    Dropout,
    Elementwise,
    Flatten,
    Layer,
    Linear,
    ReLU,
    Sigmoid,
    Sink,
    Tanh,
    dense_chain,
)
from undrift.engines.vectorised.steps import ParameterList, vectors_like
from undrift.engines.vectorised.tracing import stacked_layers
from undrift.nets.criteria import (
    Criterion,
    cross_entropies,
    mean_of_each_sample,
    squared_errors,
)
from undrift.nets.dropout import KeyedDropout, MaskGenerator, use_keyed_dropout
from undrift.nets.modes import set_training
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import first_line
from undrift.utils.keys import torch_generator_set_to

SMALL_NUMBERS = 16_384
"""Parameters with fewer numbers count as small."""
REGISTER_NUMBERS = 16
"""Single-precision numbers that a processor handles with one instruction."""

Derivative = Callable[[Tensor, Tensor, Tensor | float], Tensor]
"""(outputs, targets, weights of the samples) → the gradient of the weighted loss by outputs."""


class Network(ABC):
    """A model in a form that computes the gradients of several clients."""

    name: str
    """the network in a few words, for messages"""
    max_clients: int | None = None
    """how many clients can train at once, if that is bounded"""
    supports_fused_steps: bool = False
    """whether gradients may be applied as a step during the backward pass: it must not read a
    parameter after it gave its gradient"""
    uses_random_numbers: bool = False
    """whether it has dropout"""
    channels_last: bool = False
    """whether the kernels of convolutions have their channels last in memory, which may be faster
    on a CPU"""
    flat_linears: Sequence[tuple[Linear, bool]] = ()
    """linear layers whose inputs are one vector for each sample, and whether these are the samples
    themselves; their weights need not be formed"""
    chain: DenseChain | None = None
    """the model as a chain that the C kernel can train, if it is one"""
    _tensors: ParameterList | None = None
    _tensor_clients: int = 0
    _vectors: Tensor | None = None

    @abstractmethod
    def backward(
        self,
        parameters: Sequence[Tensor],
        batch: Batch,
        scale: Tensor | float,
        sink: Sink,
        masks: RandomMasks | None,
    ) -> None:
        """Give `sink` the gradients of every client's s·(mean loss over its batch)."""

    def copy(self) -> Network:
        """A network for another thread, with memory of its own."""
        return deepcopy(self)

    def in_memory_order(self, parameters: ParameterList) -> ParameterList:
        """Parameters in the network's memory order; copies if that differs from theirs."""
        return [_channels_last(p) if self._is_reordered(p) else p for p in parameters]

    def vectors(self, like: Tensor, clients: int) -> Tensor:
        """Uninitialised vectors of some clients, `[C, P]`; the same memory at every call.

        Allocating them anew for each chunk would cost page faults for as many numbers as all
        clients' models have.
        """
        if self._vectors is None or len(self._vectors) < clients:
            self._vectors = vectors_like(like, clients)
        return self._vectors[:clients]

    def release_vectors(self) -> None:
        """Do not reuse the memory of `vectors`: the caller keeps it."""
        self._vectors = None

    def parameter_tensors(self, views: ParameterList) -> ParameterList:
        """Tensors to train in: the given views of the clients' vectors, or separate tensors.

        A small parameter gets a separate tensor, in which the clients' values are contiguous:
        batched products are slow on views that are far apart. So does one that needs another
        memory order. The caller copies separate tensors back into the views at the end.
        """
        clients = len(views[0])
        separate = [self._is_reordered(v) or v[0].numel() < SMALL_NUMBERS for v in views]
        if self._tensors is None or self._tensor_clients < clients:
            self._tensor_clients = clients
            self._tensors = self.in_memory_order(
                [
                    torch.empty(view.shape if own else 0, dtype=view.dtype, device=view.device)
                    for view, own in zip(views, separate, strict=True)
                ]
            )
        choices = zip(views, self._tensors, separate, strict=True)
        return [tensor[:clients] if own else view for view, tensor, own in choices]

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Set the buffers that training changes, in a network that can have any."""

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers that training changes."""
        return {}

    def _is_reordered(self, parameter: Tensor) -> bool:
        """Whether a parameter `[C, …]` is a kernel whose channels are last in memory."""
        return self.channels_last and parameter.ndim == 5


def _channels_last(kernel: Tensor) -> Tensor:
    """A copy of a kernel `[C, out, in, height, width]` with its channels last in memory."""
    return kernel.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def cross_entropy_derivative(outputs: Tensor, targets: Tensor, weights: Tensor | float) -> Tensor:
    """The derivative of Σ w·cross-entropy by the outputs: w·(softmax − one-hot)."""
    p = _softmax(outputs)
    p.scatter_add_(-1, targets[..., None], _minus_ones(*targets.shape, p.dtype, p.device))
    return p.mul_(weights[..., None] if isinstance(weights, Tensor) else weights)


@lru_cache
def _minus_ones(clients: int, samples: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((clients, samples, 1), -1.0, dtype=dtype, device=device)


def _softmax(outputs: Tensor) -> Tensor:
    """Softmax over the last axis; torch's own is slow for fewer numbers than a register holds."""
    if outputs.shape[-1] >= REGISTER_NUMBERS:
        return outputs.softmax(-1)
    e = outputs.sub(outputs.amax(-1, keepdim=True)).exp_()
    return e.div_(e.sum(-1, keepdim=True))


def squared_error_derivative(outputs: Tensor, targets: Tensor, weights: Tensor | float) -> Tensor:
    """The derivative of Σ w·(mean squared error of a sample): w·2(o − t)/D."""
    per_sample = outputs[0, 0].numel()
    g = (outputs - targets).mul_(2.0 / per_sample)
    if not isinstance(weights, Tensor):
        return g.mul_(weights)
    return g.mul_(weights.view(*weights.shape, *[1] * (g.ndim - 2)))


class StackedNetwork(Network):
    """A chain of stacked layers (`layers.py`) with cross-entropy or squared error."""

    name = "stacked layers"
    supports_fused_steps = True

    def __init__(
        self,
        layers: list[Layer],
        derivative: Derivative,
        channels_last: bool = False,
        flat_samples: bool = False,
    ):
        self._layers = layers
        self.flat_linears = flat_linears(layers, flat_samples)
        self._derivative = derivative
        self.uses_random_numbers = any(layer.draws_masks for layer in layers)
        self.channels_last = channels_last

    def backward(
        self,
        parameters: Sequence[Tensor],
        batch: Batch,
        scale: Tensor | float,
        sink: Sink,
        masks: RandomMasks | None,
    ) -> None:
        x = batch.x
        for layer in self._layers:
            x = layer.forward(x, parameters, masks)
        g = self._derivative(x, batch.y, _weights(batch, scale))
        for layer in reversed(self._layers):
            g = layer.backward(g, parameters, sink)
            if layer.is_first:
                break


KEEP_SHAPE = (Linear, ReLU, Tanh, Sigmoid, Elementwise, Dropout)
"""Layers whose outputs are one vector for each sample if their inputs are."""


def flat_linears(layers: Sequence[Layer], flat_samples: bool) -> list[tuple[Linear, bool]]:
    """Linear layers whose inputs are one vector for each sample, and whether these are the samples.

    `flat_samples` says whether a sample is a vector.
    """
    found = []
    flat, samples = flat_samples, True
    for layer in layers:
        if isinstance(layer, Linear) and flat:
            found.append((layer, samples))
        if isinstance(layer, Flatten):
            flat = True
        else:
            samples = False
            flat = flat and isinstance(
                layer, Linear | ReLU | Tanh | Sigmoid | Elementwise | Dropout
            )
    return found


class VmappedNetwork(Network):
    """Any module that torch.func can map over clients."""

    name = "vmap"

    def __init__(self, module: nn.Module, names: Sequence[str], criterion: Criterion):
        self._module = module
        self._names = list(names)
        self._criterion = criterion
        frozen = {n: p for n, p in module.named_parameters() if n not in set(names)}
        constants = {**frozen, **dict(module.named_buffers())}
        all_names = _names_of_tied(module)

        def loss(parameters: list[Tensor], x: Tree, y: Tree, w: Tensor) -> Tensor:
            named = zip(self._names, parameters, strict=True)
            own = {name: p for first, p in named for name in all_names[first]}
            # Tied parameters are passed under all their names. With tie_weights=True, torch leaves
            # a module that is used twice changed afterwards.
            args, kwargs = _as_arguments(x)
            outputs = functional_call(module, {**own, **constants}, args, kwargs, tie_weights=False)
            assert criterion.per_sample is not None
            return (mean_of_each_sample(criterion.per_sample(outputs, y)) * w).sum()

        # torch.func computes some operators, such as attention, for one client after another, and
        # would tell the user so. The choice of the strategy takes care of that.
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
        self._gradient = vmap(grad(loss))

    def backward(
        self,
        parameters: Sequence[Tensor],
        batch: Batch,
        scale: Tensor | float,
        sink: Sink,
        masks: RandomMasks | None,
    ) -> None:
        w = _weights(batch, scale)
        if not isinstance(w, Tensor):
            w = parameters[0].new_full(next(tensors_of(batch.x)).shape[:2], w)
        set_training(self._module)
        # Padding has weight 0, so a client's short batch needs no special case.
        for number, gradient in enumerate(self._gradient(list(parameters), batch.x, batch.y, w)):
            sink.plain(number, gradient)

    def failure(self, losses: ModuleLosses) -> str | None:
        """Why torch.func cannot map the module over clients, or None if it can."""
        part = losses.train_part
        several = part.samples(part.rows[:2].repeat(2))
        x, y = (map_tensors(lambda t: t.view(2, 2, *t.shape[1:]), each) for each in several)
        parameters = [p.detach()[None].repeat(2, *[1] * p.ndim) for n, p in self._own()]
        weights = parameters[0].new_full((2, 2), 0.5)
        set_training(self._module)
        try:
            with torch_generator_set_to(0, losses.device):
                self._gradient(parameters, x, y, weights)
        except Exception as error:  # any error of the module or of torch.func
            return f"it cannot be mapped over clients by torch.func.vmap ({first_line(error)})"
        return None

    def _own(self) -> list[tuple[str, Tensor]]:
        named = dict(self._module.named_parameters())
        return [(name, named[name]) for name in self._names]

    def copy(self) -> Network:
        module = copy_sharing_frozen(self._module)
        return VmappedNetwork(module, self._names, self._criterion)


class ModuleNetwork(Network):
    """The user's module, for one client at a time."""

    name = "one by one"
    max_clients = 1
    supports_fused_steps = True

    def __init__(self, losses: ModuleLosses, channels_last: bool = False):
        self._module = set_training(_own_copy(losses))
        self._changing_buffers = losses.changing_buffers
        self._criterion = losses.training_criterion
        self._parameters: list[nn.Parameter] = [
            p for p in self._module.parameters() if p.requires_grad
        ]
        use_fast_linear(self._module)
        # The mask generators set here are replaced by each client's own in `backward`.
        use_keyed_dropout(self._module, MaskGenerator(losses.device))
        self._dropouts = [m for m in self._module.modules() if isinstance(m, KeyedDropout)]
        self.uses_random_numbers = bool(self._dropouts)
        self.channels_last = channels_last

    def backward(
        self,
        parameters: Sequence[Tensor],
        batch: Batch,
        scale: Tensor | float,
        sink: Sink,
        masks: RandomMasks | None,
    ) -> None:
        for p, own in zip(self._parameters, parameters, strict=True):
            p.data = own[0]
        if masks is not None:
            for dropout in self._dropouts:
                dropout.generator = masks.generators[0]
        (size,) = batch.sizes
        x, y = first_samples(batch.x, size), first_samples(batch.y, size)
        if self.channels_last and isinstance(x, Tensor) and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.enable_grad():
            loss = self._criterion.loss_of(self._module, x, y) * float(scale)
            gradients = torch.autograd.grad(
                loss, self._parameters, allow_unused=True, materialize_grads=True
            )
        for number, gradient in enumerate(gradients):
            sink.plain(number, gradient[None])

    def copy(self) -> Network:
        frozen = {id(p): p for p in self._module.parameters() if not p.requires_grad}
        return deepcopy(self, frozen)

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        for name, value in self._module.named_buffers():
            if name in buffers:
                value.copy_(buffers[name])

    def buffers(self) -> dict[str, Tensor]:
        named = self._module.named_buffers()
        return {name: value.clone() for name, value in named if name in self._changing_buffers}


def stacked_network(losses: ModuleLosses, channels_last: bool = False) -> StackedNetwork | str:
    """The model as a chain of stacked layers, or why it cannot be one."""
    criterion = losses.criterion
    derivative: Derivative
    if not isinstance(losses.train_part.x, Tensor):
        return "it has several inputs"
    if criterion.per_sample is cross_entropies and losses.train_part.y.ndim == 1:
        derivative = cross_entropy_derivative
    elif criterion.per_sample is squared_errors:
        derivative = squared_error_derivative
    else:
        return "its loss is not cross-entropy over classes or squared error"
    layers = stacked_layers(losses.flat.module, losses.flat.names)
    if isinstance(layers, str):
        return layers
    flat_samples = losses.train_part.x.ndim == 2
    found = StackedNetwork(layers, derivative, channels_last, flat_samples)
    chain = dense_chain(layers, losses.flat.shapes)
    if chain is not None and derivative is cross_entropy_derivative:
        found.chain = chain if chain.suits(losses.train_part, losses.flat.x) else None
    return found


def vmapped_network(
    losses: ModuleLosses, criterion: Criterion | None = None
) -> VmappedNetwork | str:
    """The model mapped over clients by torch.func, or why it cannot be.

    `criterion` replaces that of the losses.
    """
    criterion = criterion or losses.criterion
    if losses.changing_buffers:
        return "it has buffers that training changes"
    if criterion.per_sample is None:
        return f"its loss {criterion.not_per_sample}"
    if any(isinstance(m, nn.Dropout) and m.p > 0 for m in losses.flat.module.modules()):
        return "it has dropout, whose masks vmap cannot take from each client's key"
    found = VmappedNetwork(_own_copy(losses), losses.flat.names, criterion)
    return found.failure(losses) or found


def _own_copy(losses: ModuleLosses) -> nn.Module:
    """A copy of the module whose parameters are tensors of their own, not views of one vector."""
    module = copy_sharing_frozen(losses.flat.module)
    for p in module.parameters():
        p.grad = None
        if p.requires_grad:
            p.data = p.data.clone()
    return module


def copy_sharing_frozen(module: nn.Module) -> nn.Module:
    """A copy of a module with the same frozen parameters, which training only reads.

    Most of a large model with adapters is frozen, and every thread has a copy.
    """
    frozen = {id(p): p for p in module.parameters() if not p.requires_grad}
    return deepcopy(module, frozen)


def _names_of_tied(module: nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by the first of them; tied parameters have several names."""
    found: dict[nn.Parameter, list[str]] = {}
    for path, each in module.named_modules():
        for name, parameter in each.named_parameters(recurse=False, remove_duplicate=False):
            found.setdefault(parameter, []).append(f"{path}.{name}" if path else name)
    return {names[0]: names for names in found.values()}


def _weights(batch: Batch, scale: Tensor | float) -> Tensor | float:
    """The weight of each sample in s·(its client's mean), `[C, B]`, or a float for all."""
    weights = batch.weights
    if not isinstance(scale, Tensor):
        return weights * scale if scale != 1.0 else weights
    return (weights * scale[:, None]).expand(*next(tensors_of(batch.x)).shape[:2])


def first_samples(tree: Tree, size: int) -> Tree:
    """The first samples of the first client's batch, without padding."""
    return tree[0, :size] if isinstance(tree, Tensor) else map_tensors(lambda t: t[0, :size], tree)


def _as_arguments(inputs: Tree) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as the arguments of the model, as `call_model` passes them."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
