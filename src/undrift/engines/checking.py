"""Whether a way of computing gives what the serial engine gives, tried out on a few samples."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.engines.vectorised.batches import Batch
from undrift.engines.vectorised.draws import Draws
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.steps import Gradients
from undrift.engines.vectorised.training import split
from undrift.nets.modules import ModuleLoss, ModuleLosses
from undrift.utils.errors import first_line
from undrift.utils.keys import generator
from undrift.utils.threads import one_thread

SIZES = (3, 2)
"""The samples of two made-up clients, whose batches are padded to the same size."""
NOISE = 0.1
"""How far parameters are moved, since a layer that begins with zeros hides those before it."""
ROUNDING = 30
"""Gradients that differ by so many times the root of the precision are the same."""


class Check:
    """The gradients of a few samples, as the serial engine computes them.

    A model may do what a network does not follow: change a tensor in place that is needed
    elsewhere, mix the samples of a batch, or draw in the order of its memory. Then the gradients
    differ, and the network is not used.
    """

    def __init__(self, losses: ModuleLosses):
        self._losses = losses
        part, flat = losses.train_part, losses.flat
        places = torch.linspace(0, len(part) - 1, sum(SIZES)).long().to(part.rows.device)
        rows = part.rows[places]
        self._x, self._y = part.x[rows], part.y[rows]
        noise = generator(0, "check").standard_normal(len(flat.x))
        self._at = flat.x + NOISE * torch.from_numpy(noise).to(flat.x)
        self._expected = [self._serial(k) for k in range(len(SIZES))]

    def fault(self, network: Network, at_once: bool) -> str | None:
        """Why a network cannot take the place of the serial engine, or None."""
        clients = range(len(SIZES))
        groups = [list(clients)] if at_once else [[k] for k in clients]
        try:
            with torch.no_grad(), one_thread():
                found = [g for group in groups for g in self._gradients(network, group)]
        except Exception as error:  # whatever the model or torch says
            return f"it does not bear that ({first_line(error)})"
        same = zip(found, self._expected, strict=True)
        return None if all(_close(g, e) for g, e in same) else "its gradients are others then"

    def _rows(self, k: int) -> slice:
        first = sum(SIZES[:k])
        return slice(first, first + SIZES[k])

    def _serial(self, k: int) -> Tensor:
        losses, rows = self._losses, self._rows(k)
        with one_thread(), losses.training(0, losses.initial_buffers(), number=k) as own:
            assert isinstance(own, ModuleLoss)
            return own.of(self._x[rows], self._y[rows]).full_gradient(self._at).clone()

    def _gradients(self, network: Network, clients: list[int]) -> list[Tensor]:
        flat, device = self._losses.flat, self._losses.device
        sizes, width = [SIZES[k] for k in clients], max(SIZES)
        # Padding is another sample than the client's own.
        taken = [[(self._rows(k).start + i) % len(self._x) for i in range(width)] for k in clients]
        rows = torch.tensor(taken, device=device)
        weights = torch.tensor([[(i < n) / n for i in range(width)] for n in sizes]).to(flat.x)
        batch = Batch(self._x[rows], self._y[rows], sizes, weights)
        parameters = split(self._at.repeat(len(clients), 1), flat.shapes)
        parameters = network.arranged(parameters)
        draws = Draws(clients, device) if network.draws else None
        if draws is not None:
            draws.sizes = sizes
        sink = Gradients(parameters)
        network.load_buffers(self._losses.initial_buffers())
        network.backward(parameters, batch, 1.0, sink, draws)
        return list(torch.cat([g.reshape(len(clients), -1) for g in sink.values], dim=1))


def _close(found: Tensor, expected: Tensor) -> bool:
    allowed = ROUNDING * torch.finfo(found.dtype).eps ** 0.5 * expected.norm()
    return bool((found - expected).norm() <= allowed + torch.finfo(found.dtype).eps)
