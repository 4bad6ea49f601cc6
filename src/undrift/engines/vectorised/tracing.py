"""Translates a module into a chain of stacked layers by tracing its forward pass with torch.fx.

Only modules whose whole computation is understood are translated. For any other, the reason is
returned and another strategy is used; an operation that is not understood is never skipped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from undrift.engines.vectorised.stacked import (
    attention,
    convolving,
    embedding,
    normalising,
    recurrent,
    samplewise,
)
from undrift.engines.vectorised.stacked.functions import (
    FrozenLinear,
    Function,
    Join,
    WithParameter,
    merged,
)
from undrift.engines.vectorised.stacked.layers import (
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

Build = Callable[[Any, Sequence[int]], Layer | list[Layer] | str | None]
"""(module, the numbers of its parameters among all) → its stacked layers, None if it does nothing
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


def _function(module: nn.Module, numbers: Sequence[int]) -> Layer:
    """The layer of a module without parameters that treats each number or sample by itself."""
    return Function(lambda x: module(x))


def _over_axis(module: nn.Softmax | nn.LogSoftmax, numbers: Sequence[int]) -> Layer | str:
    axis = module.dim
    if axis is None:
        return "has no axis"

    def call(x: Tensor) -> Tensor:
        if axis % x.ndim == 0:
            raise ValueError("Softmax works on the axis of the samples.")
        found: Tensor = module(x)
        return found

    return Function(call)


def _by_names(
    build: Callable[[Any, dict[str, int]], list[Layer] | str],
) -> Build:
    """Builds a module of several layers, which get the numbers of parameters by their names."""

    def built(module: nn.Module, numbers: Sequence[int]) -> list[Layer] | str:
        names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        return build(module, dict(zip(names, numbers, strict=True)))

    return built


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
    **dict.fromkeys(
        (
            *(nn.CELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LogSigmoid, nn.Mish),
            *(nn.ReLU6, nn.SELU, nn.Softsign),
        ),
        _function,
    ),
    nn.Softmax: _over_axis,
    nn.LogSoftmax: _over_axis,
    nn.Embedding: embedding.embedding,
    nn.EmbeddingBag: embedding.embedding_bag,
    nn.MultiheadAttention: _by_names(attention.self_attention),
    nn.TransformerEncoderLayer: _by_names(attention.encoder_layer),
    nn.TransformerEncoder: _by_names(attention.encoder),
    nn.LSTM: recurrent.lstm,
    nn.LayerNorm: normalising.layer_norm,
    nn.GroupNorm: normalising.group_norm,
    nn.Conv2d: convolving.conv2d,
    nn.MaxPool2d: convolving.max_pool2d,
    nn.AvgPool2d: convolving.avg_pool2d,
    nn.AdaptiveAvgPool2d: convolving.adaptive_avg_pool2d,
}

FREEZABLE = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.Conv2d)
"""Modules that treat each sample by itself and draw no random numbers, so that all clients can
share one call of them if their parameters are frozen."""

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


SEVERAL = (nn.LSTM, nn.MultiheadAttention)
"""Modules that return several tensors."""

ARITHMETIC = (operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul)
"""Functions of a tensor and a parameter."""


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
        self._whole = whole = nn.Sequential(module)
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
            layers, node = self._layers_of(node)
            found[:0] = layers
        return merged(found)

    def _layers_of(self, node: fx.Node) -> tuple[list[Layer], fx.Node]:
        """The layers of a node (none if it does nothing), and the node that is their input."""
        self._followed.add(node)
        if node.target is operator.getitem:
            return self._read(node)
        if len(node.all_input_nodes) == 2 and any(map(is_attribute, node.all_input_nodes)):
            return self._with_attribute(node)
        if node.target in (operator.add, torch.add) and len(node.all_input_nodes) == 2:
            return self._sum(node)
        joined = samplewise.joining(node)
        if joined is not None:
            return self._join(node, *joined)
        place = 1 if samplewise.number_first(node) else 0
        before = self._only_input(node, *node.args[place : place + 1])
        if node.op == "call_module":
            layers = self._module(node)
            if layers and isinstance(layers[0], recurrent.LSTM):
                raise NotStackable(
                    f"{self._owner(node)}, whose outputs and states are not separated"
                )
            return layers, before
        if node.target in ("view", "reshape"):
            if not flattens(node):
                raise NotStackable(
                    f"{self._owner(node)}, whose {node.target} does not flatten all but the samples"
                )
            return [Flatten()], before
        return self._function(node), before

    def _function(self, node: fx.Node) -> list[Layer]:
        """The layer of a function or a method that the forward pass calls."""
        known: dict[Any, Callable[..., nn.Module]] = {**FUNCTIONS, **METHODS}
        called = node.op in ("call_function", "call_method")
        other = samplewise.function_of(node) if len(node.all_input_nodes) == 1 else None
        if not called or (node.target not in known and other is None):
            raise NotStackable(f"{self._owner(node)}, whose {node.name} is not a known layer")
        if other is not None and (node.target not in known or not flattens_all(node)):
            return [Function(other)]
        if len(node.all_input_nodes) != 1 or len(node.args) > 5:
            raise NotStackable(f"{self._owner(node)}, whose {node.name} has unusual options")
        try:
            module = known[node.target](*node.args[1:], **node.kwargs)
        except TypeError:
            raise NotStackable(
                f"{self._owner(node)}, whose {node.name} has unusual options"
            ) from None
        return self._built(node, module, [])

    def _read(self, node: fx.Node) -> tuple[list[Layer], fx.Node]:
        """The layers of what a model reads by an index, and their input.

        It may be a part of a tensor, an output of a module with several, or one of the parts into
        which a tensor was split.
        """
        reads, indices = [node], [node.args[1]]
        source = self._only_input(node, node.args[0])
        while source.target is operator.getitem:
            reads.append(source)
            indices.insert(0, source.args[1])
            source = self._only_input(source, source.args[0])
        if source.op == "call_module" and type(self._modules[str(source.target)]) in SEVERAL:
            self._followed.update(reads)
            return self._output(node, source, indices)
        # Of other tensors, one index at a time: the node before this one is followed next.
        source = self._only_input(node, node.args[0])
        if source.target in samplewise.IN_PARTS:
            parts, index = samplewise.parts_of(source), node.args[1]
            if parts is None or not isinstance(index, int):
                raise NotStackable(f"{self._owner(node)}, which splits a tensor by its samples")
            self._followed.add(source)
            whole = self._only_input(source, source.args[0])
            return [Function(lambda x: parts(x)[index])], whole
        function = samplewise.function_of(node)
        if function is None or is_shape(source):
            raise NotStackable(f"{self._owner(node)}, which indexes a tensor")
        return [Function(function)], source

    def _output(
        self, node: fx.Node, source: fx.Node, indices: list[Any]
    ) -> tuple[list[Layer], fx.Node]:
        """The layers of a module that returns several tensors, of which a model reads one."""
        self._followed.add(source)
        if type(self._modules[str(source.target)]) is nn.MultiheadAttention:
            if indices != [0] or not attention.attends_to_itself(source.args, source.kwargs):
                raise NotStackable(f"{self._owner(source)}, which is more than self-attention")
            inputs = source.args[0] if source.args else source.kwargs.get("query")
            return self._module(source, several=True), self._only_input(source, inputs)
        if indices not in ([0], *LAST_OUTPUT):
            raise NotStackable(f"{self._owner(node)}, which indexes a tensor")
        (layer,) = layers = self._module(source)
        assert isinstance(layer, recurrent.LSTM)
        layer.last = indices in LAST_OUTPUT
        return layers, self._only_input(source, *source.args[:1])

    def _with_attribute(self, node: fx.Node) -> tuple[list[Layer], fx.Node]:
        """A sum or product with a parameter or a buffer of the model, and the other operand."""
        if node.target not in ARITHMETIC or node.kwargs or len(node.args) != 2:
            raise NotStackable(f"{self._owner(node)}, whose {node.name} is not a known layer")
        one, other = node.all_input_nodes
        before, own = (one, other) if is_attribute(other) else (other, one)
        if is_attribute(before):
            raise NotStackable(f"{self._owner(node)}, whose {node.name} is not a known layer")
        of: Callable[[Any, Any], Tensor] = node.target  # type: ignore[assignment]
        function = of if own is node.args[1] else lambda x, p: of(p, x)
        self._followed.add(own)
        path, value = self._path(str(own.target)), operator.attrgetter(str(own.target))(self._whole)
        if path not in self._numbers:
            if value.requires_grad:
                raise NotStackable(f"{self._owner(node)} that shares parameters")

            def constant(x: Tensor) -> Tensor:
                if value.ndim > x.ndim or (value.ndim == x.ndim and len(value) != 1):
                    raise ValueError(f"{path} has an axis of samples.")
                return function(x, value)

            return [Function(constant)], before
        if path in self._used:
            raise NotStackable(f"{self._owner(node)}, whose {path} is used twice")
        self._used.add(path)
        return [WithParameter(function, self._numbers[path])], before

    def _sum(self, node: fx.Node) -> tuple[list[Layer], fx.Node]:
        """The sum of two branches, and the node at which they begin."""
        if node.kwargs or len(node.args) != 2:
            raise NotStackable(f"{self._owner(node)}, whose {node.name} has unusual options")
        branches, fork = self._branches(node, node.all_input_nodes)
        return [Residual(*branches)], fork

    def _join(
        self, node: fx.Node, inputs: Sequence[fx.Node], function: Callable[..., Tensor]
    ) -> tuple[list[Layer], fx.Node]:
        """A function of several branches, and the node at which they begin."""
        branches, fork = self._branches(node, inputs)
        return [Join(function, *branches)], fork

    def _branches(
        self, node: fx.Node, ends: Sequence[fx.Node]
    ) -> tuple[list[list[Layer]], fx.Node]:
        """The branches that end at some nodes, and the node at which all of them begin."""
        sources = [set(ancestors(each)) for each in ends]
        common = [each for each in ancestors(ends[0]) if all(each in some for some in sources)]
        # The parts of a tensor are read from the tensor that was split.
        forks = [each for each in common if each.target not in samplewise.IN_PARTS]
        if not forks:
            raise NotStackable(f"{self._owner(node)}, whose {node.name} has no common input")
        branches = [self._between(forks[0], each) for each in ends]
        # Masks would be drawn branch by branch, which may differ from the order in the model.
        if sum(any(layer.draws_masks for layer in branch) for branch in branches) > 1:
            raise NotStackable(f"{self._owner(node)}, which has dropout in several branches")
        return branches, forks[0]

    def _module(self, node: fx.Node, several: bool = False) -> list[Layer]:
        """The layers of a module that the forward pass calls; `several`: with several inputs."""
        module, path = self._modules[str(node.target)], self._path(str(node.target))
        if not several and (len(node.args) != 1 or node.kwargs):
            raise NotStackable(f"{self._owner(node)}, which takes more than one input")
        if type(module) not in LAYERS:
            raise NotStackable(self._owner(node))
        own = list(module.named_parameters(remove_duplicate=False))
        names = [f"{path}.{name}" if path else name for name, _ in own]
        if own and type(module) in FREEZABLE and not any(p.requires_grad for _, p in own):
            return [frozen(module)]
        if not all(p.requires_grad for _, p in own):
            raise NotStackable(f"{self._owner(node)} with frozen parameters")
        if not self._numbers.keys() >= set(names):
            raise NotStackable(f"{self._owner(node)} that shares parameters")
        if self._used & set(names):
            raise NotStackable(f"{self._owner(node)}, which is used twice")
        self._used.update(names)
        return self._built(node, module, [self._numbers[name] for name in names])

    def _built(self, node: fx.Node, module: nn.Module, numbers: Sequence[int]) -> list[Layer]:
        found = LAYERS[type(module)](module, numbers)
        if isinstance(found, str):
            raise NotStackable(f"{self._owner(node)} that {found}")
        if isinstance(found, list):
            return found
        return [] if found is None else [found]

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


def frozen(module: nn.Module) -> Layer:
    """The layer of a module whose parameters are frozen, so that all clients share them."""
    if isinstance(module, nn.Linear):
        return FrozenLinear(lambda: module.weight, lambda: module.bias)
    return Function(lambda x: module(x))


def is_attribute(node: fx.Node) -> bool:
    """Whether a node is a parameter or a buffer of the model."""
    return node.op == "get_attr"


def flattens_all(node: fx.Node) -> bool:
    """Whether a call of `flatten` names no axis but the first one after that of the samples."""
    named: dict[str, Any] = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False))
    named |= node.kwargs
    return bool(named.get("start_dim") == 1 and named.get("end_dim", -1) == -1)


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
