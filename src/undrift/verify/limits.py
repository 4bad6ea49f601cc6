"""Limits: a method must converge to the optimum of F, or to its closed-form fixed point.

Each function measures one fact and returns None if it does not apply to the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple

import torch
from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.method import Method
from undrift.core.problem import Keep, Upload
from undrift.core.sampling import All, Bernoulli, Fixed, Uniform, Weighted
from undrift.core.uploads import Senders, UploadTransform
from undrift.local.solvers import GD, SGD, Exact
from undrift.theory import Quadratics, fixed_points, sharpness
from undrift.theory.fixed_points import NO_MOMENTUM, LocalMomentum
from undrift.verify import problems
from undrift.verify.problems import SIZES, STEPS
from undrift.verify.runs import (
    Finding,
    allows,
    between,
    common_objective,
    one_step_only,
    partial,
    planned,
    run_of,
    settle,
    steps,
    worst,
)
from undrift.verify.subjects import Subject

CLIP_NORM = 0.3
"""Short enough to shorten the uploads of the first rounds."""


CYCLE = Fixed(((0, 2), (3, 1, 0), (1, 2)))
"""Given cohorts of two and three clients."""
MOMENTA = (LocalMomentum(0.9), LocalMomentum(0.9, nesterov=True))
"""The momenta of local solvers for which limits are measured."""

FIXED_POINTS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "FedProx": (fixed_points.fedprox, ("mu",)),
    "FedAsync": (fixed_points.fedprox, ("mu",)),
    "FedACG": (fixed_points.fedprox, ("beta",)),
    "FedNova": (fixed_points.fednova, ("mu",)),
    "FedCM": (fixed_points.fedcm, ("alpha",)),
    "MimeLite": (fixed_points.mimelite, ("beta",)),
    "PFedMe": (fixed_points.pfedme, ("lam", "eta", "R")),
}
"""The closed forms of the library's methods whose fixed point depends on parameters, and those."""
SETTLES_WHEN_SAMPLED = {"SCAFFOLD", "FedVARP", "MIFA", "FedDyn", "FedDR", "AsyncFedDR", "FedADMM"}
SETTLES_WHEN_SAMPLED |= {"FedSpeed"}
"""Methods that converge with partial participation, besides FedNova with variance reduction."""
PULL_INSIDE = {"FedACG", "PFedMe"}
"""Of those, the methods whose pull is always inside the momentum buffer."""


def goal_of(method: Method, problem: Quadratics, q: Tensor, local: GD) -> Tensor | None:
    """The point that the method claims to converge to; None if it claims nothing."""
    assert isinstance(local.lr, float)  # the closed forms are for a constant rate
    tau = planned(method, [local.amount(k, 0) for k in range(len(problem))])
    momentum = LocalMomentum(local.momentum, local.nesterov)
    return goal_on(method, problem.H, problem.b, q, local.lr, tau, momentum)


def goal_on(
    method: Method,
    H: Tensor,
    b: Tensor,
    q: Tensor,
    lr: float,
    steps: Sequence[int],
    momentum: LocalMomentum = NO_MOMENTUM,
) -> Tensor | None:
    """The point that the method claims to converge to on quadratic clients."""
    own = method.fixed_point(H, b, q, lr, steps)
    if own is not None:  # it is declared without momentum
        return own if momentum == NO_MOMENTUM else None
    if method.converges_to is None:
        return None
    if method.converges_to == "optimum":
        return Quadratics(H, b, [1] * len(b)).optimum(q, method.g)
    if method.converges_to == "sharpness-aware gradients" and method.ascent is not None:
        return sharpness.fedspeed_point(H, b, q, method.ascent.radius, method.ascent.share)
    if getattr(method, "scheme", "") == "transformed II":  # client k trains on N·q_k·f_k
        factor = len(q) * q
        H, b = factor[:, None, None] * H, factor[:, None] * b
        q = torch.full_like(q, 1 / len(q))
    for kind in type(method).__mro__:
        if kind.__name__ in FIXED_POINTS and kind.__module__.startswith("undrift.methods."):
            closed_form, parameters = FIXED_POINTS[kind.__name__]
            inside = kind.__name__ in PULL_INSIDE or getattr(method, "pull_inside_momentum", False)
            given = (getattr(method, parameter) for parameter in parameters)
            momentum = momentum._replace(pull_inside=inside)
            return closed_form(H, b, q, lr, steps, *given, momentum=momentum)
    if method.converges_to == "averaging" and method.ascent is not None:
        radius, share = astuple(method.ascent)
        return sharpness.fedsam_point(H, b, q, lr, steps, radius, share, momentum)
    if method.converges_to == "averaging":
        return fixed_points.fedavg(H, b, q, lr, steps, momentum)
    return fixed_points.fednova(H, b, q, lr, steps, momentum=momentum)


def when_sampled(method: Method) -> bool:
    """Whether the method claims to reach its limit with partial participation."""
    if method.needs_all:
        return False
    if method.converges_when_sampled is not None:
        return method.converges_when_sampled
    # With one step per round a single client's gradient does not vanish at the optimum, so the
    # model never settles: it moves with every cohort.
    return method.converges_to == "optimum" and not one_step_only(method)


def _claims_as_proved(method: Method) -> bool:
    """Whether a method of the library claims a limit under sampling if and only if it is proved."""
    if not type(method).__module__.startswith("undrift.methods."):
        return True
    options = method.hyperparameters()
    proved = method.name in SETTLES_WHEN_SAMPLED and options.get("average") != "act"
    return when_sampled(method) == (proved or bool(options.get("variance_reduction")))


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
    if not _claims_as_proved(method):
        return Finding("a claim as proved", method.converges_when_sampled, 1.0, "what it claims")
    if not when_sampled(method):
        return None
    findings = []
    for objective in ("samples", "clients"):
        problem = problems.quadratics()
        q = Roster(problem.ids, problem.sizes, objective).weights
        goal = goal_of(method, problem, q, steps(subject))
        if goal is None:
            return None
        solver = Exact() if subject.exact else steps(subject)
        for sampler in (Uniform(2), Bernoulli(0.5), Weighted(2), CYCLE):
            if allows(method, sampler, SIZES, objective):
                run = run_of(method, problem, solver, sampler, objective)
                note = f'{sampler}, objective="{objective}"'
                findings.append(between(goal, settle(run, goal, 1e-10), note))
    return worst(findings)


def limit_momentum(subject: Subject) -> Finding | None:
    """The limit when clients run gradient descent with momentum 0.9, also Nesterov's."""
    method = subject.method
    if one_step_only(method):
        return None
    problem, findings = problems.quadratics(), []
    many = {k: 30 + tau for k, tau in STEPS.items()} if subject.exact else STEPS
    # Biased methods do not settle if clients are sampled.
    sampler = partial(method) if when_sampled(method) else All()
    objective = common_objective(method, sampler)
    q = Roster(problem.ids, problem.sizes, objective).weights
    for momentum in MOMENTA:
        local = GD(
            lr=0.05,
            momentum=momentum.rho,
            nesterov=momentum.nesterov,
            steps=3 if subject.equal_steps else many,
        )
        goal = goal_of(method, problem, q, local)
        if goal is None:
            return None
        run = run_of(method, problem, local, sampler, objective)
        note = "Nesterov's momentum" if momentum.nesterov else ""
        findings.append(between(goal, settle(run, goal, 1e-10), note))
    return worst(findings)


def clipped(subject: Subject) -> Finding | None:
    """The limit when uploads are clipped: kept state must advance by what was sent."""
    method = subject.method
    mirrored = method.kept().keys() - {method.own_model}
    if not mirrored or method.uploads_models:
        return None
    problem, local = problems.quadratics(), steps(subject)
    objective = common_objective(method, All())
    q = Roster(problem.ids, problem.sizes, objective).weights
    goal = goal_of(method, problem, q, local)
    if goal is None or type(method).settle is Method.settle:
        return None
    solver = Exact() if subject.exact else local
    run = run_of(method, problem, solver, All(), objective, transforms=[Clip(CLIP_NORM)])
    return between(goal, settle(run, goal, 1e-8))


class Clip(UploadTransform):
    """Shortens an upload to a norm, over all its vectors together."""

    def __init__(self, norm: float):
        self.norm = norm

    def update(self, upload: Upload, mine: Keep, senders: Senders) -> tuple[Upload, Keep]:
        square = sum(value.square().sum(-1, keepdim=True) for _, value in upload.items())
        factor = (self.norm / torch.as_tensor(square).sqrt().clamp_min(1e-30)).clamp_max(1.0)
        return Upload(**{name: value * factor for name, value in upload.items()}), Keep()


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
    tau = planned(subject.method, [2 * math.ceil(n / 4) for n in sizes])
    H = torch.eye(3, dtype=torch.float64).expand(len(e), -1, -1)  # f_k = ½|x − e_k|²
    goal = goal_on(subject.method, H, e, q, 0.1, tau)
    if goal is None:
        return None
    run = run_of(subject.method, losses, local, All(), objective)
    return between(goal, settle(run, goal, 1e-10, rounds=1000))
