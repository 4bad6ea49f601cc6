"""The LSTM of many clients, with the backward pass through time written out.

A level keeps what its gates are computed of side by side: `[x, h₋, 1]`, the inputs, the state
before and a one for the bias. So a step in time has one product forwards and two backwards, of
numbers that are still in the cache, and each step of all clients is one piece of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.layers import Layer, Sink

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True)
class Weights:
    """The numbers of the parameters of one level: W, U, and their biases if there are any."""

    inputs: int
    states: int
    biases: tuple[int, ...]


class LSTM(Layer):
    """Levels of LSTM on each other: `[C, B, T, inputs]` to `[C, B, T, H]`."""

    trains = True

    def __init__(self, levels: Sequence[Weights]):
        super().__init__()
        self._levels = [Level(weights) for weights in levels]
        self.last = False
        """whether only the last output is given, `[C, B, H]`"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        x = x.permute(2, 0, 1, 3)
        for level in self._levels:
            x = level.forward(x, parameters)
        return x[-1] if self.last else x.permute(1, 2, 0, 3)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        if not self.last:
            gradient = gradient.permute(2, 0, 1, 3)
        for level in reversed(self._levels):
            lowest = self.first and level is self._levels[0]
            gradient = level.backward(gradient, sink, wanted=not lowest)
        return gradient if self.first else gradient.permute(1, 2, 0, 3)


class Level:
    """One level: i, f, o = σ(…), g = tanh(…), c = f c₋ + i g, h = o tanh(c).

    What the functions are taken of is W x + U h₋ + b.
    """

    def __init__(self, weights: Weights):
        self._weights = weights
        self._room: Room | None = None

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """`[T, C, B, inputs]` to `[T, C, B, H]`, which the next forward pass overwrites."""
        self._V = V = self._joined(parameters)
        if self._room is None or not self._room.fits(x, V):
            self._room = Room(x, V, bool(self._weights.biases))
        room = self._room
        room.x.copy_(x)
        before: Moment | None = None
        for now in room.moments:
            torch.bmm(now.z, V, out=now.all)
            now.i_f_o.sigmoid_()
            now.g.tanh_()
            torch.mul(now.i, now.g, out=now.c)
            if before is not None:
                now.c.addcmul_(now.f, before.c)
            torch.tanh(now.c, out=now.tanh_c)
            torch.mul(now.o, now.tanh_c, out=now.h)
            before = now
        return room.h

    def backward(self, gradient: Tensor, sink: Sink, wanted: bool) -> Tensor:
        """The gradient of the inputs, if it is wanted, from that of the outputs.

        Where the gradient of the outputs is `[C, B, H]`, it is that of the last one, and those
        of the others are zero.
        """
        assert self._room is not None
        room, d = self._room, self._room.d
        inputs, H = room.x.shape[-1], room.h.shape[-1]
        V = self._V[:, 0 if wanted else inputs : inputs + H].transpose(1, 2).contiguous()
        of_all = gradient.ndim == 4
        dh = gradient[-1] if of_all else gradient
        dc, dV = torch.zeros_like(room.dh), torch.zeros_like(self._V)
        for t in reversed(range(len(room.moments))):
            now = room.moments[t]
            now.backward(dh, dc, room.moments[t - 1] if t else None, d)
            dV.baddbmm_(now.z.transpose(1, 2), d.all)
            dh = torch.bmm(d.all, V, out=now.dz if wanted else room.dh)[..., -H:]
            if of_all and t:
                dh.add_(gradient[t - 1])
        self._part(dV, inputs, H, sink)
        return room.dx if wanted else gradient

    def _joined(self, parameters: Sequence[Tensor]) -> Tensor:
        """Wᵀ, Uᵀ and b below each other, `[C, inputs + H + 1, 4H]`."""
        numbers = self._weights
        parts = [parameters[numbers.inputs], parameters[numbers.states]]
        if numbers.biases:
            biases = torch.stack([parameters[number] for number in numbers.biases], -1)
            parts.append(biases.sum(-1, keepdim=True))
        return in_other_order(torch.cat([part.transpose(1, 2) for part in parts], 1))

    def _part(self, dV: Tensor, inputs: int, H: int, sink: Sink) -> None:
        """Give each parameter its part of the gradient."""
        gradient = in_other_order(dV).transpose(1, 2)
        sink.plain(self._weights.inputs, gradient[:, :, :inputs])
        sink.plain(self._weights.states, gradient[:, :, inputs : inputs + H])
        for number in self._weights.biases:
            sink.plain(number, gradient[:, :, -1])


def in_other_order(gates: Tensor) -> Tensor:
    """i, f, g, o as i, f, o, g, and back, so that those with σ are side by side."""
    i, f, g, o = gates.chunk(4, -1)
    return torch.cat([i, f, o, g], -1)


class Room:
    """The memory of a level, kept from batch to batch as long as they have one shape."""

    def __init__(self, x: Tensor, V: Tensor, bias: bool):
        T, C, B, inputs = x.shape
        H = V.shape[-1] // 4
        z = V.new_zeros(T + 1, C, B, V.shape[1])
        if bias:
            z[..., -1] = 1
        self.x, self.h = z[:-1, ..., :inputs], z[1:, ..., inputs : inputs + H]
        gates = V.new_empty(T, C, B, 4 * H)
        c, tanh_c = (V.new_empty(T, C, B, H) for _ in range(2))
        dz = V.new_empty(T, C, B, inputs + H)
        self.dx = dz[..., :inputs]
        self.dh = V.new_empty(C, B, H)
        self.d = Gates(V.new_empty(C, B, 4 * H))
        self.moments = [
            Moment(*each) for each in zip(gates, z[:-1], self.h, c, tanh_c, dz, strict=True)
        ]

    def fits(self, x: Tensor, V: Tensor) -> bool:
        """Whether a batch has the shape that this is for."""
        same = self.x.dtype == V.dtype and self.x.device == V.device
        return same and self.x.shape == x.shape


class Gates:
    """i, f, o and g side by side, or their gradients."""

    def __init__(self, every: Tensor):
        self.all = every
        self.i, self.f, self.o, self.g = every.chunk(4, -1)
        self.i_f_o = every[..., : -self.g.shape[-1]]


class Moment(Gates):
    """What a level remembers of one step in time."""

    def __init__(self, gates: Tensor, z: Tensor, h: Tensor, c: Tensor, tanh_c: Tensor, dz: Tensor):
        super().__init__(gates)
        self.z, self.h, self.c, self.tanh_c, self.dz = z, h, c, tanh_c, dz

    def backward(self, dh: Tensor, dc: Tensor, before: Moment | None, d: Gates) -> None:
        """Write the gradient of what the gates are functions of, and that of c₋ over `dc`."""
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
    """The layer that does what the module does, or what is in the way."""
    if not module.batch_first:
        return "has the samples in the second axis (batch_first=False)"
    if module.bidirectional:
        return "goes in both directions"
    if module.proj_size:
        return "has projections"
    if module.dropout:
        return "has dropout between its levels"
    per_level = 4 if module.bias else 2
    levels = [numbers[k : k + per_level] for k in range(0, len(numbers), per_level)]
    return LSTM([Weights(each[0], each[1], tuple(each[2:])) for each in levels])
