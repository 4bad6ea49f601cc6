"""The facts of `undrift verify` that can be measured from outside, round by round.

An implementation is compared with undrift's method on a federation of quadratic clients, or with
the limit that theory gives. A fact that does not hold for the reference itself does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from undrift.audit.implementations import Implementation, Unsupported
from undrift.audit.task import Task
from undrift.core.clients import Roster
from undrift.core.method import Method
from undrift.core.sampling import Fixed
from undrift.local.solvers import GD
from undrift.theory import Quadratics
from undrift.utils.errors import UndriftError
from undrift.utils.keys import generator
from undrift.verify.facts import Fact
from undrift.verify.limits import goal_on, when_sampled
from undrift.verify.runs import RAISED, Finding, between, changed, path, planned, run_of

SIZES = [5, 9, 20, 12]
EQUAL_SIZES = [8, 8, 8, 8]
START = [0.5, -1.0, 2.0]
LR = 0.1
ROUNDS = 5
SINGLE_PRECISION = 1e-5
"""The allowed error: other libraries may compute in single precision."""
WITH_MOMENTUM: dict[str, Any] = {"momentum": 0.9, "lr": LR / 5}
LIMIT_ERROR = 1e-4
LIMIT_ROUNDS = 400
CHECK_EVERY_ROUNDS = 25
NOTICEABLE = 1e-6
"""A smaller change of the models counts as none."""
Cohorts = Sequence[Sequence[int]]
PAIRS: Cohorts = [[0, 2], [1, 3], [2, 3], [0, 1], [1, 2], [0, 3]]
"""Cohorts of two of four clients; each client takes part equally often."""


def make_task(sizes: Sequence[int] = SIZES, **changes: Any) -> Task:
    """Four clients whose curvatures differ between 0.5 and 1.5 by component."""
    rng = generator(13, "audit")
    curvature = rng.uniform(0.5, 1.5, (len(sizes), len(START)))
    minima = rng.normal(0, 1, (len(sizes), len(START)))
    a = (curvature * len(START) / 2) ** 0.5  # MSELoss: f_k'' = 2a²/P
    task = Task(list(sizes), a.tolist(), (a * minima).tolist(), START, LR)
    return replace(task, **{"cohort_size": len(sizes), **changes})


def identical(sizes: Sequence[int]) -> Task:
    """Clients that all hold the first client's data."""
    task, n = make_task(), len(sizes)
    return replace(
        task,
        sizes=list(sizes),
        inputs=task.inputs[:1] * n,
        targets=task.targets[:1] * n,
        cohort_size=n,
    )


def quadratics_of(task: Task) -> Quadratics:
    """The task's losses as quadratic functions, for undrift's own runs and closed forms."""
    a, t = (torch.tensor(each, dtype=torch.float64) for each in (task.inputs, task.targets))
    H, b = torch.diag_embed(2 / a.shape[1] * a * a), 2 / a.shape[1] * a * t
    return Quadratics(H, b, task.sizes, initial=torch.tensor(task.start, dtype=torch.float64))


def reference_path(method: Method, task: Task, cohorts: Cohorts, objective: str) -> Tensor:
    """The models of undrift's method on a task."""
    steps: dict[Hashable, int] = dict(enumerate(task.steps))
    local = GD(lr=task.lr, steps=steps, momentum=task.momentum)
    given = Fixed([tuple(cohort) for cohort in cohorts])
    run = run_of(method, quadratics_of(task), local, given, objective)
    return path(run, len(cohorts))


def everyone(task: Task, rounds: int = ROUNDS) -> Cohorts:
    """All clients, in every round."""
    return [list(range(task.clients))] * rounds


def with_parameters(audited: Implementation, task: Task) -> Task:
    """The task with the parameters of the audited method."""
    return replace(task, parameters=dict(audited.parameters))


def _compared(audited: Implementation, task: Task, cohorts: Cohorts, note: str = "") -> Finding:
    wanted = reference_path(audited.reference, task, cohorts, audited.objective)
    found = audited.path(with_parameters(audited, task), cohorts)
    return between(wanted, found, note or _first_difference(wanted, found))


def _first_difference(wanted: Tensor, found: Tensor) -> str:
    """The first round in which two paths differ."""
    wrong = ((wanted - found).abs() > SINGLE_PRECISION).any(1) | found.isnan().any(1)
    return f"from round {int(wrong.nonzero()[0]) + 1} on" if wrong.any() else ""


def runs(audited: Implementation) -> Finding:
    """Run one round of all clients."""
    task = make_task()
    audited.path(with_parameters(audited, task), everyone(task, 1))
    return Finding("a round", "a round", 0.0)


def formula(audited: Implementation) -> Finding:
    """The rounds of all clients."""
    task = make_task()
    return _compared(audited, task, everyone(task))


def cohorts(audited: Implementation) -> Finding | None:
    """The rounds of two of four clients."""
    if audited.reference.needs_all:
        return None
    return _compared(audited, make_task(cohort_size=2), PAIRS)


def momentum(audited: Implementation) -> Finding:
    """The rounds of all clients with local momentum 0.9."""
    task = make_task(**WITH_MOMENTUM)
    return _compared(audited, task, everyone(task))


def limit(audited: Implementation) -> Finding | None:
    """The limit with all clients."""
    task = make_task()
    return _limit(audited, task, everyone(task, 1))


def partial(audited: Implementation) -> Finding | None:
    """The limit with two of four clients in a round, of methods that claim to reach it."""
    if not when_sampled(audited.reference):
        return None
    return _limit(audited, make_task(cohort_size=2), PAIRS)


def _limit(audited: Implementation, task: Task, cohorts: Cohorts) -> Finding | None:
    problem = quadratics_of(task)
    q = Roster(problem.ids, problem.sizes, audited.objective).weights
    tau = planned(audited.reference, task.steps)
    goal = goal_on(audited.reference, problem.H, problem.b, q, task.lr, tau)
    if goal is None:
        return None
    audited.host.begin(with_parameters(audited, task))
    x = torch.tensor(task.start, dtype=torch.float64)
    for t in range(LIMIT_ROUNDS):
        x = torch.tensor(audited.host.round(cohorts[t % len(cohorts)]), dtype=torch.float64)
        if (t + 1) % CHECK_EVERY_ROUNDS == 0:
            distance = float((x - goal).abs().max())
            if distance < LIMIT_ERROR / 10 or not math.isfinite(distance):
                break
    return between(goal, x)


def weights(audited: Implementation) -> Finding | None:
    """Identical clients of unequal size that take the same number of steps act as one."""
    many, one = identical([5, 6, 8, 7]), identical([8])
    if _differs(audited, many, one):
        return None
    wanted = audited.path(with_parameters(audited, one), everyone(one))
    return between(wanted, audited.path(with_parameters(audited, many), everyone(many)))


def _differs(audited: Implementation, task: Task, other: Task) -> bool:
    """Whether the reference itself computes different models for two tasks."""
    a, b = (
        reference_path(audited.reference, each, everyone(each), audited.objective)
        for each in (task, other)
    )
    return bool((a - b).abs().max() > SINGLE_PRECISION / 10)


def shift(audited: Implementation) -> Finding:
    """Moving all data in space moves the models."""
    by = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    task = make_task()
    targets = [
        [t + a * v for t, a, v in zip(ts, inputs, by.tolist(), strict=True)]
        for ts, inputs in zip(task.targets, task.inputs, strict=True)
    ]
    start = (torch.tensor(task.start) + by).tolist()
    moved = replace(task, targets=targets, start=start)
    a, b = (audited.path(with_parameters(audited, each), everyone(each)) for each in (task, moved))
    return between(a + by, b)


def still(audited: Implementation) -> Finding:
    """Clients whose common minimum is the initial model leave the server where it is."""
    task = make_task()
    targets = [[a * w for a, w in zip(each, START, strict=True)] for each in task.inputs]
    task = replace(task, targets=targets)
    found = audited.path(with_parameters(audited, task), everyone(task))
    return between(torch.tensor(START, dtype=torch.float64).expand_as(found), found)


def acts(audited: Implementation) -> Finding | None:
    """Changing any numeric parameter that changes the reference's models changes these too."""
    task, effects = make_task(), {}
    for name, value in audited.parameters.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        other = changed(audited.reference, **{name: value / 2})
        a, b = (
            reference_path(method, task, everyone(task), audited.objective)
            for method in (audited.reference, other)
        )
        if (a - b).abs().max() > 10 * NOTICEABLE:
            halved = {**audited.parameters, name: value / 2}
            a = audited.path(with_parameters(audited, task), everyone(task))
            b = audited.path(replace(task, parameters=halved), everyone(task))
            effects[name] = float((a - b).abs().max())
    if not effects:
        return None
    least = min(effects, key=lambda name: effects[name])
    acting = effects[least] > NOTICEABLE
    return Finding("a change", effects, 0.0 if acting else 1.0, f"{least} changes nothing")


RUNS = Fact("runs", "It completes a round.", 0.0, runs, "the adapter or the library raises")
FACTS = [
    Fact(
        "formula",
        "Its rounds of all clients equal those of the formulas.",
        SINGLE_PRECISION,
        formula,
        "a sign, a factor or a weight differs",
    ),
    Fact(
        "cohorts",
        "Its rounds of two of four clients equal those of the formulas.",
        SINGLE_PRECISION,
        cohorts,
        "N, K = |S| or the sums over the cohort differ",
    ),
    Fact(
        "momentum",
        "So do its rounds with local momentum 0.9.",
        SINGLE_PRECISION,
        momentum,
        "a step count stands where η‖a‖₁ should",
    ),
    Fact(
        "limit",
        "With every client, it ends at the optimum of F or at its closed-form fixed point.",
        LIMIT_ERROR,
        limit,
        "a term has another sign or scale, or a weight differs",
    ),
    Fact(
        "partial",
        "With two of four clients in each round, it still ends at the optimum of F.",
        LIMIT_ERROR,
        partial,
        "N, K = |S| or the sums over the cohort differ, or states of absent clients are lost",
    ),
    Fact(
        "weights",
        "Several identical clients act as one, whatever their sizes.",
        SINGLE_PRECISION,
        weights,
        "the weights of the server do not sum to one",
    ),
    Fact(
        "acts",
        "Every numeric parameter has an effect.",
        0.0,
        acts,
        "a term is lost on the way to the gradient",
    ),
    Fact(
        "shift",
        "Moving all data in space moves the result, and changes nothing else.",
        SINGLE_PRECISION,
        shift,
        "a model is scaled where only a difference of models may be",
    ),
    Fact(
        "still",
        "Clients that do not move leave the server where it is.",
        SINGLE_PRECISION,
        still,
        "the server moves by something that no client sent",
    ),
]
"""The facts of an audit, in the order of the table."""


def measured(fact: Fact, audited: Implementation) -> Finding | None:
    """Measure a fact; what an adapter cannot do does not apply, an error is an infinite one."""
    try:
        return fact.measure(audited)
    except Unsupported:
        return None
    except UndriftError as error:
        return Finding("a result", RAISED, math.inf, str(error))
