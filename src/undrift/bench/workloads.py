"""The workloads of `undrift bench`, on random data of the right shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from undrift.bench import networks
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.local.solvers import SGD
from undrift.nets import models


@dataclass(frozen=True)
class Workload:
    """A model, clients of equal size and their local work, which is plain SGD.

    `target`: how many times as fast as the bare loop FedAvg should be. `allowance`: how many times
    as long as FedAvg's another method's round may take; None without a limit.
    """

    name: str
    is_about: str
    stands_for: str
    model: Callable[[], nn.Module]
    clients: int
    samples: int
    """samples of each client"""
    shape: tuple[int, ...]
    """shape of one input"""
    classes: int
    cohort: int
    batch: int
    epochs: int
    lr: float
    target: float
    allowance: float | None = None
    vocabulary: int | None = None
    """inputs are integers below this number; None: real numbers in [0, 1)"""
    reconstructs: bool = False
    """whether the targets are the inputs, with squared error, instead of classes"""

    @property
    def steps(self) -> int:
        """Steps of a client in a round."""
        return self.epochs * -(-self.samples // self.batch)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        of = nn.functional.mse_loss if self.reconstructs else nn.functional.cross_entropy
        return of(outputs, targets)

    def local(self) -> SGD:
        """Return the clients' local work."""
        return SGD(lr=self.lr, batch_size=self.batch, epochs=self.epochs)

    def data(self, population: int | None = None) -> FederatedData:
        """Return random samples, in memory.

        In a population larger than the workload's own, clients share samples, so that memory does
        not grow with the population.
        """
        population = population or self.clients
        held = min(population, self.clients) * self.samples
        g = torch.Generator().manual_seed(0)
        if self.vocabulary is None:
            x = torch.rand(held, *self.shape, generator=g)
        else:
            x = torch.randint(self.vocabulary, (held, *self.shape), generator=g)
        y = x if self.reconstructs else torch.randint(self.classes, (held,), generator=g)
        rows = torch.arange(population * self.samples) % held
        bounds = torch.arange(population + 1) * self.samples
        return FederatedData(Part(x, y, rows, bounds), name=self.name)


_MNIST, _CIFAR = (1, 28, 28), (3, 32, 32)

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "W1",
            "logistic regression",
            "overhead-bound research loops",
            partial(models.logistic, 60, 10),
            clients=100,
            samples=100,
            shape=(60,),
            classes=10,
            cohort=30,
            batch=10,
            epochs=2,
            lr=0.1,
            target=25,
            allowance=1.3,
        ),
        Workload(
            "W2",
            "MLP on MNIST's shape",
            "the papers' MNIST",
            partial(models.mlp, 784, 200, 100, classes=10),
            clients=100,
            samples=600,
            shape=_MNIST,
            classes=10,
            cohort=10,
            batch=50,
            epochs=1,
            lr=0.05,
            target=2.8,
            allowance=1.2,
        ),
        Workload(
            "W3",
            "CNN on CIFAR's shape",
            "the papers' CIFAR",
            models.cifar_cnn,
            clients=100,
            samples=500,
            shape=_CIFAR,
            classes=10,
            cohort=10,
            batch=50,
            epochs=1,
            lr=0.05,
            target=1.45,
        ),
        Workload(
            "W4",
            "small MLP, 20 samples each",
            "many tiny clients",
            partial(models.mlp, 784, 64, classes=10),
            clients=10_000,
            samples=20,
            shape=_MNIST,
            classes=10,
            cohort=200,
            batch=10,
            epochs=1,
            lr=0.05,
            target=9,
        ),
        Workload(
            "W5",
            "CNN of pfl-research's benchmark",
            "the benchmark of pfl-research",
            models.pfl_cnn,
            clients=1000,
            samples=50,
            shape=_CIFAR,
            classes=10,
            cohort=50,
            batch=10,
            epochs=1,
            lr=0.1,
            target=1.8,
        ),
        Workload(
            "W6",
            "LSTM over 80 characters",
            "Shakespeare",
            models.char_lstm,
            clients=100,
            samples=200,
            shape=(80,),
            classes=80,
            cohort=10,
            batch=100,
            epochs=1,
            lr=0.5,
            target=1.7,
            vocabulary=80,
        ),
        Workload(
            "W7",
            "transformer over 64 bytes",
            "text",
            networks.transformer,
            clients=100,
            samples=100,
            shape=(64,),
            classes=10,
            cohort=10,
            batch=20,
            epochs=1,
            lr=0.05,
            target=1.9,
            vocabulary=256,
        ),
        Workload(
            "W8",
            "MLP of 10 million parameters",
            "large dense models",
            partial(models.mlp, 784, 2800, 2800, classes=10),
            clients=20,
            samples=200,
            shape=_MNIST,
            classes=10,
            cohort=4,
            batch=20,
            epochs=1,
            lr=0.05,
            target=1.3,
        ),
        Workload(
            "W9",
            "ResNet-18 with GroupNorm",
            "the field's standard network",
            models.resnet18,
            clients=20,
            samples=100,
            shape=_CIFAR,
            classes=10,
            cohort=4,
            batch=20,
            epochs=1,
            lr=0.05,
            target=1.6,
        ),
        Workload(
            "W10",
            "adapters of rank 4 in W7's transformer",
            "fine-tuning",
            networks.adapted_transformer,
            clients=100,
            samples=100,
            shape=(64,),
            classes=10,
            cohort=10,
            batch=20,
            epochs=1,
            lr=0.05,
            target=2.2,
            vocabulary=256,
        ),
    )
}
"""The workloads by name."""

FURTHER: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "X1",
            "MLP of ten narrow layers",
            "many operators, little arithmetic",
            partial(models.mlp, 64, *[32] * 10, classes=10),
            clients=100,
            samples=100,
            shape=(64,),
            classes=10,
            cohort=20,
            batch=20,
            epochs=1,
            lr=0.05,
            target=1,
        ),
        Workload(
            "X2",
            "wide CNN on FEMNIST's shape",
            "few channels in, a large dense layer",
            networks.wide_cnn,
            clients=100,
            samples=100,
            shape=_MNIST,
            classes=62,
            cohort=10,
            batch=20,
            epochs=1,
            lr=0.05,
            target=1,
        ),
        Workload(
            "X3",
            "LSTM over 30 measurements",
            "short time series",
            networks.series_classifier,
            clients=100,
            samples=64,
            shape=(30, 8),
            classes=5,
            cohort=20,
            batch=16,
            epochs=1,
            lr=0.05,
            target=1,
        ),
        Workload(
            "X4",
            "CNN with BatchNorm",
            "buffers that training changes",
            networks.batch_norm_cnn,
            clients=50,
            samples=100,
            shape=_CIFAR,
            classes=10,
            cohort=6,
            batch=20,
            epochs=1,
            lr=0.05,
            target=1,
        ),
        Workload(
            "X5",
            "autoencoder with squared error",
            "regression",
            networks.autoencoder,
            clients=100,
            samples=200,
            shape=(784,),
            classes=0,
            cohort=10,
            batch=20,
            epochs=1,
            lr=0.05,
            target=1,
            reconstructs=True,
        ),
    )
}
"""Models that no target was set for: undrift must not be slower than the bare loop on them."""
