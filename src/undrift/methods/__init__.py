"""Federated methods, one file each.

A method is flat-vector algebra: a local problem, what a client uploads and keeps, and a fold.
"""

from undrift.core.method import INITIAL, NUMBER, ZERO, Conditions, Method
from undrift.methods.asynchronous.fedasync import FedAsync
from undrift.methods.asynchronous.fedbuff import FedBuff
from undrift.methods.averaging.fedacg import FedACG
from undrift.methods.averaging.fedavg import DistributedSGD, FedAvg, FedAvgMin
from undrift.methods.averaging.fedcm import FedCM
from undrift.methods.averaging.fedexp import FedExP
from undrift.methods.averaging.fedlga import FedLGA
from undrift.methods.averaging.fednova import FedNova
from undrift.methods.averaging.fedprox import FedProx
from undrift.methods.averaging.fedsam import FedSAM
from undrift.methods.averaging.mimelite import MimeLite
from undrift.methods.common.averaging import Averaging
from undrift.methods.control_variates.fedvarp import MIFA, FedVARP
from undrift.methods.control_variates.scaffnew import Scaffnew
from undrift.methods.control_variates.scaffold import SCAFFOLD
from undrift.methods.control_variates.vrlsgd import VRLSGD
from undrift.methods.personal.alone import Alone
from undrift.methods.personal.ditto import Ditto
from undrift.methods.personal.pfedme import PFedMe
from undrift.methods.primal_dual.fedadmm import FedADMM
from undrift.methods.primal_dual.feddr import AsyncFedDR, FedDR
from undrift.methods.primal_dual.feddyn import FedDyn
from undrift.methods.primal_dual.fedpd import FedPD
from undrift.methods.primal_dual.fedspeed import FedSpeed
from undrift.methods.primal_dual.fedsplit import FedSplit

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
        FedADMM,
        FedVARP,
        MIFA,
        Scaffnew,
        FedCM,
        FedACG,
        FedExP,
        MimeLite,
        FedSAM,
        FedSpeed,
        FedLGA,
        Ditto,
        PFedMe,
        AsyncFedDR,
        FedAsync,
        FedBuff,
    )
}
"""Every method of the library by its name, as experiment files and `undrift list` show them."""

__all__ = [
    "INITIAL",
    "METHODS",
    "MIFA",
    "NUMBER",
    "SCAFFOLD",
    "VRLSGD",
    "ZERO",
    "Alone",
    "AsyncFedDR",
    "Averaging",
    "Conditions",
    "DistributedSGD",
    "Ditto",
    "FedACG",
    "FedADMM",
    "FedAsync",
    "FedAvg",
    "FedAvgMin",
    "FedBuff",
    "FedCM",
    "FedDR",
    "FedDyn",
    "FedExP",
    "FedLGA",
    "FedNova",
    "FedPD",
    "FedProx",
    "FedSAM",
    "FedSpeed",
    "FedSplit",
    "FedVARP",
    "Method",
    "MimeLite",
    "PFedMe",
    "Scaffnew",
]
