"""Builds the loops of a deployment before any site is asked for anything.

A run that is not defined, such as one that is private with a method that uploads plain numbers,
is refused here with the sentence of the real loop, before sites have sent descriptions of
themselves and statistics of their data.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence

from torch import nn

from undrift.core.clients import ClientStates
from undrift.core.losses import Federation
from undrift.core.targets import PARTS
from undrift.deploy.federation import RemoteFederation
from undrift.deploy.loops import DeployedAsynchronous, DeployedSynchronous
from undrift.deploy.remote import RemoteEngine
from undrift.deploy.transport import Answer, Transport
from undrift.engines.base import Job
from undrift.experiments.experiment import Experiment
from undrift.loops import Loop, RunSpec, StatesFactory
from undrift.loops.paces import AsTheyArrive
from undrift.runs.experiment_runs import plan_of

STAND_IN_SAMPLES = 1_000_000
"""How many samples each site is taken to have: too few could be refused where a run is not."""


class Nobody(Transport):
    """A transport without sites."""

    def sites(self) -> Collection[str]:
        return ()

    def send(self, site: str, request: bytes, seconds: float, max_bytes: int) -> str:
        raise AssertionError("a rehearsal asks no site")

    def next(self, seconds: float) -> Answer | None:
        return None

    def forget(self, ticket: str) -> None:
        pass


def rehearse(experiment: Experiment, sites: Sequence[str]) -> None:
    """Build the loop of every method with a small model; an error if one is not defined.

    What depends on the model or on the sites' numbers of samples is checked when the run begins.
    """
    samples: Mapping[str, Mapping[str, int]] = {
        site: dict.fromkeys(PARTS, STAND_IN_SAMPLES) for site in sites
    }

    def federation(seed: int) -> RemoteFederation:
        return RemoteFederation(nn.Linear(2, 2), samples, ())

    plan = plan_of(experiment, federation, _loop)
    seed = experiment.seeds[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the loop of the run warns again
        for label in plan.methods:
            plan.loop(label, plan.spec(label, seed, federation(seed)), ClientStates)


def _loop(label: str, spec: RunSpec, states: StatesFactory) -> Loop:
    pace = spec.effective_pace

    def engine(losses: Federation, job: Job) -> RemoteEngine:
        assert isinstance(losses, RemoteFederation)
        return RemoteEngine(losses, job, Nobody(), "", label, spec.rounds, 1, 1.0, pace)

    kind = DeployedAsynchronous if isinstance(pace, AsTheyArrive) else DeployedSynchronous
    return kind(spec, engine, states)
