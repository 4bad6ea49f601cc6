"""The arithmetic of a workload's round, and the most that this machine does in a second.

A round that reaches the machine's peak cannot become faster, however it is organised: only fewer
operations, or less exact ones, would help.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from undrift.bench.bare import trainable
from undrift.bench.timing import seconds_of, torch_threads
from undrift.bench.workloads import Workload

PEAK_SECONDS = 0.5
"""How long a kernel is repeated on all threads to find the peak."""
IMAGES, CHANNELS, SIDE = 20, 64, 32
"""The images that are convolved to find the peak: their number, channels and side in pixels."""


KERNELS = re.compile("(aten|mkldnn)::.*(mm|conv|linear|rnn|attention)")
"""The operators of torch that multiply matrices: products, convolutions, attention, recurrence."""


def kernel_seconds(do: Callable[[], object]) -> float:
    """Return the seconds that torch's `KERNELS` take in a function, summed over all threads."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would print when it starts and stops
    threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=threads) as found:
        do()
    microseconds = (e.self_cpu_time_total for e in found.key_averages() if KERNELS.match(e.key))
    return sum(microseconds) / 1e6


def round_gigaflop(workload: Workload) -> float:
    """Return the billions of operations of a round: products and convolutions of all steps.

    A multiplication and an addition count as two. Operations that the bare loop needs and undrift
    saves, such as gradients of frozen parameters, count as far as PyTorch computes them.
    """
    module, data = workload.model(), workload.data().train
    x, y = data.x[: workload.batch], data.y[: workload.batch]
    # Layers of an LSTM, which torch does not count by itself.
    mapping = {
        torch.ops.aten.mkldnn_rnn_layer: _recurrent,
        torch.ops.aten.mkldnn_rnn_layer_backward: lambda *shapes, **_: 2 * _recurrent(*shapes),
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        torch.autograd.grad(workload.loss(module(x), y), trainable(module))
    return counter.get_total_flops() * workload.steps * workload.cohort / 1e9


def _recurrent(
    inputs: Sequence[int], w: Sequence[int], u: Sequence[int], *_: Any, **__: Any
) -> int:
    """The operations of a recurrent layer, from the shapes of its inputs and weights."""
    tokens = inputs[0] * inputs[1]
    return 2 * tokens * (w[0] * w[1] + u[0] * u[1])


def peak_gigaflops(threads: int) -> float:
    """Return the most operations per second, in billions, of these threads together.

    Each thread repeats a convolution with channels last, the fastest of torch's kernels, while the
    other threads do the same.
    """
    last = torch.channels_last
    layer: nn.Module = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
    layer.to(memory_format=last)  # type: ignore[call-overload]
    images = torch.rand(IMAGES, CHANNELS, SIDE, SIDE).contiguous(memory_format=last)
    operations = 2 * images.numel() * 9 * CHANNELS

    def rate(_: int) -> float:
        taken, until = list[float](), time.perf_counter() + PEAK_SECONDS
        with torch.no_grad():
            while time.perf_counter() < until:
                taken.append(seconds_of(lambda: layer(images)))
        # Not the fastest: the clock of a virtual machine may jump.
        return operations / median(taken) / 1e9

    with torch_threads(1), ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(rate, range(threads)))
