"""Federated data: the papers' data sets, partitions over clients, and users' own data."""

from undrift.data.augmentation import (
    Augmentation,
    HorizontalFlip,
    RandomCrop,
    ReflectedCrop,
    Transform,
)
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
from undrift.data.samples.mapped import mapped
from undrift.data.samples.reading import Lazy
from undrift.data.sizes import SIZES, Balanced, DirichletSizes, Given, LogNormal, PowerLaw, Sizes
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
    "DirichletSizes",
    "FederatedData",
    "Given",
    "HorizontalFlip",
    "Lazy",
    "LogNormal",
    "Natural",
    "Part",
    "Partition",
    "PowerLaw",
    "RandomCrop",
    "ReflectedCrop",
    "Sizes",
    "Split",
    "Transform",
    "cifar10",
    "cifar100",
    "digits",
    "emnist",
    "emnist_l",
    "fashion_mnist",
    "feddyn_synthetic",
    "femnist",
    "mapped",
    "mnist",
    "shakespeare",
    "synthetic",
]
