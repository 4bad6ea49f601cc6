"""undrift: federated learning over heterogeneous clients, with the answer the papers promise."""

from undrift import data, models, schedules, server, theory
from undrift.errors import Diverged, UndriftError
from undrift.evaluation import Evaluation
from undrift.methods import (
    INITIAL,
    METHODS,
    NUMBER,
    SCAFFOLD,
    VRLSGD,
    ZERO,
    Averaging,
    DistributedSGD,
    FedAvg,
    FedAvgMin,
    FedDR,
    FedDyn,
    FedLGA,
    FedNova,
    FedPD,
    FedProx,
    FedSplit,
    Method,
)
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
    "All",
    "Averaging",
    "Bernoulli",
    "Box",
    "Client",
    "Comparison",
    "Constant",
    "DistributedSGD",
    "Diverged",
    "Download",
    "Evaluation",
    "Exact",
    "Exponential",
    "FedAvg",
    "FedAvgMin",
    "FedDR",
    "FedDyn",
    "FedLGA",
    "FedNova",
    "FedPD",
    "FedProx",
    "FedSplit",
    "Fixed",
    "Inverse",
    "Keep",
    "LocalProblem",
    "LocalResult",
    "Method",
    "Milestones",
    "PerClient",
    "Regularizer",
    "Replies",
    "Result",
    "Server",
    "Theorem1",
    "UndriftError",
    "Uniform",
    "Upload",
    "Weighted",
    "centralised",
    "compare",
    "data",
    "draws",
    "models",
    "once",
    "q",
    "schedules",
    "server",
    "theory",
    "train",
]
