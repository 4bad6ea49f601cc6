"""Checks on a few samples that a network computes the gradients of the serial engine.

`strategies.candidates` drops every strategy whose network fails this check.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undrift.data.samples.structure import rows_of
from undrift.engines.vectorised.batches import Batch
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.steps import Gradients, ParameterList
from undrift.engines.vectorised.training import split
from undrift.nets.client_losses import ModuleLoss
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import first_line
from undrift.utils.threads import one_thread

SIZES = (3, 2)
"""Numbers of samples of the two made-up clients. They differ, so that one batch is padded."""
NOISE = 0.1
"""Standard deviation of the noise on the initial parameters: a layer that starts at zero would
hide the gradients of the layers before it."""
ROUNDING = 30
"""Gradients whose relative difference is below this many times √ε count as equal."""


class GradientCheck:
    """The gradients of a few samples as the serial engine computes them, to compare with.

    A model may do what a network does not reproduce: change in place a tensor that is needed
    elsewhere, mix the samples of a batch, or use random numbers in memory order. Then the
    gradients differ, and the network must not be used.
    """

    def __init__(self, losses: ModuleLosses):
        self._losses = losses
        part, flat = losses.train_part, losses.flat
        # Clamped: with more than 2^24 samples, the last float32 may round to the next integer.
        last = len(part) - 1
        positions = torch.linspace(0, last, sum(SIZES)).long().clamp(max=last)
        rows = part.rows[positions.to(part.rows.device)]
        self._x, self._y = part.samples(rows)
        # In place, since a copy of a large model takes much memory.
        noise = torch.Generator().manual_seed(0)
        self._parameters = torch.empty(len(flat.x), dtype=flat.x.dtype)
        self._parameters.normal_(0.0, NOISE, generator=noise)
        self._parameters = self._parameters.to(flat.x.device).add_(flat.x)

    def failure(self, network: Network, at_once: bool) -> str | None:
        """Why a network cannot replace the serial engine, or None if it can.

        `at_once` is whether the network computes both clients in one chunk.
        """
        clients = range(len(SIZES))
        groups = [list(clients)] if at_once else [[k] for k in clients]
        try:
            with torch.no_grad(), one_thread():
                same = all(self._agrees(network, group) for group in groups)
        except Exception as error:  # any error of the model or of torch
            return f"the model fails under this strategy: {first_line(error)}"
        return None if same else "its gradients differ from the serial engine's"

    def _agrees(self, network: Network, clients: list[int]) -> bool:
        """Whether a network's gradients of some clients are those of the serial engine."""
        found = self._gradients(network, clients)
        try:
            return all(
                _close([each[row] for each in found], self._serial_gradient(k))
                for row, k in enumerate(clients)
            )
        finally:
            self._losses.flat.release_gradient()

    def _rows(self, k: int) -> slice:
        first = sum(SIZES[:k])
        return slice(first, first + SIZES[k])

    def _serial_gradient(self, k: int) -> Tensor:
        losses, rows = self._losses, self._rows(k)
        enabled = torch.enable_grad()
        with enabled, one_thread(), losses.training(0, losses.initial_buffers(), number=k) as own:
            assert isinstance(own, ModuleLoss)
            samples = own.on_samples(rows_of(self._x, rows), rows_of(self._y, rows))
            return samples.full_gradient(self._parameters)

    def _gradients(self, network: Network, clients: list[int]) -> ParameterList:
        """The gradients of clients, a tensor `[C, …]` for each parameter."""
        flat, device = self._losses.flat, self._losses.device
        sizes, width = [SIZES[k] for k in clients], max(SIZES)
        # Padding is a sample of the other client: a network that counts it fails the check.
        number = sum(SIZES)
        taken = [[(self._rows(k).start + i) % number for i in range(width)] for k in clients]
        rows = torch.tensor(taken, device=device)
        weights = torch.tensor([[(i < n) / n for i in range(width)] for n in sizes]).to(flat.x)
        batch = Batch(rows_of(self._x, rows), rows_of(self._y, rows), sizes, weights)
        parameters = split(self._parameters.expand(len(clients), -1), flat.shapes)
        parameters = network.in_memory_order(parameters)
        masks = RandomMasks(clients, device) if network.uses_random_numbers else None
        if masks is not None:
            masks.sizes = sizes
        sink = Gradients(parameters)
        network.load_buffers(self._losses.initial_buffers())
        network.backward(parameters, batch, 1.0, sink, masks)
        return sink.values


def _close(found: Sequence[Tensor], expected: Tensor) -> bool:
    """Whether the parts of a gradient, which are changed, are close to the expected one, `[P]`."""
    eps = torch.finfo(expected.dtype).eps
    parts = expected.split([each.numel() for each in found])
    pairs = zip(found, parts, strict=True)
    distances = [own.sub_(part.view(own.shape)).norm() for own, part in pairs]
    distance = torch.stack(distances).norm()
    return bool(distance <= ROUNDING * eps**0.5 * expected.norm() + eps)
