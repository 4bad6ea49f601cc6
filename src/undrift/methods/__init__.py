"""Federated methods, one file each.

A method is flat-vector algebra: a local problem, what a client uploads and keeps, and a fold.
"""

from undrift.core.method import INITIAL, NUMBER, ZERO, Conditions, Method
from undrift.methods.common.averaging import Averaging
from undrift.methods.fedasync import FedAsync
from undrift.methods.fedavg import DistributedSGD, FedAvg, FedAvgMin
from undrift.methods.fedbuff import FedBuff
from undrift.methods.feddr import AsyncFedDR, FedDR
from undrift.methods.feddyn import FedDyn
from undrift.methods.fedlga import FedLGA
from undrift.methods.fednova import FedNova
from undrift.methods.fedpd import FedPD
from undrift.methods.fedprox import FedProx
from undrift.methods.fedsplit import FedSplit
from undrift.methods.scaffold import SCAFFOLD
from undrift.methods.vrlsgd import VRLSGD

METHODS: dict[str, type[Method]] = {
    method.__name__: method
    for method in (
        DistributedSGD,
        FedAvg,
        FedProx,
        SCAFFOLD,
        VRLSGD,
        FedNova,
        FedAvgMin,
        FedDyn,
        FedPD,
        FedSplit,
        FedDR,
        FedLGA,
        AsyncFedDR,
        FedAsync,
        FedBuff,
    )
}
"""Every method of the library by its name, as experiment files and `undrift list` show them."""

__all__ = [
    "INITIAL",
    "METHODS",
    "NUMBER",
    "SCAFFOLD",
    "VRLSGD",
    "ZERO",
    "AsyncFedDR",
    "Averaging",
    "Conditions",
    "DistributedSGD",
    "FedAsync",
    "FedAvg",
    "FedAvgMin",
    "FedBuff",
    "FedDR",
    "FedDyn",
    "FedLGA",
    "FedNova",
    "FedPD",
    "FedProx",
    "FedSplit",
    "Method",
]
