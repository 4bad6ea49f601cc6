"""`RunSpec`: the complete description of one run, built from Python arguments or from a file.

A loop gets everything that decides the result from a `RunSpec`. Engines, stores and observers are
passed separately: they change how a run is computed, stored and shown, never its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from undrift.compression import Compression
from undrift.core.clients import ClientStates
from undrift.core.evaluation import Evaluation
from undrift.core.losses import Federation
from undrift.core.method import Method
from undrift.core.records import Record
from undrift.core.sampling import Sampler
from undrift.core.targets import Target
from undrift.core.uploads import Statistic, UploadTransform
from undrift.core.uploads.norm_bounds import NormBound
from undrift.devices import Profiles
from undrift.engines.base import Engine, Job
from undrift.local.solvers import Local
from undrift.loops.paces import AsTheyArrive, Pace, WaitForAll
from undrift.loops.planning import Limit
from undrift.privacy.gaussian import Gaussian
from undrift.robust.attacks import Attack
from undrift.utils.errors import require_whole

if TYPE_CHECKING:
    from undrift.loops.base import Loop

Callback = Callable[["Loop", Record], bool | None]
"""A function called after every round; returning True ends the run."""

EngineFactory = Callable[[Federation, Job], Engine]
"""Builds the engine of a run; `EngineOptions` is one."""

StatesFactory = Callable[[Mapping[str, str | Tensor], Tensor], ClientStates]
"""Builds the container of the clients' states from their kinds and the initial model."""


@dataclass(frozen=True)
class RunSpec:
    """One run: a method with a seed on the clients' losses.

    Parameters
    ----------
    method, losses, local, sampler
        the method, the clients' losses, their local work, and who takes part in a round; in a
        deployment the losses are at the sites, and `losses` only knows the clients and the model
    rounds
        the number of rounds
    objective
        "samples", q_k = n_k/n, or "clients", q_k = 1/N
    seed
        the seed of all random numbers: cohorts, batches, devices
    evaluation
        what is measured, and how often
    limit
        the most work a client can do in a round; None for all of it
    target
        metrics that end the run once they are reached
    callbacks
        functions of (loop, record), called after every round
    devices
        the device profiles of the clients; None for no virtual clock
    pace
        when the server goes on; None for the method's default
    transforms
        upload transforms of the user's own, applied in this order between `finish` and `fold`;
        those of `compression` and `privacy` follow, see `undrift.loops.upload_transforms`
    compression
        how uploads and downloads are compressed; None for not at all
    robust
        which uploads the server rejects for their size; None for none
    statistic
        the robust statistic in place of the mean of uploads; None for the mean
    attack
        what some clients of a simulation send in place of their uploads; None for no attack
    privacy
        client-level differential privacy; None for none
    """

    method: Method
    losses: Federation
    local: Local
    sampler: Sampler
    rounds: int
    objective: str = "samples"
    seed: int = 0
    evaluation: Evaluation = field(default_factory=Evaluation)
    limit: Limit | None = None
    target: Mapping[str, Target] = field(default_factory=dict)
    callbacks: Sequence[Callback] = ()
    devices: Profiles | None = None
    pace: Pace | None = None
    transforms: Sequence[UploadTransform] = ()
    compression: Compression | None = None
    robust: NormBound | None = None
    statistic: Statistic | None = None
    attack: Attack | None = None
    privacy: Gaussian | None = None

    def __post_init__(self) -> None:
        require_whole("rounds", self.rounds, at_least=0)
        for metric in self.target:
            self.evaluation.require_measured("The target", metric)

    @property
    def effective_pace(self) -> Pace:
        """The given pace, or the method's default."""
        return pace_of(self.method, self.pace)


def pace_of(method: Method, pace: Pace | None) -> Pace:
    """The given pace; if None, the method's default."""
    if pace is not None:
        return pace
    return AsTheyArrive() if method.meant_asynchronous else WaitForAll()
