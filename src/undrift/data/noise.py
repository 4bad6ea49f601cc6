"""Feature skew: Gaussian noise on the inputs, stronger from client to client."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from undrift.data.part import Part
from undrift.utils.errors import require, require_range
from undrift.utils.keys import generator


def noisy(part: Part, name: str, deviation: float, clients: int, seed: int) -> Part:
    """A copy of a part whose inputs have noise, drawn once for each sample.

    The noise of client i of N has the standard deviation σ·i/(N − 1). Samples of a common part
    have the noise of each client in turn.

    Parameters
    ----------
    name
        name of the part, which keys the random numbers
    deviation
        σ, that of the last client
    """
    require_range("noise", deviation, at_least=0)
    require(
        isinstance(part.x, Tensor) and part.x.is_floating_point(),
        "Noise is for inputs that are one tensor of floating-point numbers in memory.",
    )
    owners = part.owners() if part.by_client else torch.arange(len(part.rows)) % clients
    levels = deviation * owners / max(1, clients - 1)
    x = part.x.clone()
    rng = generator(seed, f"feature noise, {name}")
    for row, level in zip(part.rows.tolist(), levels.tolist(), strict=True):
        x[row] += level * _normal(rng, x[row])
    return Part(x, part.y, part.rows, part.bounds)


def _normal(rng: np.random.Generator, like: Tensor) -> Tensor:
    drawn = rng.standard_normal(tuple(like.shape), dtype=np.float32)
    return torch.from_numpy(drawn).to(like)
