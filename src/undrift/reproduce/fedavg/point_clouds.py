"""Clients that estimate the mean of their points: problems on which FedAvg's bounds are tight.

f_k(w) = mean over client k's points a of (μ/2)|w − a|², so that κ = 1 and every constant of the
theorems is known exactly, in expectation along the run. Coordinates of the points are independent
signs: one run in many dimensions averages over as many independent copies of the problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from undrift.core.losses import Batch, ClientLoss, Losses
from undrift.core.targets import PARTS
from undrift.theory import bounds
from undrift.utils.keys import generator

MU = 1.0
CLIENTS, POINTS, DIMENSIONS = 10, 20, 200


class PointClouds(Losses):
    """Every client has the same number of points, `[N, n, d]`, and starts at x⁰ = 0 = w*."""

    def __init__(self, points: Tensor):
        self.points = points
        self.ids = list(range(len(points)))
        self.sizes = torch.full((len(points),), points.shape[1])
        self.dimension = points.shape[2]

    def initial(self) -> Tensor:
        return torch.zeros(self.dimension, dtype=torch.float64)

    def value(self, k: int, x: Tensor) -> float:
        return MU / 2 * float((x - self.points[k]).square().sum(1).mean())

    def gradient(self, k: int, x: Tensor) -> Tensor:
        return MU * (x - self.points[k].mean(0))

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
    ) -> dict[str, float]:
        """F(x) − F*, which is (μ/2)|x − w*|² exactly."""
        optimum = weights @ self.points.mean(1)
        return {"train_loss": MU / 2 * float((x - optimum).square().sum())}

    @contextmanager
    def training(self, k: int, buffers: Mapping[str, Tensor], number: int) -> Iterator[ClientLoss]:
        yield _Cloud(self.points[k])


class _Cloud(ClientLoss):
    """The loss of one client."""

    def __init__(self, points: Tensor):
        self.samples = len(points)
        self._points = points

    def gradient(self, x: Tensor, batch: Batch = None) -> Tensor:
        chosen = self._points if batch is None else self._points[torch.from_numpy(batch)]
        return MU * (x - chosen.mean(0))


def signs(rng: np.random.Generator, *shape: int) -> Tensor:
    """Independent signs ±1."""
    return torch.from_numpy(rng.integers(0, 2, shape) * 2.0 - 1.0)


def noise_only() -> PointClouds:
    """All clients have points around the same mean: the gradients' noise is the only error."""
    drawn = signs(generator(0, "noisy points"), CLIENTS, POINTS // 2, DIMENSIONS)
    return PointClouds(torch.cat([drawn, -drawn], 1))


def sampling_only() -> PointClouds:
    """Every client has one point: the sampling of clients is the only error."""
    drawn = signs(generator(0, "points of clients"), CLIENTS // 2, 1, DIMENSIONS)
    return PointClouds(torch.cat([drawn, -drawn]))


def constants(problem: PointClouds, cohort: int | None, steps: int) -> bounds.Constants:
    """Return the constants of the theorems for batches of one point and E = 1.

    G² bounds the mean square of the stochastic gradients: with the step sizes of the theorems,
    E|w_t|² follows the recursion V ← (1 − η_tμ)²V + η_t²·(variance of the averaged gradient),
    which for sampling without replacement is an upper bound.

    Parameters
    ----------
    cohort
        number of clients in a round; None for all
    steps
        number of steps of the run
    """
    centres = problem.points.mean(1)
    spread = (problem.points - centres[:, None]).square().sum(2).mean(1)  # of each client's points
    between = float(centres.square().sum(1).mean())
    within = float(spread.mean())
    of_mean = within / CLIENTS if cohort is None else (within + between) / cohort
    V = worst = 0.0
    for t in range(steps):
        rate = bounds.learning_rate(t, MU, MU, 1)
        V = (1 - rate * MU) ** 2 * V + (rate * MU) ** 2 * of_mean
        worst = max(worst, V)
    return bounds.Constants(
        L=MU,
        mu=MU,
        E=1,
        q=torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64),
        sigma=MU * spread.sqrt(),
        G=MU * (worst + float(spread.max()) + float(centres.square().sum(1).max())) ** 0.5,
        Gamma=MU / 2 * between,
        distance=0.0,
    )
