"""Runs for verification: stepped by hand, watched until they settle, compared."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.evaluation import Evaluation
from undrift.core.losses import Losses
from undrift.core.method import Conditions, Method
from undrift.core.sampling import All, Sampler, Uniform, Weighted
from undrift.devices import Devices, Ladder
from undrift.local.solvers import GD, Local
from undrift.loops import Asynchronous, Loop, RunSpec, Synchronous
from undrift.loops.planning import Limit
from undrift.utils.errors import UndriftError
from undrift.verify.problems import SIZES, STEPS
from undrift.verify.subjects import Subject

LR = 0.2
NEVER = Evaluation(every=10**9)


@dataclass(frozen=True)
class Finding:
    """One measurement: what should come out, what did, and how far apart they are."""

    expected: object
    measured: object
    error: float
    note: str = ""
    """where the largest error was found"""


def run_of(
    method: Method,
    losses: Losses,
    local: Local,
    sampler: Sampler = All(),
    objective: str = "samples",
    limit: Limit | None = None,
) -> Synchronous:
    """A run that is stepped by hand."""
    return Synchronous(
        RunSpec(
            method, losses, local, sampler, 10**9, objective, seed=1, evaluation=NEVER, limit=limit
        )
    )


def arriving(
    method: Method,
    losses: Losses,
    local: Local,
    sampler: Sampler = All(),
    objective: str = "samples",
) -> Asynchronous:
    """A run whose replies arrive one by one from unequal devices, stepped by hand."""
    devices = Devices(speed=Ladder(1, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # step sizes need not be those of a theorem here
        return Asynchronous(
            RunSpec(
                method,
                losses,
                local,
                sampler,
                10**9,
                objective,
                seed=1,
                evaluation=NEVER,
                devices=devices,
            )
        )


def path(run: Loop, rounds: int) -> Tensor:
    """The server's models over some rounds, `[rounds, P]`."""
    models = []
    for _ in range(rounds):
        run.step()
        models.append(run.server.x.clone())
    return torch.stack(models)


def settle(run: Loop, goal: Tensor, close: float, rounds: int = 4000) -> Tensor:
    """Where a run ends; it is watched until it is close to the goal or hopeless.

    To be close in time, it must come three times nearer in every 200 rounds. If its mean distance
    over them is not even half of that before, it has ended, or wanders, elsewhere.
    """
    before = math.inf
    distances: list[float] = []
    for t in range(rounds):
        run.step()
        if t % 20 == 19:
            distance = float((run.server.x - goal).norm())
            if distance < close / 20 or not distance < 1e6:
                break
            distances.append(distance)
        if len(distances) == 10:
            mean = sum(distances) / 10
            if mean > before / 2:
                break
            before, distances = mean, []
    return run.server.x


def allows(method: Method, sampler: Sampler, sizes: list[int], objective: str) -> bool:
    """Whether a method is defined for a sampling and an objective."""
    roster = Roster(list(range(len(sizes))), torch.tensor(sizes), objective)
    try:
        method.check(Conditions(len(sizes), sampler.participation, roster.equal, takes_steps=True))
    except UndriftError:
        return False
    return True


def partial(method: Method, objective: str = "samples") -> Sampler:
    """Cohorts of two of four clients, if the method allows them, else everyone."""
    for sampler in (Uniform(2), Weighted(2)):
        if allows(method, sampler, SIZES, objective):
            return sampler
    return All()


def common_objective(method: Method, sampler: Sampler) -> str:
    """ "samples" where the method is defined for it under a sampling, else "clients"."""
    return "samples" if allows(method, sampler, SIZES, "samples") else "clients"


def steps(subject: Subject) -> GD:
    """Gradient descent with unequal steps, where the method bears them."""
    return GD(lr=LR, steps=3 if subject.equal_steps else STEPS)


def between(expected: Tensor, measured: Tensor, note: str = "") -> Finding:
    """The distance of two vectors, or the largest one over two paths."""
    error = float((expected - measured).abs().max())
    return Finding(
        expected.tolist(), measured.tolist(), error if math.isfinite(error) else math.inf, note
    )


def worst(findings: list[Finding]) -> Finding | None:
    """The one with the largest error."""
    return max(findings, key=lambda finding: finding.error, default=None)


def changed(method: Method, **parameters: object) -> Method:
    """The same method with other parameters."""
    return type(method)(**{**method.hyperparameters(), **parameters})


def one_step_only(method: Method) -> bool:
    """Whether the method takes one step per round, so that its steps do not vanish one by one."""
    return max(method.steps([3, 3])) == 1
