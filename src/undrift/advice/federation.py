"""The federation that advice is about: everything that `train` takes except the method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from undrift.api import Options, check_arguments, losses_of
from undrift.core.clients import Roster
from undrift.core.losses import Losses
from undrift.core.regularizers import Regularizer
from undrift.core.sampling import Sampler, as_sampler
from undrift.data.federated import FederatedData
from undrift.devices import Profiles
from undrift.local.solvers import SGD, Local
from undrift.loops.paces import AsTheyArrive, Pace
from undrift.loops.planning import Limit
from undrift.methods import FedAvg
from undrift.nets.module_losses import ModuleLosses
from undrift.privacy.gaussian import Gaussian
from undrift.utils.errors import require, require_type


@dataclass(frozen=True)
class FederationSetup:
    """Clients with losses, local work and devices, before a method is chosen."""

    losses: Losses
    local: Local | None
    """None if the learning rate is to be proposed"""
    rounds: int = 100
    cohort: int | Sampler | None = None
    objective: str = "samples"
    seed: int = 0
    limit: Limit | None = None
    devices: Profiles | None = None
    pace: Pace | None = None
    regularizer: Regularizer | None = None
    stateless: bool = False
    privacy: Gaussian | None = None

    @cached_property
    def roster(self) -> Roster:
        """The clients and their weights q_k."""
        return Roster(self.losses.ids, self.losses.sizes, self.objective)

    @property
    def data(self) -> FederatedData | None:
        """The data; None for an analytic problem."""
        return self.losses.data if isinstance(self.losses, ModuleLosses) else None

    @property
    def sampler(self) -> Sampler:
        """The sampler; a number of clients is drawn uniformly."""
        return as_sampler(self.cohort, by_weight=False)

    @property
    def asynchronous(self) -> bool:
        """Whether training is asynchronous."""
        return isinstance(self.pace, AsTheyArrive)

    @cached_property
    def x0(self) -> Tensor:
        """The initial model, flat."""
        return self.losses.initial()

    @property
    def solver(self) -> Local:
        """The local work, once its learning rate is known."""
        assert self.local is not None
        return self.local


def federation_of(
    options: Options, regularizer: Regularizer | None, stateless: bool
) -> FederationSetup:
    """The federation that the arguments of `train` describe."""
    check_arguments({"FedAvg": FedAvg()}, options)
    pace, local = options.get("pace"), options.get("local")
    require(
        not isinstance(pace, Mapping),
        "pace must be one pace or none here: there are no methods yet that a mapping could name.",
    )
    assert not isinstance(pace, Mapping)
    if local is not None:
        require_type("local", local, Local, "what clients run, e.g. ud.SGD(lr=0.01, epochs=5)")
        assert isinstance(local, Local)
    if regularizer is not None:
        require_type("regularizer", regularizer, Regularizer, "ud.L1(…), ud.L2(…) or ud.Box(…)")
    require_type("stateless", stateless, bool, "True or False")
    losses = losses_of(options)
    found = FederationSetup(
        losses=losses,
        local=local,
        rounds=options.get("rounds", 100),
        cohort=options.get("cohort"),
        objective=options.get("objective", "samples"),
        seed=options.get("seed", 0),
        limit=options.get("limit"),
        devices=options.get("devices"),
        pace=pace,
        regularizer=regularizer,
        stateless=stateless,
        privacy=options.get("privacy"),
    )
    found.sampler.check(found.roster)
    return found


def usual_work(lr: float) -> SGD:
    """The proposed local work if none was given: one epoch."""
    return SGD(lr=lr, epochs=1)
