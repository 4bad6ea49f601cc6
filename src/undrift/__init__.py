"""undrift: federated learning over heterogeneous clients, with the answer the papers promise.

`import undrift as ud` gives the names in `__all__`. They are imported on first use, so that the
command line can print help and complete words without waiting for torch.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from undrift.utils.renamed import RENAMED, OldModules, warn_of_old_name

__version__ = "0.2.0"

# fmt: off
_HOMES: dict[str, tuple[str, ...]] = {
    "undrift.api": ("train", "compare", "centralised", "alone", "resume"),
    "undrift.methods": (
        "METHODS", "FedAvg", "FedAvgMin", "DistributedSGD", "FedProx", "SCAFFOLD", "VRLSGD",
        "FedNova", "FedDyn", "FedPD", "FedSplit", "FedDR", "AsyncFedDR", "FedLGA", "FedAsync",
        "FedBuff", "FedADMM", "FedVARP", "MIFA", "Scaffnew", "FedCM", "FedACG", "FedExP",
        "MimeLite", "FedSAM", "FedSpeed", "Ditto", "PFedMe", "Alone", "Averaging",
    ),
    "undrift.core.method": ("Coincidence", "Method", "ZERO", "INITIAL", "NUMBER"),
    "undrift.core.problem": (
        "Ascent", "Client", "Download", "Keep", "LocalProblem", "LocalResult", "ServerState",
        "Upload",
    ),
    "undrift.core.replies": ("Replies", "draws", "once", "q"),
    "undrift.core.regularizers": ("Regularizer", "L1", "L2", "Box"),
    "undrift.core.sampling": ("Sampler", "All", "Bernoulli", "Fixed", "Uniform", "Weighted"),
    "undrift.core.evaluation": ("Evaluation",),
    "undrift.core.uploads": ("Senders", "UploadTransform"),
    "undrift.core.uploads.norm_bounds": ("NormBound",),
    "undrift.local.solvers": ("SGD", "GD", "Exact", "PerClient"),
    "undrift.local.adaptive": ("Adam", "AdamW", "TorchOptimizer"),
    "undrift.local.amounts": ("NormalAmount", "Unfinished", "UniformAmount"),
    "undrift.local.schedules": (
        "Schedule", "Constant", "Cosine", "Exponential", "Inverse", "Milestones", "Theorem1",
        "WarmUp",
    ),
    "undrift.devices": ("Devices", "DeviceClasses", "DeviceFile"),
    "undrift.loops.paces": ("WaitForAll", "Deadline", "FirstToRespond", "AsTheyArrive"),
    "undrift.engines": ("EngineOptions",),
    "undrift.nets.personal": ("Personal",),
    "undrift.report.result": ("Result", "Comparison"),
    "undrift.advice": ("Advice", "advise"),
    "undrift.utils.errors": ("UndriftError", "Diverged"),
}
"""Where each public name is defined."""
# fmt: on

_NAMESPACES = {
    "attacks": "undrift.robust.attacks",
    "compression": "undrift.compression",
    "data": "undrift.data",
    "devices": "undrift.devices",
    "metrics": "undrift.nets.metrics",
    "models": "undrift.nets.models",
    "privacy": "undrift.privacy",
    "robust": "undrift.robust",
    "schedules": "undrift.local.schedules",
    "server": "undrift.methods.common.server_optimizers",
    "staleness": "undrift.methods.common.staleness",
    "theory": "undrift.theory",
}
"""Public modules under their short names: `ud.models`, `ud.data`, …"""

_MODULE_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted({*_MODULE_OF, *_NAMESPACES})

if TYPE_CHECKING:  # the same names for type checkers, editors and the API reference
    from undrift import compression as compression
    from undrift import data as data
    from undrift import devices as devices
    from undrift import privacy as privacy
    from undrift import robust as robust
    from undrift import theory as theory
    from undrift.advice import Advice as Advice
    from undrift.advice import advise as advise
    from undrift.api import alone as alone
    from undrift.api import centralised as centralised
    from undrift.api import compare as compare
    from undrift.api import resume as resume
    from undrift.api import train as train
    from undrift.core.evaluation import Evaluation as Evaluation
    from undrift.core.method import INITIAL as INITIAL
    from undrift.core.method import NUMBER as NUMBER
    from undrift.core.method import ZERO as ZERO
    from undrift.core.method import Coincidence as Coincidence
    from undrift.core.method import Method as Method
    from undrift.core.problem import Ascent as Ascent
    from undrift.core.problem import Client as Client
    from undrift.core.problem import Download as Download
    from undrift.core.problem import Keep as Keep
    from undrift.core.problem import LocalProblem as LocalProblem
    from undrift.core.problem import LocalResult as LocalResult
    from undrift.core.problem import ServerState as ServerState
    from undrift.core.problem import Upload as Upload
    from undrift.core.regularizers import L1 as L1
    from undrift.core.regularizers import L2 as L2
    from undrift.core.regularizers import Box as Box
    from undrift.core.regularizers import Regularizer as Regularizer
    from undrift.core.replies import Replies as Replies
    from undrift.core.replies import draws as draws
    from undrift.core.replies import once as once
    from undrift.core.replies import q as q
    from undrift.core.sampling import All as All
    from undrift.core.sampling import Bernoulli as Bernoulli
    from undrift.core.sampling import Fixed as Fixed
    from undrift.core.sampling import Sampler as Sampler
    from undrift.core.sampling import Uniform as Uniform
    from undrift.core.sampling import Weighted as Weighted
    from undrift.core.uploads import Senders as Senders
    from undrift.core.uploads import UploadTransform as UploadTransform
    from undrift.core.uploads.norm_bounds import NormBound as NormBound
    from undrift.devices import DeviceClasses as DeviceClasses
    from undrift.devices import DeviceFile as DeviceFile
    from undrift.devices import Devices as Devices
    from undrift.engines import EngineOptions as EngineOptions
    from undrift.local import schedules as schedules
    from undrift.local.adaptive import Adam as Adam
    from undrift.local.adaptive import AdamW as AdamW
    from undrift.local.adaptive import TorchOptimizer as TorchOptimizer
    from undrift.local.amounts import NormalAmount as NormalAmount
    from undrift.local.amounts import Unfinished as Unfinished
    from undrift.local.amounts import UniformAmount as UniformAmount
    from undrift.local.schedules import Constant as Constant
    from undrift.local.schedules import Cosine as Cosine
    from undrift.local.schedules import Exponential as Exponential
    from undrift.local.schedules import Inverse as Inverse
    from undrift.local.schedules import Milestones as Milestones
    from undrift.local.schedules import Schedule as Schedule
    from undrift.local.schedules import Theorem1 as Theorem1
    from undrift.local.schedules import WarmUp as WarmUp
    from undrift.local.solvers import GD as GD
    from undrift.local.solvers import SGD as SGD
    from undrift.local.solvers import Exact as Exact
    from undrift.local.solvers import PerClient as PerClient
    from undrift.loops.paces import AsTheyArrive as AsTheyArrive
    from undrift.loops.paces import Deadline as Deadline
    from undrift.loops.paces import FirstToRespond as FirstToRespond
    from undrift.loops.paces import WaitForAll as WaitForAll
    from undrift.methods import METHODS as METHODS
    from undrift.methods import MIFA as MIFA
    from undrift.methods import SCAFFOLD as SCAFFOLD
    from undrift.methods import VRLSGD as VRLSGD
    from undrift.methods import Alone as Alone
    from undrift.methods import AsyncFedDR as AsyncFedDR
    from undrift.methods import Averaging as Averaging
    from undrift.methods import DistributedSGD as DistributedSGD
    from undrift.methods import Ditto as Ditto
    from undrift.methods import FedACG as FedACG
    from undrift.methods import FedADMM as FedADMM
    from undrift.methods import FedAsync as FedAsync
    from undrift.methods import FedAvg as FedAvg
    from undrift.methods import FedAvgMin as FedAvgMin
    from undrift.methods import FedBuff as FedBuff
    from undrift.methods import FedCM as FedCM
    from undrift.methods import FedDR as FedDR
    from undrift.methods import FedDyn as FedDyn
    from undrift.methods import FedExP as FedExP
    from undrift.methods import FedLGA as FedLGA
    from undrift.methods import FedNova as FedNova
    from undrift.methods import FedPD as FedPD
    from undrift.methods import FedProx as FedProx
    from undrift.methods import FedSAM as FedSAM
    from undrift.methods import FedSpeed as FedSpeed
    from undrift.methods import FedSplit as FedSplit
    from undrift.methods import FedVARP as FedVARP
    from undrift.methods import MimeLite as MimeLite
    from undrift.methods import PFedMe as PFedMe
    from undrift.methods import Scaffnew as Scaffnew
    from undrift.methods.common import server_optimizers as server  # noqa: F401
    from undrift.methods.common import staleness as staleness
    from undrift.nets import metrics as metrics
    from undrift.nets import models as models
    from undrift.nets.personal import Personal as Personal
    from undrift.report.result import Comparison as Comparison
    from undrift.report.result import Result as Result
    from undrift.robust import attacks as attacks
    from undrift.utils.errors import Diverged as Diverged
    from undrift.utils.errors import UndriftError as UndriftError


# `from undrift.models import mlp` works as `ud.models.mlp` does.
_SHORT_NAMES = {f"undrift.{name}": home for name, home in _NAMESPACES.items()}
sys.meta_path.append(OldModules(_SHORT_NAMES))


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        found: Any = import_module(_NAMESPACES[name])
    elif name in _MODULE_OF:
        found = getattr(import_module(_MODULE_OF[name]), name)
    elif f"undrift.{name}" in RENAMED:
        warn_of_old_name(f"undrift.{name}")
        return __getattr__(RENAMED[f"undrift.{name}"].rpartition(".")[2])
    else:
        near = [] if name.startswith("_") else get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
