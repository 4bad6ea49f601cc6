"""`Plan`: several runs on the same clients, every method with every seed.

Python arguments (`undrift.api`) and experiment files (`undrift.runs.experiment_runs`) both become a
plan, which `undrift.runs.driver` executes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undrift.compression import Compression
from undrift.core.evaluation import Evaluation
from undrift.core.losses import Federation
from undrift.core.method import Method
from undrift.core.sampling import Sampler
from undrift.core.targets import Target
from undrift.core.uploads import Statistic, UploadTransform
from undrift.core.uploads.norm_bounds import NormBound
from undrift.devices import Profiles
from undrift.engines import EngineOptions
from undrift.local.solvers import Local
from undrift.loops import Callback, Loop, RunSpec, StatesFactory, loop
from undrift.loops.comparison import same_regularizer, shared_sampler
from undrift.loops.paces import Pace
from undrift.loops.planning import Limit
from undrift.loops.private_rounds import deployed_evaluation, private_evaluation
from undrift.privacy.gaussian import Gaussian
from undrift.robust.attacks import Attack
from undrift.utils.errors import require, require_type, require_whole

LoopFactory = Callable[[str, RunSpec, StatesFactory], Loop]
"""Builds the loop of a run from its label, its spec and the container of client states."""


@dataclass(frozen=True)
class Plan:
    """Every method with every seed; runs with the same seed have the same cohorts and batches.

    Parameters
    ----------
    methods, local
        the methods by label, and the local work of each
    losses
        a function that returns the clients' losses of a seed, with the initial model
    rounds, seeds
        the number of rounds of each run, and the seeds to run every method with
    cohort
        the number of clients in a round, or a sampler; None for all clients
    objective, evaluation, limit, devices, target, callbacks, transforms, compression, robust, \
    statistic, attack, privacy
        as in `RunSpec`, the same for all methods
    paces
        the paces by label; methods without an entry have their default pace
    engine
        the engine of a simulation
    description
        the settings as plain values, for loggers and for the run folder
    make_loop
        builds the loops of a deployment; None for a simulation
    """

    methods: Mapping[str, Method]
    losses: Callable[[int], Federation]
    local: Mapping[str, Local]
    rounds: int = 100
    seeds: Sequence[int] = (0,)
    cohort: int | Sampler | None = None
    objective: str = "samples"
    evaluation: Evaluation = field(default_factory=Evaluation)
    limit: Limit | None = None
    devices: Profiles | None = None
    paces: Mapping[str, Pace] = field(default_factory=dict)
    target: Mapping[str, Target] = field(default_factory=dict)
    callbacks: Sequence[Callback] = ()
    transforms: Sequence[UploadTransform] = ()
    compression: Compression | None = None
    robust: NormBound | None = None
    statistic: Statistic | None = None
    attack: Attack | None = None
    privacy: Gaussian | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    description: Mapping[str, Any] = field(default_factory=dict)
    make_loop: LoopFactory | None = None

    def __post_init__(self) -> None:
        require(len(self.methods) > 0, "There is no method to run.")
        for method in self.methods.values():
            require_type("A method", method, Method, "a method such as ud.FedAvg()")
        for label in self.methods:
            require(label in self.local, f"The local work of the method {label!r} is missing.")
        require_whole("rounds", self.rounds, at_least=0)
        for seed in self.seeds:
            require_whole("seed", seed, at_least=0)
        same_regularizer(self.methods)

    def spec(self, label: str, seed: int, losses: Federation) -> RunSpec:
        """The spec of one method's run with one seed; `losses` are those of the seed."""
        return RunSpec(
            method=self.methods[label],
            losses=losses,
            local=self.local[label],
            sampler=shared_sampler(self.cohort, self.methods.values(), losses, self.objective),
            rounds=self.rounds,
            objective=self.objective,
            seed=seed,
            evaluation=self._evaluation(losses),
            limit=self.limit,
            target=self.target,
            callbacks=self.callbacks,
            devices=self.devices,
            pace=self.paces.get(label),
            transforms=self.transforms,
            compression=self.compression,
            robust=self.robust,
            statistic=self.statistic,
            attack=self.attack,
            privacy=self.privacy,
        )

    def _evaluation(self, losses: Federation) -> Evaluation:
        """What runs measure: a private run leaves out what its guarantee does not cover."""
        if self.make_loop is not None:  # as every site derives it, whatever the parts of its data
            return deployed_evaluation(self.evaluation, self.privacy)
        parts = losses.parts, losses.common_parts
        return private_evaluation(self.evaluation, self.privacy, *parts)

    def loop(self, label: str, spec: RunSpec, states: StatesFactory) -> Loop:
        """The loop that executes a run of this plan."""
        if self.make_loop is not None:
            return self.make_loop(label, spec, states)
        return loop(spec, self.engine, states)
