"""Convolution and pooling of images, for many clients at once.

The channels of all clients are taken as those of one sample, `[B, C·channels, H, W]`, so that one
convolution with a group for each client does the work of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.layers import Layer, Sink, channels_of_all, channels_of_each

aten = torch.ops.aten


class Conv2d(Layer):
    """A convolution with zeros around the image."""

    trains = True
    gives_away = True

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

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._x = channels_of_all(x)
        self._kernel = parameters[self._weight].flatten(0, 1)
        bias = None if self._bias is None else parameters[self._bias].flatten()
        y = torch.conv2d(self._x, self._kernel, bias, *self._geometry, len(x))
        return channels_of_each(y, len(x))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        C = len(gradient)
        back, kernel, bias = aten.convolution_backward(
            channels_of_all(gradient),
            self._x,
            self._kernel,
            None if self._bias is None else [len(self._kernel)],
            *self._geometry,
            False,
            [0, 0],
            C,
            [not self.first, True, self._bias is not None],
        )
        sink.plain(self._weight, kernel.view(parameters[self._weight].shape))
        if self._bias is not None:
            sink.plain(self._bias, bias.view(C, -1))
        return gradient if self.first else channels_of_each(back, C)


def _in_the_order_of(images: Tensor, gradient: Tensor) -> Tensor:
    """A gradient in the images' order of memory: pooling is slow where the two differ."""
    last = torch.channels_last
    in_order = images.is_contiguous() or not images.is_contiguous(memory_format=last)
    return gradient if in_order else gradient.contiguous(memory_format=last)


class MaxPool2d(Layer):
    """The largest value of each window."""

    gives_away = True

    def __init__(self, *window: object):
        super().__init__()
        self._window = window
        """kernel, stride, padding, dilation and whether the last window may be cut off"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._x = channels_of_all(x)
        y, self._where = aten.max_pool2d_with_indices(self._x, *self._window)
        return channels_of_each(y, len(x))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        back = aten.max_pool2d_with_indices_backward(
            _in_the_order_of(self._x, channels_of_all(gradient)),
            self._x,
            *self._window,
            self._where,
        )
        return channels_of_each(back, len(gradient))


class AvgPool2d(Layer):
    """The mean of each window."""

    gives_away = True

    def __init__(self, *window: object):
        super().__init__()
        self._window = window
        """kernel, stride, padding, and how windows at the border count"""

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._x = channels_of_all(x)
        return channels_of_each(aten.avg_pool2d(self._x, *self._window), len(x))

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        clients = len(gradient)
        gradient = _in_the_order_of(self._x, channels_of_all(gradient))
        back = aten.avg_pool2d_backward(gradient, self._x, *self._window)
        return channels_of_each(back, clients)


class MeanOfImage(Layer):
    """The mean of each channel, as an image of one pixel."""

    gives_away = True

    def forward(self, x: Tensor, parameters: Sequence[Tensor], draws: Draws | None) -> Tensor:
        self._shape = x.shape
        return x.mean((-2, -1), keepdim=True)

    def backward(self, gradient: Tensor, parameters: Sequence[Tensor], sink: Sink) -> Tensor:
        pixels = self._shape[-2] * self._shape[-1]
        return (gradient / pixels).expand(self._shape)


def conv2d(module: nn.Conv2d, numbers: Sequence[int]) -> Conv2d | str:
    """The layer that does what the module does, or what is in the way."""
    if module.groups != 1:
        return "has groups"
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        return "has a padding that is not a number of zeros"
    bias = numbers[1] if len(numbers) > 1 else None
    return Conv2d(numbers[0], bias, module.stride, module.padding, module.dilation)


def max_pool2d(module: nn.MaxPool2d, numbers: Sequence[int]) -> MaxPool2d | str:
    """The layer that does what the module does, or what is in the way."""
    if module.return_indices:
        return "gives indices"
    kernel, stride = pair(module.kernel_size), pair(module.stride or module.kernel_size)
    return MaxPool2d(kernel, stride, pair(module.padding), pair(module.dilation), module.ceil_mode)


def avg_pool2d(module: nn.AvgPool2d, numbers: Sequence[int]) -> AvgPool2d:
    """The layer that does what the module does."""
    kernel, stride = pair(module.kernel_size), pair(module.stride or module.kernel_size)
    border = (module.ceil_mode, module.count_include_pad, module.divisor_override)
    return AvgPool2d(kernel, stride, pair(module.padding), *border)


def adaptive_avg_pool2d(module: nn.AdaptiveAvgPool2d, numbers: Sequence[int]) -> MeanOfImage | str:
    """The layer that does what the module does, or what is in the way."""
    if module.output_size not in (1, (1, 1), [1, 1]):
        return "gives more than one pixel"
    return MeanOfImage()


def pair(value: int | Sequence[int]) -> list[int]:
    """Both sides of a window."""
    return [value, value] if isinstance(value, int) else list(value)
