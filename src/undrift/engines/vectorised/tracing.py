"""Translates a module into a chain of stacked layers by tracing its forward pass with torch.fx.

Only modules whose whole computation is understood are translated. For any other, the reason is
returned and another strategy is used; an operation that is not understood is never skipped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from undrift.engines.vectorised import convolving, embedding, normalising, recurrent
from undrift.engines.vectorised.layers import (
    Dropout,
    Elementwise,
    Flatten,
    Layer,
    Linear,
    ReLU,
    Residual,
    Sigmoid,
    Tanh,
    link_layers,
)
from undrift.nets.modes import set_training, stays_in_eval
from undrift.utils.errors import first_line

aten = torch.ops.aten

Build = Callable[[Any, Sequence[int]], Layer | str | None]
"""(module, the numbers of its parameters among all) → its stacked layer, None if it does nothing
in training, or what prevents it, as the end of a sentence."""


def _linear(module: nn.Linear, numbers: Sequence[int]) -> Layer:
    return Linear(numbers[0], numbers[1] if len(numbers) > 1 else None)


def _flatten(module: nn.Flatten, numbers: Sequence[int]) -> Layer | str:
    if module.start_dim != 1 or module.end_dim != -1:
        return "does not flatten all but the samples"
    return Flatten()


def _gelu(module: nn.GELU, numbers: Sequence[int]) -> Layer:
    how = module.approximate
    return Elementwise(
        lambda x: F.gelu(x, approximate=how),
        lambda gradient, x: aten.gelu_backward(gradient, x, approximate=how),
    )


def _leaky_relu(module: nn.LeakyReLU, numbers: Sequence[int]) -> Layer:
    slope = module.negative_slope
    return Elementwise(
        lambda x: F.leaky_relu(x, slope),
        lambda gradient, x: aten.leaky_relu_backward(gradient, x, slope, False),
    )


def _elu(module: nn.ELU, numbers: Sequence[int]) -> Layer:
    alpha = module.alpha
    return Elementwise(
        lambda x: F.elu(x, alpha),
        lambda gradient, x: aten.elu_backward(gradient, alpha, 1, 1, False, x),
    )


def _softplus(module: nn.Softplus, numbers: Sequence[int]) -> Layer:
    beta, threshold = module.beta, module.threshold
    return Elementwise(
        lambda x: F.softplus(x, beta, threshold),
        lambda gradient, x: aten.softplus_backward(gradient, x, beta, threshold),
    )


LAYERS: dict[type[nn.Module], Build] = {
    nn.Identity: lambda module, numbers: None,
    nn.Linear: _linear,
    nn.Flatten: _flatten,
    nn.Dropout: lambda module, numbers: (
        Dropout(module.p) if module.p > 0 and not stays_in_eval(module) else None
    ),
    nn.ReLU: lambda module, numbers: ReLU(),
    nn.Tanh: lambda module, numbers: Tanh(),
    nn.Sigmoid: lambda module, numbers: Sigmoid(),
    nn.GELU: _gelu,
    nn.LeakyReLU: _leaky_relu,
    nn.ELU: _elu,
    nn.SiLU: lambda module, numbers: Elementwise(F.silu, aten.silu_backward),
    nn.Softplus: _softplus,
    nn.Embedding: embedding.embedding,
    nn.LSTM: recurrent.lstm,
    nn.LayerNorm: normalising.layer_norm,
    nn.GroupNorm: normalising.group_norm,
    nn.Conv2d: convolving.conv2d,
    nn.MaxPool2d: convolving.max_pool2d,
    nn.AvgPool2d: convolving.avg_pool2d,
    nn.AdaptiveAvgPool2d: convolving.adaptive_avg_pool2d,
}

FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    torch.relu: nn.ReLU,
    F.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    F.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    F.sigmoid: nn.Sigmoid,
    F.gelu: nn.GELU,
    F.leaky_relu: nn.LeakyReLU,
    F.elu: nn.ELU,
    F.silu: nn.SiLU,
    F.softplus: nn.Softplus,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    torch.flatten: lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim),
}
"""For each function, the module that does the same; both take the same options."""

METHODS: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "flatten": FUNCTIONS[torch.flatten],
}
"""For each method of tensors, the module that does the same."""

LAST_OUTPUT = ([0, (slice(None), -1)], [0, (slice(None), -1, slice(None))], [1, 0, -1])
"""The indices by which a model reads the last output of an LSTM, which returns outputs, (h, c):
outputs[:, -1], outputs[:, -1, :], or the state h[-1]."""


class NotStackable(Exception):
    """The module is not a chain of known layers; the message says why."""


def stacked_layers(module: nn.Module, names: Sequence[str]) -> list[Layer] | str:
    """The stacked layers of a module, or why it cannot be translated.

    `names` are those of its trainable parameters, in the order of the flat vector.
    """
    try:
        require_no_hooks(module)
        layers = ChainTracer(module, names).layers()
    except NotStackable as error:
        return str(error)
    link_layers(layers)
    return layers


class ChainTracer:
    """Follows the traced forward pass of a module from its outputs back to its inputs."""

    def __init__(self, module: nn.Module, names: Sequence[str]):
        # Inside a Sequential, a model that is a single layer is traced as a call of that layer.
        whole = nn.Sequential(module)
        self._modules = dict(whole.named_modules(remove_duplicate=False))
        self._graph = graph_of(whole)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._used: set[str] = set()
        self._followed: set[fx.Node] = set()

    def layers(self) -> list[Layer]:
        """The layers from inputs to outputs."""
        *_, output = self._graph.nodes
        begin = next(iter(self._graph.nodes))
        found = self._between(begin, self._only_input(output, output.args[0]))
        followed = self._followed | {begin, output}
        # Something that was not followed may still have an effect, e.g. an in-place operation.
        for node in self._graph.nodes:
            if node not in followed and not only_reads(node):
                raise NotStackable(f"{self._owner(node)}, whose {node.name} is not used")
        unused = sorted(set(self._numbers) - self._used)
        if unused:
            raise NotStackable(f"{unused[0]} is not used by any layer")
        return found

    def _between(self, begin: fx.Node, end: fx.Node) -> list[Layer]:
        """The layers on the way from one node to another."""
        found: list[Layer] = []
        node = end
        while node is not begin:
            if node in self._followed:
                raise NotStackable(f"{self._owner(node)}, whose {node.name} is used twice")
            layer, node = self._layer(node)
            if layer is not None:
                found.insert(0, layer)
        return found

    def _layer(self, node: fx.Node) -> tuple[Layer | None, fx.Node]:
        """The layer of a node (None if it does nothing), and the node that is its input."""
        self._followed.add(node)
        if node.target is operator.getitem:
            return self._read(node)
        if node.target in (operator.add, torch.add) and len(node.all_input_nodes) == 2:
            return self._sum(node)
        before = self._only_input(node, *node.args[:1])
        if node.op == "call_module":
            layer = self._module(node)
            if isinstance(layer, recurrent.LSTM):
                raise NotStackable(
                    f"{self._owner(node)}, whose outputs and states are not separated"
                )
            return layer, before
        if node.target in ("view", "reshape"):
            if not flattens(node):
                raise NotStackable(
                    f"{self._owner(node)}, whose {node.target} does not flatten all but the samples"
                )
            return Flatten(), before
        known: dict[Any, Callable[..., nn.Module]] = {**FUNCTIONS, **METHODS}
        if node.op not in ("call_function", "call_method") or node.target not in known:
            raise NotStackable(f"{self._owner(node)}, whose {node.name} is not a known layer")
        if len(node.all_input_nodes) != 1 or len(node.args) > 5:
            raise NotStackable(f"{self._owner(node)}, whose {node.name} has unusual options")
        try:
            module = known[node.target](*node.args[1:], **node.kwargs)
        except TypeError:
            raise NotStackable(
                f"{self._owner(node)}, whose {node.name} has unusual options"
            ) from None
        return self._built(node, module, []), before

    def _read(self, node: fx.Node) -> tuple[Layer, fx.Node]:
        """An LSTM with what the model reads of its outputs and states, and the LSTM's input."""
        at = node
        indices: list[object] = []
        while at.target is operator.getitem:
            self._followed.add(at)
            indices.insert(0, at.args[1])
            at = self._only_input(at, at.args[0])
        layer = self._module(at) if at.op == "call_module" else None
        if not isinstance(layer, recurrent.LSTM) or indices not in ([0], *LAST_OUTPUT):
            raise NotStackable(f"{self._owner(node)}, which indexes a tensor")
        self._followed.add(at)
        layer.last = indices in LAST_OUTPUT
        return layer, self._only_input(at, *at.args[:1])

    def _sum(self, node: fx.Node) -> tuple[Layer, fx.Node]:
        """The sum of two branches, and the node at which they begin."""
        one, other = node.all_input_nodes
        if node.kwargs or len(node.args) != 2:
            raise NotStackable(f"{self._owner(node)}, whose {node.name} has unusual options")
        nodes = ancestors(one)
        fork = next(each for each in ancestors(other) if each in nodes)
        branches = [self._between(fork, each) for each in (one, other)]
        # Masks would be drawn in the order of `Residual`, which may differ from the model's.
        if any(isinstance(layer, Dropout) for branch in branches for layer in branch):
            raise NotStackable(f"{self._owner(node)}, which has dropout in a branch")
        return Residual(*branches), fork

    def _module(self, node: fx.Node) -> Layer | None:
        """The layer of a module that the forward pass calls."""
        module, path = self._modules[str(node.target)], self._path(str(node.target))
        if len(node.args) != 1 or node.kwargs:
            raise NotStackable(f"{self._owner(node)}, which takes more than one input")
        if type(module) not in LAYERS:
            raise NotStackable(self._owner(node))
        own = list(module.named_parameters(remove_duplicate=False))
        names = [f"{path}.{name}" if path else name for name, _ in own]
        if not all(p.requires_grad for _, p in own):
            raise NotStackable(f"{self._owner(node)} with frozen parameters")
        if not self._numbers.keys() >= set(names):
            raise NotStackable(f"{self._owner(node)} that shares parameters")
        if self._used & set(names):
            raise NotStackable(f"{self._owner(node)}, which is used twice")
        self._used.update(names)
        return self._built(node, module, [self._numbers[name] for name in names])

    def _built(self, node: fx.Node, module: nn.Module, numbers: Sequence[int]) -> Layer | None:
        layer = LAYERS[type(module)](module, numbers)
        if isinstance(layer, str):
            raise NotStackable(f"{self._owner(node)} that {layer}")
        return layer

    def _only_input(self, node: fx.Node, source: object = None) -> fx.Node:
        """The only input of a node; an error if that is not a single tensor."""
        if not isinstance(source, fx.Node):
            raise NotStackable(
                f"{self._owner(node)}, whose {node.name} is not computed from one tensor"
            )
        return source

    def _owner(self, node: fx.Node) -> str:
        """The module that a node belongs to, as the beginning of a sentence about it."""
        stack = [name for name, _ in node.meta.get("nn_module_stack", {}).values()]
        name = stack[-1] if stack else "0"
        return f"{self._path(name) or 'the model'} is a {type(self._modules[name]).__name__}"

    @staticmethod
    def _path(target: str) -> str:
        """The name of a module in the user's model, without that of the enclosing Sequential."""
        return target.partition(".")[2]


def graph_of(module: nn.Module) -> fx.Graph:
    """The graph of a module's forward pass in training mode; modes are restored."""
    modes = [(each, each.training) for each in module.modules()]
    try:
        return fx.Tracer().trace(set_training(module))
    except Exception as error:  # any error of the module's code
        raise NotStackable(
            f"its forward pass cannot be traced by torch.fx ({first_line(error)})"
        ) from error
    finally:
        for each, mode in modes:
            each.training = mode


def require_no_hooks(module: nn.Module) -> None:
    """Raise `NotStackable` for hooks and replaced forward methods, which would not be called."""
    for name, each in module.named_modules():
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(each, kind) for kind in kinds):
            raise NotStackable(f"{name or 'the model'} has hooks")
        if "forward" in vars(each):
            raise NotStackable(f"{name or 'the model'} has a replaced forward method")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise NotStackable(f"{name} has hooks")


def ancestors(node: fx.Node) -> list[fx.Node]:
    """The nodes that a node depends on, with itself, the nearest first."""
    found, waiting = set(), [node]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(each.all_input_nodes)
    return [each for each in reversed(node.graph.nodes) if each in found]


def flattens(node: fx.Node) -> bool:
    """Whether a view or reshape keeps the axis of samples and joins all other axes."""
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    if len(sizes) != 2 or node.kwargs:
        return False
    samples, features = sizes
    if isinstance(samples, fx.Node) and is_batch_size(samples):
        return isinstance(features, int)
    return sizes[:1] == (-1,) and isinstance(features, int) and features > 0


def is_batch_size(node: fx.Node) -> bool:
    """Whether a node is x.size(0), x.shape[0] or x.size()[0]."""
    if node.target is operator.getitem:
        of = node.args[0]
        return isinstance(of, fx.Node) and is_shape(of) and node.args[1:] == (0,)
    return node.target == "size" and node.args[1:] == (0,)


def is_shape(node: fx.Node) -> bool:
    """Whether a node is x.shape or x.size()."""
    if node.target is getattr:
        return node.args[1:] == ("shape",)
    return node.target == "size" and len(node.args) == 1


def only_reads(node: fx.Node) -> bool:
    """Whether a node only reads a size or an element, which changes no tensor.

    If the model uses the element, it is followed from where it is used.
    """
    return is_shape(node) or is_batch_size(node) or node.target is operator.getitem
