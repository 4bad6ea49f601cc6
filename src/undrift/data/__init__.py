"""Federated data: the papers' data sets, partitions over clients, and users' own data."""

from undrift.data.augmentation import Augmentation, HorizontalFlip, RandomCrop
from undrift.data.description import Description
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.data.partitions import (
    IID,
    PARTITIONS,
    Classes,
    Dirichlet,
    DirichletPerClass,
    Natural,
    Partition,
    Split,
)
from undrift.data.sizes import SIZES, Balanced, Given, LogNormal, PowerLaw, Sizes
from undrift.data.sources import (
    SOURCES,
    cifar10,
    cifar100,
    digits,
    emnist,
    emnist_l,
    fashion_mnist,
    feddyn_synthetic,
    femnist,
    mnist,
    shakespeare,
    synthetic,
)

__all__ = [
    "IID",
    "PARTITIONS",
    "SIZES",
    "SOURCES",
    "Augmentation",
    "Balanced",
    "Classes",
    "Description",
    "Dirichlet",
    "DirichletPerClass",
    "FederatedData",
    "Given",
    "HorizontalFlip",
    "LogNormal",
    "Natural",
    "Part",
    "Partition",
    "PowerLaw",
    "RandomCrop",
    "Sizes",
    "Split",
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
