"""The clients' losses f_1 … f_N, as engines and theory see them: functions of a flat vector.

A neural network on federated data (`undrift.nets.module_losses`) and an analytic problem
(`undrift.theory`) offer the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b

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


class Federation(ABC):
    """What a server knows of its clients and of the model: no losses, no data.

    A simulation has `Losses` as well; in a deployment they are at the sites.
    """

    ids: Sequence[Hashable]
    """a stable id per client; randomness follows it"""
    sizes: Tensor
    """n_k, `[N]`"""
    dimension: int
    """P, the number of parameters"""

    @abstractmethod
    def initial(self) -> Tensor:
        """x⁰, the model every run starts from."""

    def initial_buffers(self) -> dict[str, Tensor]:
        """The first values of what the model holds besides parameters."""
        return {}

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the data that exist, of `PARTS`."""
        return ("train",)

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that is equal for equal clients and data, to refuse resuming with others."""

    def __len__(self) -> int:
        return len(self.ids)


class Losses(Federation):
    """The losses of all clients, which a simulation can compute."""

    def fingerprint(self) -> str:
        """A hash of the clients and of their gradients at two points."""
        found = blake2b(repr((type(self).__name__, list(self.ids))).encode(), digest_size=16)
        x = self.initial()
        for k, size in enumerate(self.sizes.tolist()):
            for point in (x, x + 1):
                found.update(repr(size).encode())
                found.update(self.gradient(k, point).detach().cpu().numpy().tobytes())
        return found.hexdigest()

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


def require_losses(federation: Federation) -> Losses:
    """The same object as `Losses`; an error where the data are elsewhere."""
    if not isinstance(federation, Losses):
        raise UndriftError("The data of a deployment are at its sites, which compute on them.")
    return federation
