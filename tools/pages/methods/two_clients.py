"""The two clients of the figures: quadratics in the plane that differ in size and curvature."""

from __future__ import annotations

import math
from collections.abc import Hashable

import torch
from torch import Tensor

from undrift.theory import Quadratics

LR = 0.1
SIZES = (60, 40)
"""n_k: client 1 holds more samples."""
STEPS: dict[Hashable, int] = {0: 2, 1: 12}
"""Client 2 does more steps of gradient descent per round."""
EQUAL_STEPS = 7
"""Steps of both clients in runs with equal work."""
MINIMA = ((-1.0, 0.6), (1.2, -0.4))
START = (-0.2, -1.3)
NAMES = ("client 1", "client 2")


def two_clients() -> Quadratics:
    """Return f_k(x) = ½(x − e_k)ᵀH_k(x − e_k), with different minima e_k and curvatures H_k."""
    H = torch.stack([_curvature(1.4, 0.5, 25), _curvature(1.1, 0.45, 120)])
    e = torch.tensor(MINIMA, dtype=torch.float64)
    b = torch.einsum("kij,kj->ki", H, e)
    constants = torch.einsum("ki,ki->k", b, e) / 2
    start = torch.tensor(START, dtype=torch.float64)
    return Quadratics(H, b, SIZES, constants.tolist(), initial=start)


def _curvature(along: float, across: float, degrees: float) -> Tensor:
    """Return a Hessian with these curvatures along and across a direction."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return turn @ torch.diag(torch.tensor([along, across], dtype=torch.float64)) @ turn.T
