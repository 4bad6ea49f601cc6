"""FedAvg's schemes once more, in plain NumPy and without the library's engine, methods and models.

Where the paper's order of the schemes does not appear, this shows that it is not an error of the
library: only the data and the cohorts are shared, while batches are drawn anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from undrift.core.clients import Roster
from undrift.core.sampling import Uniform, Weighted
from undrift.data import FederatedData

CLASSES, COHORT = 10, 10
LAMBDA = 1e-4
"""F has λ|w|²."""

Clients = Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Numbers:
    """The numbers of a run: local steps, rounds, batch size and the rate η_0 of η_0/(1 + t)."""

    steps: int
    rounds: int
    batch: int
    rate: float


def clients_of(data: FederatedData) -> Clients:
    """Return every client's inputs, extended by a one, and labels."""
    found = []
    for k in range(len(data)):
        x, y = (each.numpy() for each in data.train.client(k))
        found.append((np.hstack([x.astype(float), np.ones((len(x), 1))]), y))
    return found


def final_objective(
    scheme: str, clients: Clients, roster: Roster, numbers: Numbers, seed: int, last: int
) -> float:
    """Return the mean of F over the last rounds of "I", "transformed II" or "original"."""
    sizes = np.array([len(y) for _, y in clients])
    p, N = sizes / sizes.sum(), len(clients)
    draw = Weighted(COHORT) if scheme == "I" else Uniform(COHORT)
    w = np.zeros((clients[0][0].shape[1], CLASSES))
    rng = np.random.default_rng(seed)
    ends = []
    for t in range(numbers.rounds):
        cohort = draw.draw(roster, seed, t)
        moved: dict[int, np.ndarray] = {}
        for k in cohort:
            assert isinstance(k, int)
            scale = N * p[k] if scheme == "transformed II" else 1.0
            rate = scale * numbers.rate / (1 + t)
            moved[k] = _trained(w, *clients[k], rate, numbers, rng) - w
        if scheme == "original":
            w = w + sum(p[k] * move for k, move in moved.items())
        else:
            w = w + sum(cohort[k] * move for k, move in moved.items()) / sum(cohort.values())
        if t >= numbers.rounds - last:
            ends.append(objective(w, clients))
    return fmean(ends)


def _trained(
    w: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    rate: float,
    numbers: Numbers,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the model after SGD on batches that are drawn anew for every step."""
    size = min(numbers.batch, len(y))
    for _ in range(numbers.steps):
        rows = rng.choice(len(y), size, replace=False)
        error = _softmax(x[rows] @ w)
        error[np.arange(size), y[rows]] -= 1
        w = w - rate * (x[rows].T @ error / size + 2 * LAMBDA * w)
    return w


def objective(w: np.ndarray, clients: Clients) -> float:
    """Return F: the mean cross-entropy over all samples, and λ|w|²."""
    losses = [-np.log(_softmax(x @ w)[np.arange(len(y)), y]) for x, y in clients]
    return float(np.concatenate(losses).mean() + LAMBDA * (w**2).sum())


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers: np.ndarray = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
