"""`nn.LayerNorm` and `nn.GroupNorm` for many clients at once.

Both normalise each sample by itself, so that clients with different batches do not interact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.stacked.layers import Layer, Sink, merge_channels, split_channels


class LayerNorm(Layer):
    """(x − mean) / deviation over the last axes, times a weight, plus a bias, as `nn.LayerNorm`."""

    owns_outputs = True

    def __init__(self, shape: Sequence[int], eps: float, weight: int | None, bias: int | None):
        super().__init__()
        self.trains = weight is not None
        self._shape, self._eps = list(shape), eps
        self._weight, self._bias = weight, bias

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._x = x
        # Weight and bias differ between clients, so they are applied outside of torch's operator,
        # unless there is one client only.
        self._own = self._of_one_client(parameters)
        y, self._mean, self._rstd = torch.native_layer_norm(x, self._shape, *self._own, self._eps)
        if len(x) == 1:
            return y
        self._y = y
        if self._weight is not None:
            y = y * self._over_samples(parameters[self._weight])
        return y if self._bias is None else y.add_(self._over_samples(parameters[self._bias]))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        if len(gradient) == 1:
            back, weight, bias = self._back(gradient)
        else:
            over = tuple(range(1, gradient.ndim - len(self._shape)))
            scaled, weight, bias = gradient, None, None
            if self._weight is not None:
                scaled = gradient * self._over_samples(parameters[self._weight])
                weight = (gradient * self._y).sum(over)
            if self._bias is not None:
                bias = gradient.sum(over)
            back = gradient if self.is_first else self._back(scaled)[0]
        for number, own in ((self._weight, weight), (self._bias, bias)):
            if number is not None:
                assert own is not None
                sink.plain(number, own.view(parameters[number].shape))
        return gradient if self.is_first else back

    def _back(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the inputs and, with one client, of its weight and bias."""
        weight, bias = self._own
        wanted = [not self.is_first, weight is not None, bias is not None]
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
            *(gradient, self._x, self._shape, self._mean, self._rstd, weight, bias, wanted)
        )
        return found

    def _of_one_client(self, parameters: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias if there is one client, otherwise None."""
        weight, bias = (
            None if number is None or len(self._x) > 1 else parameters[number][0]
            for number in (self._weight, self._bias)
        )
        return weight, bias

    def _over_samples(self, parameter: Tensor) -> Tensor:
        """A parameter `[C, …]` with axes of length 1 for samples, to be broadcast."""
        between = [1] * (self._x.ndim - parameter.ndim)
        return parameter.view(len(parameter), *between, *parameter.shape[1:])


class GroupNorm(Layer):
    """(x − mean) / deviation over groups of channels, times a weight, plus a bias."""

    owns_outputs = True

    def __init__(self, groups: int, eps: float, weight: int | None, bias: int | None):
        super().__init__()
        self.trains = weight is not None
        self._groups, self._eps = groups, eps
        self._weight, self._bias = weight, bias

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._x = _dense(merge_channels(x))
        weight, bias = (
            None if number is None else parameters[number].flatten()
            for number in (self._weight, self._bias)
        )
        self._weights_of_all = weight
        y, self._mean, self._rstd = torch.native_group_norm(
            self._x, weight, bias, *self._sizes(len(x)), self._eps
        )
        return split_channels(y, len(x))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        C = len(gradient)
        mask = [not self.is_first, self._weight is not None, self._bias is not None]
        back, weight, bias = torch.ops.aten.native_group_norm_backward(
            merge_channels(gradient).contiguous(memory_format=_memory_order(self._x)),
            self._x,
            self._mean,
            self._rstd,
            self._weights_of_all,
            *self._sizes(C),
            mask,
        )
        if self._weight is not None:
            sink.plain(self._weight, weight.view(C, -1))
        if self._bias is not None:
            sink.plain(self._bias, bias.view(C, -1))
        return gradient if self.is_first else split_channels(back, C)

    def _sizes(self, clients: int) -> tuple[int, int, int, int]:
        """Samples, channels, pixels and groups of the tensor with merged channels."""
        samples, channels = self._x.shape[:2]
        return samples, channels, self._x[0, 0].numel(), clients * self._groups


def _memory_order(x: Tensor) -> torch.memory_format:
    """The order of an image's numbers in memory; channels first if it is neither."""
    last = torch.channels_last
    # Of a single sample, torch cannot tell the order from the strides of a view.
    if x.ndim == 4 and len(x) > 1 and not x.is_contiguous():
        return last if x.is_contiguous(memory_format=last) else torch.contiguous_format
    return torch.contiguous_format


def _dense(x: Tensor) -> Tensor:
    """The same numbers without gaps in memory; images with their channels last stay so.

    Changing the order would cost a copy here, and one for each convolution before and after.
    """
    return x.contiguous(memory_format=_memory_order(x))


def layer_norm(module: nn.LayerNorm, numbers: Sequence[int]) -> LayerNorm:
    """The stacked layer for a module."""
    return LayerNorm(module.normalized_shape, module.eps, *weight_and_bias(numbers))


def group_norm(module: nn.GroupNorm, numbers: Sequence[int]) -> GroupNorm:
    """The stacked layer for a module."""
    return GroupNorm(module.num_groups, module.eps, *weight_and_bias(numbers))


def weight_and_bias(numbers: Sequence[int]) -> tuple[int | None, int | None]:
    """The numbers of a module's weight and bias among all parameters, None for a missing one."""
    weight, bias = [*numbers, None, None][:2]
    return weight, bias
