"""undrift: federated learning over heterogeneous clients, with the answer the papers promise."""

from undrift import data, devices, models, schedules, server, theory
from undrift.advice import Advice, advise
from undrift.amounts import NormalAmount, Unfinished, UniformAmount
from undrift.devices import DeviceClasses, DeviceFile, Devices
from undrift.engines import EngineOptions
from undrift.errors import Diverged, UndriftError
from undrift.evaluation import Evaluation
from undrift.methods import (
    INITIAL,
    METHODS,
    NUMBER,
    SCAFFOLD,
    VRLSGD,
    ZERO,
    AsyncFedDR,
    Averaging,
    DistributedSGD,
    FedAsync,
    FedAvg,
    FedAvgMin,
    FedBuff,
    FedDR,
    FedDyn,
    FedLGA,
    FedNova,
    FedPD,
    FedProx,
    FedSplit,
    Method,
    staleness,
)
from undrift.paces import AsTheyArrive, Deadline, FirstToRespond, WaitForAll
from undrift.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    Server,
    Upload,
)
from undrift.regularizers import L1, L2, Box, Regularizer
from undrift.replies import Replies, draws, once, q
from undrift.result import Comparison, Result
from undrift.sampling import All, Bernoulli, Fixed, Uniform, Weighted
from undrift.schedules import Constant, Exponential, Inverse, Milestones, Theorem1
from undrift.solvers import GD, SGD, Exact, PerClient
from undrift.training import centralised, compare, train

__version__ = "0.1.0"

__all__ = [
    "GD",
    "INITIAL",
    "L1",
    "L2",
    "METHODS",
    "NUMBER",
    "SCAFFOLD",
    "SGD",
    "VRLSGD",
    "ZERO",
    "Advice",
    "All",
    "AsTheyArrive",
    "AsyncFedDR",
    "Averaging",
    "Bernoulli",
    "Box",
    "Client",
    "Comparison",
    "Constant",
    "Deadline",
    "DeviceClasses",
    "DeviceFile",
    "Devices",
    "DistributedSGD",
    "Diverged",
    "Download",
    "EngineOptions",
    "Evaluation",
    "Exact",
    "Exponential",
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
    "FirstToRespond",
    "Fixed",
    "Inverse",
    "Keep",
    "LocalProblem",
    "LocalResult",
    "Method",
    "Milestones",
    "NormalAmount",
    "PerClient",
    "Regularizer",
    "Replies",
    "Result",
    "Server",
    "Theorem1",
    "UndriftError",
    "Unfinished",
    "Uniform",
    "UniformAmount",
    "Upload",
    "WaitForAll",
    "Weighted",
    "advise",
    "centralised",
    "compare",
    "data",
    "devices",
    "draws",
    "models",
    "once",
    "q",
    "schedules",
    "server",
    "staleness",
    "theory",
    "train",
]
