"""The interface of the clients' losses f_1 … f_N: functions of a flat vector of parameters.

Neural networks on federated data (`undrift.nets.module_losses`) and analytic problems
(`undrift.theory`) implement it; engines and loops use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from undrift.core.client_metrics import ClientMetrics
from undrift.core.problem import LocalProblem
from undrift.core.targets import PARTS
from undrift.utils.errors import UndriftError, require_choice


@dataclass(frozen=True)
class EvaluationCost:
    """What one evaluation of a model costs, in counted work."""

    samples: Mapping[str, int]
    """the number of samples of each part"""
    products: int = 0
    """about how many multiplications the forward pass of a sample takes; 0 if they do not count"""
    divisible: bool = False
    """whether a part of the training samples can stand for all of them"""


Batch = np.ndarray | None
"""Indices of a client's samples, counted from 0, or None for all samples."""


def objective_weights(sizes: Tensor, objective: str) -> Tensor:
    """The q_k of F = Σ q_k f_k + g: n_k/n for "samples", 1/N for "clients"."""
    require_choice("objective", objective, ("samples", "clients"))
    n = sizes.to(torch.float64)
    n = n if objective == "samples" else torch.ones_like(n)
    return n / n.sum()


class ClientLoss(ABC):
    """One client's loss f_k while a solver works on it."""

    samples: int
    """n_k"""
    shapes: Sequence[torch.Size] | None = None
    """the shapes of the parameters that lie end to end in x, if it is a model's"""

    @abstractmethod
    def gradient(self, x: Tensor, batch: Batch = None) -> Tensor:
        """The mean gradient over a batch, in a new tensor that the caller may overwrite."""

    def on_batch(self, batch: Batch = None) -> Callable[[Tensor], Tensor]:
        """`gradient` over a batch as a function of x alone, to evaluate at several points.

        Every call sees the same samples with the same random numbers, may overwrite what the call
        before it returned, and only the first call changes buffers.
        """
        return lambda x: self.gradient(x, batch)

    def expect(self, gradients: Iterator[tuple[int, Batch]]) -> None:
        """Learn which gradients a solver will ask for, so that samples can be read ahead.

        Each is given by its epoch and its batch, in order; the last ones may never be asked for.
        """

    def full_gradient(self, x: Tensor) -> Tensor:
        """The gradient over all samples; unlike a training step it does not change buffers."""
        return self.gradient(x)

    def minimise(self, problem: LocalProblem, weight_decay: float = 0.0) -> Tensor:
        """The exact minimiser of a local problem; an error if there is no closed form."""
        raise UndriftError(
            "The exact solver works on quadratic problems only: use SGD or GD for this loss."
        )

    def buffers(self) -> dict[str, Tensor]:
        """The model's buffers after the client's work."""
        return {}


class Federation(ABC):
    """What a server knows of its clients and of the model, without losses or data.

    A simulation has the subclass `Losses`; in a deployment the losses are at the sites.
    """

    ids: Sequence[Hashable]
    """a stable id per client, which keys its random numbers"""
    sizes: Tensor
    """n_k, `[N]`"""
    counted: Tensor | None = None
    """`[N]`, the numbers of samples that weights are made of; None if they are the n_k"""
    dimension: int
    """P, the number of parameters"""

    @abstractmethod
    def initial(self) -> Tensor:
        """x⁰, the initial model."""

    def initial_buffers(self) -> dict[str, Tensor]:
        """The initial values of the model's buffers."""
        return {}

    def initial_personal(self) -> Tensor | None:
        """The initial personal parameters of a client, `[p]`; None if there are none."""
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of `PARTS` for which there are data."""
        return ("train",)

    @property
    def common_parts(self) -> tuple[str, ...]:
        """The parts whose data belong to no client, such as a common test set."""
        return ()

    def evaluation_cost(self) -> EvaluationCost:
        """What one evaluation costs; nothing that counts for problems in closed form."""
        return EvaluationCost({})

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the clients and their data: a run resumes only with the same ones."""

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
        """Metrics of a model on `parts`, as far as the data have them.

        "train" gives "train_loss", Σ q_k f_k. `weights` are the q_k in the order of the data; the
        training data of clients with weight zero are left out.
        """

    @abstractmethod
    @contextmanager
    def training(self, k: int, buffers: Mapping[str, Tensor], number: int) -> Iterator[ClientLoss]:
        """Client k's loss, ready for a solver; `number` keys the model's random numbers."""

    def evaluate_own(
        self,
        k: int,
        x: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
    ) -> dict[str, float]:
        """Metrics of client k's own model `x` on its own data."""
        return {"train_loss": self.value(k, x)} if "train" in parts else {}

    def evaluate_clients(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
        clients: ClientMetrics,
    ) -> dict[str, float]:
        """Metrics of a model as `evaluate` returns them; adds those of every client to `clients`.

        As there, the training data of clients with weight zero are left out.
        """
        for k, client in enumerate(self.ids):
            own = [part for part in parts if part != "train" or weights[k] > 0]
            clients.add(client, self.evaluate_own(k, x, buffers, own))
        return self.evaluate(x, weights, buffers, parts)

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
    """The same object, typed as `Losses`; an error in a deployment."""
    if not isinstance(federation, Losses):
        raise UndriftError(
            "This needs the clients' losses in one place; in a deployment they are at the sites."
        )
    return federation
