"""`nn.LSTM` for many clients at once, with backpropagation through time written by hand.

Each level (one of the LSTM's stacked layers) keeps the inputs of its gates next to each other in
memory: z = `[x, h₋, 1]`, i.e. the inputs, the previous state and a one for the bias. So a time
step needs one matrix product forwards and two backwards, on numbers that are still in the cache,
and one time step of all clients is one contiguous block of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.stacked.layers import Layer, Sink
from undrift.utils import products

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True)
class Weights:
    """The numbers of one level's parameters among all: W, U, and their biases if there are any."""

    inputs: int
    states: int
    biases: tuple[int, ...]


class LSTM(Layer):
    """A stack of LSTM levels: `[C, B, T, inputs]` to `[C, B, T, H]`."""

    trains = True

    def __init__(self, levels: Sequence[Weights]):
        super().__init__()
        self._levels = [Level(weights) for weights in levels]
        self.last = False
        """whether the model reads only the last output, `[C, B, H]`; tracing sets it"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        x = x.permute(2, 0, 1, 3)
        for level in self._levels:
            x = level.forward(x, parameters)
        return x[-1] if self.last else x.permute(1, 2, 0, 3)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        if not self.last:
            gradient = gradient.permute(2, 0, 1, 3)
        for level in reversed(self._levels):
            lowest = self.is_first and level is self._levels[0]
            gradient = level.backward(gradient, sink, wanted=not lowest)
        return gradient if self.is_first else gradient.permute(1, 2, 0, 3)


class Level:
    """One level: i, f, o = σ(a), g = tanh(a), c = f c₋ + i g, h = o tanh(c).

    Here a = W x + U h₋ + b = z V, with V = [Wᵀ; Uᵀ; b]. A minus marks the previous time step.
    """

    def __init__(self, weights: Weights):
        self._weights = weights
        self._workspace: Workspace | None = None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """`[T, C, B, inputs]` to `[T, C, B, H]`; the next forward pass overwrites the result."""
        self._V = V = self._joined(parameters)
        if self._workspace is None or not self._workspace.fits(x, V):
            self._workspace = Workspace(x, V, bool(self._weights.biases))
        space = self._workspace
        space.x.copy_(x)
        before: TimeStep | None = None
        for now in space.time_steps:
            products.multiply(now.z, V, now.all)
            now.i_f_o.sigmoid_()
            now.g.tanh_()
            torch.mul(now.i, now.g, out=now.c)
            if before is not None:
                now.c.addcmul_(now.f, before.c)
            torch.tanh(now.c, out=now.tanh_c)
            torch.mul(now.o, now.tanh_c, out=now.h)
            before = now
        return space.h

    def backward(self, gradient: Tensor, sink: Sink, wanted: bool) -> Tensor:
        """Give the parameters' gradients to `sink`; return that of the inputs, if `wanted`.

        `gradient` is that of all outputs, `[T, C, B, H]`, or of the last output, `[C, B, H]`, if
        the others' are zero.
        """
        assert self._workspace is not None
        space, d = self._workspace, self._workspace.d
        inputs, H = space.x.shape[-1], space.h.shape[-1]
        # The rows of V that lead back to x (only if wanted) and to h₋; the bias has no inputs.
        V = self._V[:, 0 if wanted else inputs : inputs + H].transpose(1, 2).contiguous()
        of_all = gradient.ndim == 4
        dh = gradient[-1] if of_all else gradient
        dc, dV = torch.zeros_like(space.dh), torch.zeros_like(self._V)
        for t in reversed(range(len(space.time_steps))):
            now = space.time_steps[t]
            now.backward(dh, dc, space.time_steps[t - 1] if t else None, d)
            products.add_product(dV, now.z.transpose(1, 2), d.all)
            dh = products.multiply(d.all, V, now.dz if wanted else space.dh)[..., -H:]
            if of_all and t:
                dh.add_(gradient[t - 1])
        self._emit(dV, inputs, H, sink)
        return space.dx if wanted else gradient

    def _joined(self, parameters: Sequence[Tensor]) -> Tensor:
        """V: Wᵀ, Uᵀ and b below each other, `[C, inputs + H + 1, 4H]`."""
        numbers = self._weights
        parts = [parameters[numbers.inputs], parameters[numbers.states]]
        if numbers.biases:
            biases = torch.stack([parameters[number] for number in numbers.biases], -1)
            parts.append(biases.sum(-1, keepdim=True))
        return swap_gate_order(torch.cat([part.transpose(1, 2) for part in parts], 1))

    def _emit(self, dV: Tensor, inputs: int, H: int, sink: Sink) -> None:
        """Give each parameter its rows of the gradient of V."""
        gradient = swap_gate_order(dV).transpose(1, 2)
        sink.plain(self._weights.inputs, gradient[:, :, :inputs])
        sink.plain(self._weights.states, gradient[:, :, inputs : inputs + H])
        for number in self._weights.biases:
            sink.plain(number, gradient[:, :, -1])


def swap_gate_order(gates: Tensor) -> Tensor:
    """Swap the last two of four gates: torch's order i, f, g, o to i, f, o, g, and back.

    Then the gates with σ are contiguous, and one call computes them.
    """
    i, f, g, o = gates.chunk(4, -1)
    return torch.cat([i, f, o, g], -1)


class Workspace:
    """The memory of a level, reused from batch to batch while the shape stays the same."""

    def __init__(self, x: Tensor, V: Tensor, bias: bool):
        T, C, B, inputs = x.shape
        H = V.shape[-1] // 4
        z = V.new_zeros(T + 1, C, B, V.shape[1])
        if bias:
            z[..., -1] = 1
        # h of time t is a view of z at time t + 1, so that it need not be copied there. h before
        # the first time step stays zero.
        self.x, self.h = z[:-1, ..., :inputs], z[1:, ..., inputs : inputs + H]
        gates = V.new_empty(T, C, B, 4 * H)
        c, tanh_c = (V.new_empty(T, C, B, H) for _ in range(2))
        dz = V.new_empty(T, C, B, inputs + H)
        self.dx = dz[..., :inputs]
        self.dh = V.new_empty(C, B, H)
        self.d = Gates(V.new_empty(C, B, 4 * H))
        self.time_steps = [
            TimeStep(*each) for each in zip(gates, z[:-1], self.h, c, tanh_c, dz, strict=True)
        ]

    def fits(self, x: Tensor, V: Tensor) -> bool:
        """Whether this memory has the shape, dtype and device of a batch."""
        same = self.x.dtype == V.dtype and self.x.device == V.device
        return same and self.x.shape == x.shape


class Gates:
    """i, f, o and g side by side in one tensor, or their gradients."""

    def __init__(self, every: Tensor):
        self.all = every
        self.i, self.f, self.o, self.g = every.chunk(4, -1)
        self.i_f_o = every[..., : -self.g.shape[-1]]


class TimeStep(Gates):
    """What a level stores of one time step."""

    def __init__(self, gates: Tensor, z: Tensor, h: Tensor, c: Tensor, tanh_c: Tensor, dz: Tensor):
        super().__init__(gates)
        self.z, self.h, self.c, self.tanh_c, self.dz = z, h, c, tanh_c, dz

    def backward(self, dh: Tensor, dc: Tensor, before: TimeStep | None, d: Gates) -> None:
        """Write the gradient of a into `d`, and replace `dc` by the gradient of c₋."""
        torch.addcmul(self.o, self.h, self.tanh_c, value=-1, out=d.g)  # ∂h/∂c = o − h tanh(c)
        dc.addcmul_(dh, d.g)
        torch.mul(dh, self.tanh_c, out=d.o)
        torch.mul(dc, self.g, out=d.i)
        torch.mul(dc, self.i, out=d.g)
        if before is None:
            d.f.zero_()
        else:
            torch.mul(dc, before.c, out=d.f)
            dc.mul_(self.f)
        sigmoid_backward(d.i_f_o, self.i_f_o, grad_input=d.i_f_o)
        tanh_backward(d.g, self.g, grad_input=d.g)


def lstm(module: nn.LSTM, numbers: Sequence[int]) -> LSTM | str:
    """The stacked layer for a module, or the option that prevents it."""
    if not module.batch_first:
        return "has the samples in the second axis (batch_first=False)"
    if module.bidirectional:
        return "is bidirectional"
    if module.proj_size:
        return "has projections"
    if module.dropout:
        return "has dropout between its levels"
    per_level = 4 if module.bias else 2
    levels = [numbers[k : k + per_level] for k in range(0, len(numbers), per_level)]
    return LSTM([Weights(each[0], each[1], tuple(each[2:])) for each in levels])
