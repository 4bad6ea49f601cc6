"""How long a strategy should take for a round, estimated from counted work alone.

`strategies.candidates` orders strategies by it. It reads no clock, no file and no property of the
machine but the number of threads, so that the same experiment always gets the same strategy.
`undrift bench --strategies` compares it with measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from undrift.data.samples.structure import tensors_of
from undrift.engines.vectorised.factored import factoring_pays
from undrift.local.base import Local
from undrift.local.minibatches import MinibatchSolver
from undrift.nets.modes import set_training
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.keys import torch_generator_set_to
from undrift.utils.threads import one_thread

# Constants of a present-day core, fitted to `undrift bench --strategies`. Only their ratios matter,
# and only where two strategies take about equally long.
FLOPS_PER_SECOND = 8e10
"""Matrix products of one core."""
CHUNK_SECONDS = 8e-4
"""What a chunk costs beside its steps: its batches, its problem, its part of the sums."""
OPERATOR_SECONDS = {"stacked": 1.5e-5, "vmap": 6e-5, "module": 2.5e-5, "serial": 2.5e-5}
"""What an operator of the forward pass costs with its backward pass beside its arithmetic, for all
clients of a chunk. Python runs in one thread at a time, so threads do not divide it."""
CONTENTION = 1.2
"""What these costs grow by if several threads compete for Python's lock."""
LSTM_OPERATORS = 16
"""Operators of a stacked LSTM in a time step of a level; the module has one for all of them."""
BACKWARD = 3
"""Arithmetic of the forward and the backward pass, relative to the forward pass."""
KERNEL_SECONDS = {"stacked": 1.0, "vmap": 1.3, "module": 1.15, "serial": 1.15}
"""Arithmetic relative to stacked layers, which take the step inside the backward pass."""
NUMBER_BYTES = 4
BYTES_PER_SECOND = 1e10
"""Parameters that one core reads from memory or writes to it."""
CACHE_BYTES = 1e7
"""What a chunk may hold before its numbers come from memory in every step."""
CACHE_LOSS = 0.1
"""Additional time, relative to the arithmetic, for each doubling of what a chunk holds beyond."""
FORMED_PASSES, UNFORMED_PASSES = 4, 2
"""How often a step reads or writes a client's weights, and those that clients share."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions that compute all levels and time steps of a recurrent network."""
SAMPLES = 2
"""Samples of the forward pass that is counted; BatchNorm fails on one."""
CHANNELS_FIRST = 1.3
"""Arithmetic of a model with convolutions on a CPU, relative to one with its channels last."""


class OperatorCount(TorchFunctionMode):
    """Counts the functions of torch that a forward pass calls, and the arithmetic of its products.

    torch has a counter of its own, but importing it takes seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.flops = 0
        self.recurrent_rows = 0
        """time steps of all recurrent levels and samples together"""
        self.numbers = 0
        """numbers in the results"""
        self.linears: list[tuple[int, int]] = []
        """outputs and inputs of linear layers that get one vector for each sample"""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        name, flops = getattr(func, "__name__", ""), self.flops
        tensors = [each for each in args if isinstance(each, Tensor)]
        if name == "linear":
            self.flops += 2 * found.numel() * tensors[1].shape[-1]
            if found.ndim == 2:
                self.linears.append((found.shape[-1], tensors[0].shape[-1]))
        elif name in ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm"):
            self.flops += 2 * found.numel() * tensors[0].shape[-1]
        elif name.startswith("conv"):
            self.flops += 2 * found.numel() * tensors[1][0].numel()
        elif name == "scaled_dot_product_attention":
            self.flops += 4 * tensors[0].numel() * tensors[1].shape[-2]
        elif name == "multi_head_attention_forward":
            self.flops += 8 * tensors[0].numel() * tensors[0].shape[-1]
        elif name in RECURRENT:
            (weights,) = (each for each in args if isinstance(each, list))
            rows = tensors[0].numel() // tensors[0].shape[-1]
            self.flops += 2 * rows * sum(each.numel() for each in weights)
            self.recurrent_rows += rows * int(args[-5])
        # A view or an attribute computes nothing; some products are views of their results.
        reads = name == "__get__" or (isinstance(found, Tensor) and found._is_view())
        if not reads or self.flops > flops:
            self.number += 1
            self.numbers += found.numel() if isinstance(found, Tensor) else 0
        return found


@dataclass(frozen=True)
class ModelWork:
    """What a forward pass of a model computes for one sample."""

    flops: float
    """arithmetic of matrix products and convolutions"""
    operators: int
    time_steps: int = 0
    """steps of all recurrent levels together, which stacked layers compute one after another"""
    convolves: bool = False
    """whether it has convolutions, on a CPU"""
    activations: int = 0
    """numbers in the inputs and in the results of all operators"""
    parameters: int = 0
    """numbers in the trained parameters"""
    linears: Sequence[tuple[int, int]] = ()
    """outputs and inputs of linear layers that get one vector for each sample"""

    @staticmethod
    def of(losses: ModuleLosses) -> ModelWork:
        """Count a forward pass in training mode."""
        if losses not in _counted:
            _counted[losses] = _count(losses)
        return _counted[losses]


_counted: WeakKeyDictionary[ModuleLosses, ModelWork] = WeakKeyDictionary()
"""What was counted, so that methods that share a model do not count it again."""


def _count(losses: ModuleLosses) -> ModelWork:
    module = set_training(losses.thread_copy().flat.module)
    part = losses.train_part
    samples = part.samples(part.rows[:1].repeat(SAMPLES))
    seeded = torch_generator_set_to(0, losses.device)
    with seeded, torch.no_grad(), one_thread(), OperatorCount() as count:
        losses.criterion.loss_of(module, *samples)
    convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())
    return ModelWork(
        count.flops / SAMPLES,
        count.number,
        count.recurrent_rows // SAMPLES,
        convolutions and losses.device.type == "cpu",
        (count.numbers + sum(each.numel() for each in tensors_of(samples[0]))) // SAMPLES,
        losses.dimension,
        tuple(count.linears),
    )


@dataclass(frozen=True)
class RoundWork:
    """The work of a round: its clients, and the steps and batches of one of them."""

    model: ModelWork
    clients: int
    steps: int
    batch: int

    @staticmethod
    def of(losses: ModuleLosses, local: Local, clients: int) -> RoundWork:
        """The work of a round with this many clients of average size."""
        size = max(1, round(len(losses.train_part) / len(losses.ids)))
        solver = local.of(losses.ids[0])
        steps = max(1, solver.steps_of(solver.amount(losses.ids[0], 0), size))
        batch = solver.batch_of(size) if isinstance(solver, MinibatchSolver) else size
        return RoundWork(ModelWork.of(losses), clients, steps, batch)

    def seconds(self, network: str, chunk: int, threads: int, channels_last: bool) -> float:
        """How long a strategy should take for the round, in seconds of an imagined machine."""
        model = self.model
        chunks = -(-self.clients // chunk)
        operators = model.operators
        if network in ("stacked", "vmap"):
            operators += LSTM_OPERATORS * model.time_steps
        overhead = chunks * (CHUNK_SECONDS + self.steps * operators * OPERATOR_SECONDS[network])
        if threads > 1:
            overhead *= CONTENTION
        kernels = KERNEL_SECONDS[network]
        if model.convolves and not channels_last:
            kernels *= CHANNELS_FIRST
        unformed = self._unformed if network == "stacked" else 0
        formed = model.parameters - unformed
        held = NUMBER_BYTES * chunk * (formed + self._activations(unformed))
        kernels *= 1 + CACHE_LOSS * log2(max(1.0, held / CACHE_BYTES))
        arithmetic = self.steps * self.batch * model.flops * BACKWARD / FLOPS_PER_SECOND
        passes = UNFORMED_PASSES * unformed + FORMED_PASSES * formed * chunk
        traffic = 0.0
        if held > CACHE_BYTES or NUMBER_BYTES * unformed > CACHE_BYTES:
            traffic = self.steps * NUMBER_BYTES * passes / BYTES_PER_SECOND
        # Chunks are of equal size; the busiest thread computes this many of them.
        busiest = -(-chunks // threads)
        clients = self.clients * busiest / chunks
        return overhead + clients * arithmetic * kernels + busiest * traffic

    @property
    def _unformed(self) -> int:
        """Numbers in the weights that stacked layers need not form for each client."""
        rows = self.steps * self.batch
        return sum(o * i for o, i in self.model.linears if factoring_pays(rows, o, i))

    def _activations(self, unformed: int) -> int:
        """Numbers that a client's batches hold; those of unformed weights stay for all steps."""
        return self.model.activations * self.batch * (self.steps if unformed else 1)
