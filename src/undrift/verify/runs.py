"""Runs for the facts of `undrift verify`: make them, step them, compare their models."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.evaluation import Evaluation
from undrift.core.losses import Losses
from undrift.core.method import Conditions, Method
from undrift.core.sampling import All, Sampler, Uniform, Weighted
from undrift.core.uploads import UploadTransform
from undrift.devices import Devices, Ladder
from undrift.local.solvers import GD, Local
from undrift.loops import Asynchronous, Loop, RunSpec, Synchronous
from undrift.loops.planning import Limit
from undrift.privacy.gaussian import Gaussian
from undrift.utils.errors import UndriftError
from undrift.utils.keys import draw_of_round
from undrift.verify.problems import SIZES, STEPS
from undrift.verify.subjects import Subject

SEED = 1
LR = 0.2
"""The learning rate of runs with gradient steps."""
NEVER = Evaluation(every=10**9)
"""No round is evaluated: facts read the server's model."""
CHECK_EVERY_ROUNDS = 20
"""How often `settle` measures the distance to the goal."""
CHECKS_PER_WINDOW = 10
"""How many distances `settle` averages before it decides whether they shrink."""
HOPELESS_DISTANCE = 1e6
RAISED = "an error"
"""What is measured if the code under test raises an error."""


@dataclass(frozen=True)
class Finding:
    """One measurement: the expected and the measured value, and their distance."""

    expected: object
    measured: object
    error: float
    note: str = ""
    """where the largest error was found"""
    remark: str = ""
    """what the user should know although the fact holds"""


def run_of(
    method: Method,
    losses: Losses,
    local: Local,
    sampler: Sampler = All(),
    objective: str = "samples",
    limit: Limit | None = None,
    transforms: Sequence[UploadTransform] = (),
    privacy: Gaussian | None = None,
) -> Synchronous:
    """A synchronous run that the caller steps."""
    return Synchronous(
        RunSpec(
            method,
            losses,
            local,
            sampler,
            10**9,
            objective,
            seed=SEED,
            evaluation=NEVER,
            limit=limit,
            transforms=tuple(transforms),
            privacy=privacy,
        )
    )


def arriving(
    method: Method,
    losses: Losses,
    local: Local,
    sampler: Sampler = All(),
    objective: str = "samples",
) -> Asynchronous:
    """An asynchronous run on devices of different speeds, which the caller steps."""
    devices = Devices(speed=Ladder(1, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # step sizes outside a theorem's range are fine here
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
    """The server's models after each of the next rounds, `[rounds, P]`."""
    models = []
    for _ in range(rounds):
        run.step()
        models.append(run.server.x.clone())
    return torch.stack(models)


def settle(run: Loop, goal: Tensor, close: float, rounds: int = 4000) -> Tensor:
    """The server's model when the run is well within `close` of the goal, or does not approach it.

    To come close within 4000 rounds, a run must come about three times nearer in every 200 rounds.
    If its mean distance in a window of 200 rounds is not even half of that in the window before, it
    has converged to another point, or does not converge.
    """
    before = math.inf
    distances: list[float] = []
    for t in range(rounds):
        run.step()
        if (t + 1) % CHECK_EVERY_ROUNDS == 0:
            distance = float((run.server.x - goal).norm())
            if distance < close / 20 or not distance < HOPELESS_DISTANCE:
                break
            distances.append(distance)
        if len(distances) == CHECKS_PER_WINDOW:
            mean = sum(distances) / CHECKS_PER_WINDOW
            if mean > before / 2:
                break
            before, distances = mean, []
    return run.server.x


def allows(method: Method, sampler: Sampler, sizes: list[int], objective: str) -> bool:
    """Whether a method is defined for clients of these sizes, a sampler and an objective."""
    roster = Roster(list(range(len(sizes))), torch.tensor(sizes), objective)
    try:
        method.check(Conditions(len(sizes), sampler.participation, roster.equal, takes_steps=True))
    except UndriftError:
        return False
    return True


def partial(method: Method, objective: str = "samples") -> Sampler:
    """A sampler of two of four clients if the method allows one, else of all clients."""
    for sampler in (Uniform(2), Weighted(2)):
        if allows(method, sampler, SIZES, objective):
            return sampler
    return All()


def common_objective(method: Method, sampler: Sampler) -> str:
    """The objective "samples" if the method is defined for it with the sampler, else "clients"."""
    return "samples" if allows(method, sampler, SIZES, "samples") else "clients"


def steps(subject: Subject) -> GD:
    """Gradient descent with unequal numbers of steps, unless the method needs equal ones."""
    return GD(lr=LR, steps=3 if subject.equal_steps else STEPS)


def between(expected: Tensor, measured: Tensor, note: str = "") -> Finding:
    """A finding on two vectors or paths; the error is their largest difference in a component."""
    error = float((expected - measured).abs().max())
    return Finding(
        expected.tolist(), measured.tolist(), error if math.isfinite(error) else math.inf, note
    )


def worst(findings: list[Finding]) -> Finding | None:
    """The finding with the largest error; None if there are none."""
    # A comparison with NaN is false, so that max would overlook it.
    size = [math.inf if math.isnan(finding.error) else finding.error for finding in findings]
    return findings[size.index(max(size))] if findings else None


def changed(method: Method, **parameters: object) -> Method:
    """A copy of the method with some parameters changed."""
    return type(method)(**{**method.hyperparameters(), **parameters})


def changed_in_place(method: Method, overrides: Mapping[str, Callable[..., Any]]) -> Method:
    """A copy of a method in which functions are replaced; each gets the original as an argument."""
    kind = type(method)

    def bound(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(kind, name)
        return lambda self, *arguments: change(original, self, *arguments)

    own = {name: bound(name, change) for name, change in overrides.items()}
    twin = copy.copy(method)
    twin.__class__ = type(kind.__name__, (kind,), own | {"__module__": kind.__module__})
    return twin


def one_step_only(method: Method) -> bool:
    """Whether the method sets the number of local steps to one."""
    return max(planned(method, [3, 3])) == 1


def planned(method: Method, steps: Sequence[int]) -> list[int]:
    """The steps that clients do in the first round of a run, from those of their local work."""
    return list(method.steps(steps, draw_of_round(SEED, 0)))
