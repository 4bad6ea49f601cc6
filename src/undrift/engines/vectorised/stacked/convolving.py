"""Convolution and pooling of images for many clients at once.

The channels of all clients are merged into those of one sample, `[B, C·channels, H, W]`, so that
one grouped convolution, with a group for each client, computes all clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.stacked.layers import Layer, Sink, merge_channels, split_channels

aten = torch.ops.aten


class Conv2d(Layer):
    """`nn.Conv2d` with zero padding and without groups."""

    trains = True
    owns_outputs = True

    def __init__(
        self,
        weight: int,
        bias: int | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ):
        super().__init__()
        self._weight, self._bias = weight, bias
        self._geometry = stride, padding, dilation

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._x = merge_channels(x)
        self._kernel = parameters[self._weight].flatten(0, 1)
        bias = None if self._bias is None else parameters[self._bias].flatten()
        y = torch.conv2d(self._x, self._kernel, bias, *self._geometry, len(x))
        return split_channels(y, len(x))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        C = len(gradient)
        back, kernel, bias = aten.convolution_backward(
            merge_channels(gradient),
            self._x,
            self._kernel,
            None if self._bias is None else [len(self._kernel)],
            *self._geometry,
            False,
            [0, 0],
            C,
            [not self.is_first, True, self._bias is not None],
        )
        sink.plain(self._weight, kernel.view(parameters[self._weight].shape))
        if self._bias is not None:
            sink.plain(self._bias, bias.view(C, -1))
        return gradient if self.is_first else split_channels(back, C)


def _in_memory_order_of(images: Tensor, gradient: Tensor) -> Tensor:
    """A gradient in the memory order of the images: pooling is slow if the two differ."""
    last = torch.channels_last
    same_order = images.is_contiguous() or not images.is_contiguous(memory_format=last)
    return gradient if same_order else gradient.contiguous(memory_format=last)


class MaxPool2d(Layer):
    """`nn.MaxPool2d`: the largest value of each window."""

    owns_outputs = True

    def __init__(self, *window: object):
        super().__init__()
        self._window = window
        """kernel size, stride, padding, dilation and ceil_mode, as the operator takes them"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._x = merge_channels(x)
        y, self._argmax = aten.max_pool2d_with_indices(self._x, *self._window)
        return split_channels(y, len(x))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        back = aten.max_pool2d_with_indices_backward(
            _in_memory_order_of(self._x, merge_channels(gradient)),
            self._x,
            *self._window,
            self._argmax,
        )
        return split_channels(back, len(gradient))


class AvgPool2d(Layer):
    """`nn.AvgPool2d`: the mean of each window."""

    owns_outputs = True

    def __init__(self, *window: object):
        super().__init__()
        self._window = window
        """kernel size, stride, padding, ceil_mode, count_include_pad and divisor_override"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._x = merge_channels(x)
        return split_channels(aten.avg_pool2d(self._x, *self._window), len(x))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        clients = len(gradient)
        gradient = _in_memory_order_of(self._x, merge_channels(gradient))
        back = aten.avg_pool2d_backward(gradient, self._x, *self._window)
        return split_channels(back, clients)


class GlobalAvgPool2d(Layer):
    """`nn.AdaptiveAvgPool2d(1)`: the mean of each channel, as an image of one pixel."""

    owns_outputs = True

    def forward(self, x: Tensor, parameters: Sequence[Tensor], masks: RandomMasks | None) -> Tensor:
        self._shape = x.shape
        return x.mean((-2, -1), keepdim=True)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        pixels = self._shape[-2] * self._shape[-1]
        return (gradient / pixels).expand(self._shape)


def conv2d(module: nn.Conv2d, numbers: Sequence[int]) -> Conv2d | str:
    """The stacked layer for a module, or the option that prevents it."""
    if module.groups != 1:
        return "has groups"
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        return "has a padding other than a number of zeros"
    bias = numbers[1] if len(numbers) > 1 else None
    return Conv2d(numbers[0], bias, module.stride, module.padding, module.dilation)


def max_pool2d(module: nn.MaxPool2d, numbers: Sequence[int]) -> MaxPool2d | str:
    """The stacked layer for a module, or the option that prevents it."""
    if module.return_indices:
        return "returns indices"
    kernel, stride = pair(module.kernel_size), pair(module.stride or module.kernel_size)
    return MaxPool2d(kernel, stride, pair(module.padding), pair(module.dilation), module.ceil_mode)


def avg_pool2d(module: nn.AvgPool2d, numbers: Sequence[int]) -> AvgPool2d:
    """The stacked layer for a module."""
    kernel, stride = pair(module.kernel_size), pair(module.stride or module.kernel_size)
    border = (module.ceil_mode, module.count_include_pad, module.divisor_override)
    return AvgPool2d(kernel, stride, pair(module.padding), *border)


def adaptive_avg_pool2d(
    module: nn.AdaptiveAvgPool2d, numbers: Sequence[int]
) -> GlobalAvgPool2d | str:
    """The stacked layer for a module, or the option that prevents it."""
    if module.output_size not in (1, (1, 1), [1, 1]):
        return "returns more than one pixel"
    return GlobalAvgPool2d()


def pair(value: int | Sequence[int]) -> list[int]:
    """Height and width of a window that may be given as one number."""
    return [value, value] if isinstance(value, int) else list(value)
