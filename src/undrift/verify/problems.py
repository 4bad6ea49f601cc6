"""The small problems on which `undrift verify` measures methods."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor, nn

from undrift.data.federated import FederatedData
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.personal import Personal
from undrift.theory.quadratics import Quadratics, random_quadratics
from undrift.utils.keys import generator

SIZES = [5, 9, 20, 12]
STEPS: dict[Hashable, int] = {0: 1, 1: 4, 2: 2, 3: 3}
START = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def quadratics(sizes: list[int] | None = None) -> Quadratics:
    """Four clients of unequal size, curvature between 0.5 and 1.5."""
    drawn = random_quadratics(4, 3, 0.5, 1.5, spread=1.0, seed=11)
    return Quadratics(drawn.H, drawn.b, sizes or SIZES, initial=START)


def partly_concave() -> Quadratics:
    """The clients with the first one concave, f = −½|x|² − b·x; their means F stay convex."""
    problem = quadratics()
    H = problem.H.clone()
    H[0] = -torch.eye(3, dtype=torch.float64)
    return Quadratics(H, problem.b, problem.sizes.tolist(), initial=START)


def permuted(problem: Quadratics, order: list[int]) -> Quadratics:
    """The problem with its clients, and their ids, in another order."""
    ids = [problem.ids[k] for k in order]
    sizes = problem.sizes[order].tolist()
    return Quadratics(problem.H[order], problem.b[order], sizes, ids=ids, initial=START)


def shifted(problem: Quadratics, by: Tensor) -> Quadratics:
    """The problem with every loss and the initial model shifted by a vector."""
    b = problem.b + problem.H @ by
    return Quadratics(problem.H, b, problem.sizes.tolist(), initial=START + by)


def agreeing(problem: Quadratics) -> Quadratics:
    """The problem with one common minimiser for all clients: the initial model."""
    return Quadratics(problem.H, problem.H @ START, problem.sizes.tolist(), initial=START)


def opposed() -> Quadratics:
    """Clients that pull in opposite directions: the average moves little, the clients far."""
    problem = quadratics()
    signs = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64)[:, None]
    b = 5 * signs * problem.b[:1]
    return Quadratics(problem.H, b, problem.sizes.tolist(), initial=START)


def slope() -> Quadratics:
    """Two equal clients with the same linear loss −b·x, whose gradient −b is constant."""
    b = torch.tensor([-1.0, 2.0, -0.5], dtype=torch.float64).expand(2, -1)
    return Quadratics(torch.zeros(2, 3, 3, dtype=torch.float64), b, [10, 10], initial=START)


def identical(problem: Quadratics, clients: int, sizes: list[int]) -> Quadratics:
    """A problem whose clients all have the loss of the first one."""
    H = problem.H[:1].expand(clients, -1, -1)
    return Quadratics(H, problem.b[:1].expand(clients, -1), sizes, initial=START)


class ConstantModel(nn.Module):
    """A model whose output is its parameter w, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(START.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w.expand(len(inputs), -1)


class PartlyPersonal(ConstantModel):
    """The constant model with an offset or a normalisation that may be personal.

    `gain` 0 makes that part idle: the output, and with it the shared gradient, is as without it.
    """

    def __init__(self, normalised: bool, gain: float):
        super().__init__()
        self.gain = gain
        if normalised:
            self.norm = nn.BatchNorm1d(3, dtype=torch.float64)
        else:
            self.offset = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        if hasattr(self, "norm"):
            return outputs + self.gain * self.norm(inputs.double().expand(-1, 3))
        return outputs + self.gain * self.offset


def half_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """½|outputs − targets|², averaged over samples."""
    return (outputs - targets).square().sum(1).mean() / 2


def points(sizes: list[int]) -> tuple[ModuleLosses, Tensor]:
    """f_k(x) = ½|x − e_k|² as a network on n_k copies of e_k, and the e_k.

    All batches of a client have the same gradient, so minibatch SGD takes exact gradient steps and
    the batch size determines only the number of steps.
    """
    e = torch.as_tensor(generator(7, "points").normal(0, 1, (len(sizes), 3)))
    clients = [(torch.zeros(n, 1), e[k].expand(n, -1)) for k, n in enumerate(sizes)]
    return ModuleLosses(ConstantModel(), FederatedData.from_clients(clients), half_squared), e


def with_personal_part(way: str, model: str, personal: Personal | None) -> ModuleLosses:
    """The points of `points` for a model with a part that is personal in one of the ways.

    `model` is "plain" (without that part), "idle" (the output does not depend on it) or "acting".
    """
    e = torch.as_tensor(generator(7, "points").normal(0, 1, (len(SIZES), 3)))
    clients = [(torch.arange(n).double()[:, None], e[k].expand(n, -1)) for k, n in enumerate(SIZES)]
    gain = 1.0 if model == "acting" else 0.0
    module = ConstantModel() if model == "plain" else PartlyPersonal(way == "FedBN", gain)
    data = FederatedData.from_clients(clients)
    return ModuleLosses(module, data, half_squared, personal=personal)


def with_batchnorm() -> tuple[ModuleLosses, list[np.ndarray]]:
    """A network with BatchNorm, and the clients' inputs.

    momentum=1 makes the running statistics those of the last batch, which a test can compute.
    """
    rng = generator(7, "batchnorm")
    inputs = [rng.normal(k, 1 + k, (n, 2)) for k, n in enumerate(SIZES)]
    clients = [(torch.as_tensor(x), torch.arange(len(x)) % 2) for x in inputs]
    linear = nn.Linear(2, 2, device="meta").to_empty(device="cpu")
    nn.init.constant_(linear.weight, 0.1)
    nn.init.zeros_(linear.bias)
    model = nn.Sequential(nn.BatchNorm1d(2, momentum=1.0), linear).double()
    return ModuleLosses(model, FederatedData.from_clients(clients)), inputs
