"""Sharpness-aware gradients of several clients at once: two backward passes on the same batch."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.core.problem import Ascent
from undrift.engines.vectorised.batches import Batch
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.steps import (
    FullStep,
    Gradients,
    ParameterList,
    Step,
    broadcastable,
)


def backward_ascending(
    network: Network,
    x: ParameterList,
    batch: Batch,
    scale: Tensor | float,
    step: Step,
    masks: RandomMasks | None,
    ascent: Ascent,
) -> None:
    """Give `step` every client's s·[(1 − a)∇f(x) + a∇f(x + ρ g/|g|)], g = ∇f(x).

    The second pass has the samples and the dropout masks of the first, and does not change buffers.
    A step that is fused into the backward pass can take the second gradient only: a must be 1.
    """
    first = Gradients(x)
    states = masks.states() if masks is not None else ()
    network.backward(x, batch, 1.0, first, masks)
    buffers = network.buffers()
    if masks is not None:
        masks.restore(states)
    network.backward(_shifted(x, first.values, ascent), batch, scale * ascent.share, step, masks)
    network.load_buffers(buffers)
    if ascent.share < 1:
        assert isinstance(step, FullStep)
        step.add(first.values, scale * (1 - ascent.share))


def _shifted(x: ParameterList, gradients: ParameterList, ascent: Ascent) -> ParameterList:
    """x + ρ g/|g| of every client; the norm is that over all parameters of a client."""
    squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
    factor = ascent.radius / squares.sqrt().clamp(min=1e-30)
    return [own + g * broadcastable(factor, g) for own, g in zip(x, gradients, strict=True)]
