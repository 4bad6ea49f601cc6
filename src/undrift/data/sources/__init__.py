"""The data sets of the papers: one function each, with a partition, a number of clients, a seed."""

from collections.abc import Callable

from undrift.data.federated import FederatedData
from undrift.data.sources.femnist import femnist
from undrift.data.sources.images import (
    cifar10,
    cifar100,
    digits,
    emnist,
    emnist_l,
    fashion_mnist,
    mnist,
)
from undrift.data.sources.shakespeare import shakespeare
from undrift.data.sources.synthetic import feddyn_synthetic, synthetic

SOURCES: dict[str, Callable[..., FederatedData]] = {
    "synthetic": synthetic,
    "feddyn-synthetic": feddyn_synthetic,
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "emnist": emnist,
    "emnist-l": emnist_l,
    "femnist": femnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "shakespeare": shakespeare,
}
"""Every source by its name in experiment files and on the command line."""

__all__ = [
    "SOURCES",
    "cifar10",
    "cifar100",
    "digits",
    "emnist",
    "emnist_l",
    "fashion_mnist",
    "feddyn_synthetic",
    "femnist",
    "mnist",
    "shakespeare",
    "synthetic",
]
