"""Limits: a method must converge to the optimum of F, or to its closed-form fixed point.

Each function measures one fact and returns None if it does not apply to the method.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.method import Method
from undrift.core.sampling import All, Bernoulli, Uniform, Weighted
from undrift.local.solvers import GD, SGD, Exact
from undrift.theory import Quadratics, fixed_points
from undrift.verify import problems
from undrift.verify.problems import SIZES, STEPS
from undrift.verify.runs import (
    Finding,
    allows,
    between,
    one_step_only,
    partial,
    run_of,
    settle,
    steps,
    worst,
)
from undrift.verify.subjects import Subject


def goal_of(method: Method, problem: Quadratics, q: Tensor, local: GD) -> Tensor | None:
    """The point that the method claims to converge to; None if it claims nothing."""
    if method.converges_to == "optimum":
        return problem.optimum(q, method.g)
    tau = [local.amount(k, 0) for k in range(len(problem))]
    tau = list(method.steps(tau))
    mu = getattr(method, "mu", 0.0)
    assert isinstance(local.lr, float)  # the closed forms are for a constant rate
    if method.converges_to == "averaging":
        return fixed_points.fedprox(problem.H, problem.b, q, local.lr, tau, mu)
    if method.converges_to == "normalised averaging":
        return fixed_points.fednova(problem.H, problem.b, q, local.lr, tau, mu)
    return None


def limit_full(subject: Subject) -> Finding | None:
    """The limit with full participation, for both objectives."""
    findings = []
    for objective in ("samples", "clients"):
        if not allows(subject.method, All(), SIZES, objective):
            continue
        problem = problems.quadratics()
        local = steps(subject)
        q = Roster(problem.ids, problem.sizes, objective).weights
        goal = goal_of(subject.method, problem, q, local)
        if goal is None:
            return None
        solver = Exact() if subject.exact else local
        run = run_of(subject.method, problem, solver, objective=objective)
        findings.append(between(goal, settle(run, goal, 1e-10), f'objective="{objective}"'))
    return worst(findings)


def limit_partial(subject: Subject) -> Finding | None:
    """The limit with cohorts of two of four clients, or of varying size |S|."""
    method = subject.method
    # With one step per round a single client's gradient does not vanish at the optimum, so the
    # model never settles: it moves with every cohort.
    if method.converges_to != "optimum" or method.needs_all or one_step_only(method):
        return None
    findings = []
    for objective in ("samples", "clients"):
        problem = problems.quadratics()
        q = Roster(problem.ids, problem.sizes, objective).weights
        goal = problem.optimum(q, method.g)
        solver = Exact() if subject.exact else steps(subject)
        for sampler in (Uniform(2), Bernoulli(0.5), Weighted(2)):
            if allows(method, sampler, SIZES, objective):
                run = run_of(method, problem, solver, sampler, objective)
                note = f'{sampler}, objective="{objective}"'
                findings.append(between(goal, settle(run, goal, 1e-10), note))
    return worst(findings)


def limit_momentum(subject: Subject) -> Finding | None:
    """The limit when clients run gradient descent with momentum 0.9."""
    if subject.method.converges_to != "optimum" or one_step_only(subject.method):
        return None
    problem = problems.quadratics()
    q = Roster(problem.ids, problem.sizes, "samples").weights
    goal = problem.optimum(q, subject.method.g)
    many = {k: 30 + tau for k, tau in STEPS.items()} if subject.exact else STEPS
    local = GD(lr=0.05, momentum=0.9, steps=3 if subject.equal_steps else many)
    run = run_of(subject.method, problem, local, partial(subject.method))
    return between(goal, settle(run, goal, 1e-10))


def ragged(subject: Subject) -> Finding | None:
    """The limit of a network trained on minibatches of which the last is smaller.

    Exact methods get momentum too, because it must not move their limit.
    """
    sizes = [5, 7, 8, 6] if subject.equal_steps else SIZES
    objective = "samples" if allows(subject.method, All(), sizes, "samples") else "clients"
    losses, e = problems.points(sizes)
    q = Roster(losses.ids, losses.sizes, objective).weights
    exact = subject.method.converges_to == "optimum"
    momentum = 0.5 if exact and not one_step_only(subject.method) else 0.0
    local = SGD(lr=0.1, batch_size=4, epochs=2, momentum=momentum)
    tau = subject.method.steps([2 * math.ceil(n / 4) for n in sizes])
    mu = getattr(subject.method, "mu", 0.0)
    if exact:
        goal = q @ e
        g = subject.method.g
        if g is not None:
            goal = g.prox(goal, 1.0)
    elif subject.method.converges_to == "averaging":
        goal = fixed_points.spherical(e, q, 0.1, tau, mu)
    elif subject.method.converges_to == "normalised averaging":
        H = torch.eye(3, dtype=torch.float64).expand(len(e), -1, -1)
        goal = fixed_points.fednova(H, e, q, 0.1, tau, mu)
    else:
        return None
    run = run_of(subject.method, losses, local, All(), objective)
    return between(goal, settle(run, goal, 1e-10, rounds=1000))
