"""Functions without trained parameters as stacked layers, and sums or products with a parameter.

Such a function treats each sample by itself. So the samples of all clients are joined to one batch,
`[C·B, …]`, the function is called as the user's model calls it, and torch's autograd differentiates
this one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.stacked.layers import Branches, Layer, Sink
from undrift.utils import products

SamplesFunction = Callable[..., Tensor]
"""Takes tensors `[samples, …]`, returns one, and treats each sample by itself."""


class Recorded:
    """One call of a function, with what its derivative needs.

    Parameters
    ----------
    function
        the function
    inputs
        its inputs
    wanted
        which of the inputs need their gradient
    """

    def __init__(self, function: SamplesFunction, inputs: Sequence[Tensor], wanted: Sequence[bool]):
        with torch.enable_grad():
            own = [
                each.detach().requires_grad_(needed)
                for each, needed in zip(inputs, wanted, strict=True)
            ]
            self._y = function(*own)
        self._leaves = [each for each in own if each.requires_grad]

    @property
    def outputs(self) -> Tensor:
        """What the function returned."""
        return self._y.detach()

    def gradients(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the inputs that need them, from that of the outputs."""
        return torch.autograd.grad(self._y, self._leaves, gradient)


class Function(Layer):
    """A function of one tensor, `[C, B, …]`, that treats each sample by itself."""

    def __init__(self, function: SamplesFunction):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._call = Recorded(self.function, [x.flatten(0, 1)], [not self.is_first])
        return self._call.outputs.unflatten(0, x.shape[:2])

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        if self.is_first:
            return gradient
        (back,) = self._call.gradients(gradient.flatten(0, 1))
        del self._call  # it holds the activations
        return back.unflatten(0, gradient.shape[:2])


class Join(Branches):
    """A function of several tensors, each the end of a branch, e.g. attention of q, k and v."""

    def __init__(self, function: SamplesFunction, *branches: Sequence[Layer]):
        # Functions at the ends of branches become part of the call that joins them.
        ends = [_split_functions(branch) for branch in branches]
        super().__init__(*(layers for layers, _ in ends))
        before = [functions for _, functions in ends]

        def joined(*inputs: Tensor) -> Tensor:
            pairs = zip(inputs, before, strict=True)
            return function(*(_applied(functions, x) for x, functions in pairs))

        self.function: SamplesFunction = joined

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        ends = [each.flatten(0, 1) for each in self.ends(x, parameters, masks)]
        self._call = Recorded(self.function, ends, self.wanted)
        return self._call.outputs.unflatten(0, x.shape[:2])

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        if not any(self.wanted):
            return gradient
        samples = gradient.shape[:2]
        found = iter(self._call.gradients(gradient.flatten(0, 1)))
        del self._call
        backs = [next(found).unflatten(0, samples) if each else None for each in self.wanted]
        return self.back(backs, gradient, parameters, sink)


def _split_functions(branch: Sequence[Layer]) -> tuple[list[Layer], list[SamplesFunction]]:
    """The layers of a branch before the functions at its end, and these functions."""
    layers = list(branch)
    functions: list[SamplesFunction] = []
    while layers and isinstance(last := layers[-1], Function):
        functions.insert(0, last.function)
        layers.pop()
    return layers, functions


def _applied(functions: Sequence[SamplesFunction], x: Tensor) -> Tensor:
    for each in functions:
        x = each(x)
    return x


def merged(layers: Sequence[Layer]) -> list[Layer]:
    """The same layers, with functions that follow each other, or follow a `Join`, made one call."""
    found: list[Layer] = []
    for layer in layers:
        before = found[-1] if found else None
        if isinstance(layer, Function) and isinstance(before, Function | Join):
            before.function = _after(before.function, layer.function)
        else:
            found.append(layer)
    return found


def _after(first: SamplesFunction, second: SamplesFunction) -> SamplesFunction:
    return lambda *inputs: second(first(*inputs))


class WithParameter(Layer):
    """A function of the inputs and one parameter, e.g. the sum of words and their positions.

    The parameter is broadcast over the samples.
    """

    trains = True

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], number: int):
        super().__init__()
        self._function, self._number = function, number

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        p = parameters[self._number]
        if p.ndim > x.ndim or (p.ndim == x.ndim and p.shape[1] != 1):
            raise ValueError(f"A parameter {tuple(p.shape[1:])} has an axis of samples.")
        between = [1] * (x.ndim - p.ndim)
        inputs = [x, p.view(len(p), *between, *p.shape[1:])]
        self._call = Recorded(self._function, inputs, [not self.is_first, True])
        return self._call.outputs

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        *back, own = self._call.gradients(gradient)
        del self._call
        sink.plain(self._number, own.reshape(parameters[self._number].shape))
        return back[0] if back else gradient


class FrozenLinear(Layer):
    """`nn.Linear` whose parameters are not trained: one product for all clients."""

    owns_outputs = True

    def __init__(self, weight: Callable[[], Tensor], bias: Callable[[], Tensor | None]):
        super().__init__()
        # Functions, so that the copies of other threads share the tensors.
        self._weight, self._bias = weight, bias

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        return products.shared_product(x, self._weight(), self._bias())

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        return gradient if self.is_first else products.shared_product(gradient, self._weight().t())
