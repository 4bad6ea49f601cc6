"""The clients' losses f_1 … f_N, as engines and theory see them: functions of a flat vector.

A neural network on federated data (`undrift.nets.modules`) and an analytic problem
(`undrift.theory`) offer the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from undrift.core.problem import LocalProblem
from undrift.core.targets import PARTS
from undrift.utils.errors import UndriftError, require_choice

Batch = np.ndarray | None
"""Which of a client's samples: their numbers from 0, or None for all."""


def objective_weights(sizes: Tensor, objective: str) -> Tensor:
    """The q_k of F = Σ q_k f_k + g: n_k/n for "samples", 1/N for "clients"."""
    require_choice("objective", objective, ("samples", "clients"))
    n = sizes.to(torch.float64)
    n = n if objective == "samples" else torch.ones_like(n)
    return n / n.sum()


class ClientLoss(ABC):
    """One client's loss f_k while a solver works on it."""

    samples: int

    @abstractmethod
    def gradient(self, x: Tensor, batch: Batch = None) -> Tensor:
        """The mean gradient over a batch; the caller may overwrite it."""

    def full_gradient(self, x: Tensor) -> Tensor:
        """The gradient over all samples, to look at: it leaves buffers as they are."""
        return self.gradient(x)

    def minimise(self, problem: LocalProblem, weight_decay: float = 0.0) -> Tensor:
        """The exact minimiser of a local problem, where it has a closed form."""
        raise UndriftError(
            "The exact solver works on quadratic problems only: use SGD or GD for this loss."
        )

    def buffers(self) -> dict[str, Tensor]:
        """What the model holds besides parameters, after the client's work."""
        return {}


class Losses(ABC):
    """All clients' losses."""

    ids: Sequence[Hashable]
    """a stable id per client; randomness follows it"""
    sizes: Tensor
    """n_k, `[N]`"""
    dimension: int
    """P, the number of parameters"""

    @abstractmethod
    def initial(self) -> Tensor:
        """x⁰, the model every run starts from."""

    @abstractmethod
    def value(self, k: int, x: Tensor) -> float:
        """f_k(x)"""

    @abstractmethod
    def gradient(self, k: int, x: Tensor) -> Tensor:
        """∇f_k(x), over all of the client's data."""

    @abstractmethod
    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
    ) -> dict[str, float]:
        """Metrics of a model on some of `parts`; one is "train_loss", Σ q_k f_k, of "train".

        `weights` are the q_k, in the order of the data; the training data of a client whose
        weight is zero do not count.
        """

    @abstractmethod
    @contextmanager
    def training(self, k: int, buffers: Mapping[str, Tensor], number: int) -> Iterator[ClientLoss]:
        """Client k's loss, ready for a solver; `number` keys what the model draws itself."""

    def initial_buffers(self) -> dict[str, Tensor]:
        """The first values of what the model holds besides parameters."""
        return {}

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the data that there are, of `PARTS`."""
        return ("train",)

    def evaluate_own(
        self,
        k: int,
        x: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
    ) -> dict[str, float]:
        """Metrics of a client's own model on its own data."""
        return {"train_loss": self.value(k, x)} if "train" in parts else {}

    def weights(self, objective: str = "samples") -> Tensor:
        """The q_k of an objective, `[N]`: n_k/n for "samples", 1/N for "clients"."""
        return objective_weights(self.sizes, objective)

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        """Σ q_k ∇f_k(x)"""
        total = torch.zeros_like(x)
        for k, weight in enumerate(weights.tolist()):
            if weight:
                total += weight * self.gradient(k, x)
        return total

    def __len__(self) -> int:
        return len(self.ids)
