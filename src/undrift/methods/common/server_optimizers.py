"""Server optimisers: they turn the average move of the clients into the server's step.

Plain adds the move. Momentum is SlowMo / FedAvgM in FedNova's form. Adam, Yogi and Adagrad are
those of Reddi et al., *Adaptive Federated Optimization*, ICLR 2021, Algorithm 2.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.problem import ServerState
from undrift.utils.errors import require_range, require_type


class ServerOptimizer(ABC):
    """Turns the clients' average move, `update`, into the server's step."""

    def start(self, x: Tensor) -> dict[str, Tensor]:
        """The optimiser's state before the first round, by name; it becomes server state."""
        return {}

    @abstractmethod
    def step(self, server: ServerState, update: Tensor, rate: float) -> dict[str, Tensor]:
        """The next `x` and the optimiser's next state; `rate` is the clients' η."""


@dataclass(frozen=True)
class Plain(ServerOptimizer):
    """x ← x + lr·update; lr is the papers' global rate η_g."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        require_range("Plain's lr", self.lr, above=0)

    def step(self, server: ServerState, update: Tensor, rate: float) -> dict[str, Tensor]:
        return {"x": server.x + self.lr * update}


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """B ← βB + update/η;  x ← x + lr·η·B, so that B survives a decay of the clients' η."""

    beta: float = 0.9
    lr: float = 1.0

    def __post_init__(self) -> None:
        require_range("Momentum's beta", self.beta, at_least=0, below=1)
        require_range("Momentum's lr", self.lr, above=0)

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(x)}

    def step(self, server: ServerState, update: Tensor, rate: float) -> dict[str, Tensor]:
        momentum = self.beta * server.momentum + update / rate
        return {"x": server.x + self.lr * rate * momentum, "momentum": momentum}


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """m ← β₁m + (1 − β₁)·update;  v by the subclass;  x ← x + lr·m/(√v + τ)."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        name = type(self).__name__
        require_range(f"{name}'s lr", self.lr, above=0)
        require_range(f"{name}'s beta1", self.beta1, at_least=0, below=1)
        require_range(f"{name}'s beta2", self.beta2, at_least=0, below=1)
        require_range(f"{name}'s tau", self.tau, above=0)

    def start(self, x: Tensor) -> dict[str, Tensor]:
        return {"mean": torch.zeros_like(x), "square": torch.full_like(x, self.tau**2)}

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v from the last one and the squared update."""

    def step(self, server: ServerState, update: Tensor, rate: float) -> dict[str, Tensor]:
        mean = self.beta1 * server.mean + (1 - self.beta1) * update
        square = self.second_moment(server.square, update**2)
        x = server.x + self.lr * mean / (square.sqrt() + self.tau)
        return {"x": x, "mean": mean, "square": square}


@dataclass(frozen=True)
class Adam(Adaptive):
    """FedAdam: v ← β₂v + (1 − β₂)·update²"""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adaptive):
    """FedYogi: v ← v − (1 − β₂)·update²·sign(v − update²)"""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: v ← v + update²"""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


def require_optimizer(server: ServerOptimizer) -> ServerOptimizer:
    """The argument itself; raise an error if it is not a server optimiser."""
    require_type(
        "server",
        server,
        ServerOptimizer,
        "a server optimiser such as ud.server.Momentum(0.9), Adam(), Yogi() or Adagrad()",
    )
    return server
