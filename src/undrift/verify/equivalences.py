"""The fact "equals": special cases in which two methods coincide, round by round."""

from __future__ import annotations

import torch

from undrift.core.clients import Roster
from undrift.core.method import Method
from undrift.core.sampling import Fixed, Uniform, Weighted
from undrift.local.solvers import GD, Exact
from undrift.methods import (
    SCAFFOLD,
    VRLSGD,
    FedAvg,
    FedAvgMin,
    FedBuff,
    FedDR,
    FedDyn,
    FedLGA,
    FedNova,
    FedPD,
    FedProx,
    FedSplit,
)
from undrift.theory import Quadratics
from undrift.verify import problems
from undrift.verify.problems import START
from undrift.verify.runs import (
    LR,
    Finding,
    arriving,
    between,
    changed,
    partial,
    path,
    run_of,
    worst,
)
from undrift.verify.subjects import Subject


def equals(subject: Subject) -> Finding | None:
    """The largest difference between methods that must coincide, over all special cases."""
    method = subject.method
    findings = []
    problem = problems.quadratics()
    for special_case in EQUIVALENCES:
        found = special_case(method, problem)
        if found is not None:
            findings.append(found)
    return worst(findings)


def _single_client(method: Method, problem: Quadratics) -> Finding | None:
    """With one client, averaging methods are centralised training."""
    if not isinstance(method, FedAvg | FedNova | FedLGA | SCAFFOLD) or getattr(method, "mu", None):
        return None
    alone = problems.identical(problem, 1, [7])
    x, models = START.clone(), []
    tau = method.steps([3])[0]
    for _ in range(5):
        for _ in range(tau):
            x = x - LR * alone.gradient(0, x)
        models.append(x)
    found = path(run_of(method, alone, GD(lr=LR, steps=3)), 5)
    return between(torch.stack(models), found, "one client = centralised training")


def _one_step(method: Method, problem: Quadratics) -> Finding | None:
    """With one full-batch step per round, FedAvg is gradient descent on F."""
    if not isinstance(method, FedAvg) or isinstance(method, FedProx):
        return None
    q = Roster(problem.ids, problem.sizes, "samples").weights
    x, models = START.clone(), []
    for _ in range(5):
        x = x - LR * problem.total_gradient(x, q)
        models.append(x)
    found = path(run_of(method, problem, GD(lr=LR, steps=1)), 5)
    return between(torch.stack(models), found, "E = 1 is gradient descent")


def _like_fedavg(method: Method, problem: Quadratics) -> Finding | None:
    """Special cases of other methods that are FedAvg."""
    twin, rounds = method, 5
    if isinstance(method, FedProx):
        twin, note = changed(method, mu=0.0), "mu = 0 is FedAvg"
    elif isinstance(method, FedNova) and not method.variance_reduction:
        twin, note = changed(method, mu=0.0), "equal steps are FedAvg"
    elif isinstance(method, FedAvgMin):
        note = "equal steps are FedAvg"
    elif isinstance(method, FedBuff):
        note = "in synchronous rounds it is FedAvg"
    elif isinstance(method, SCAFFOLD | VRLSGD | FedNova):
        rounds, note = 1, "the first round is FedAvg's"
    else:
        return None
    sampler = partial(method)
    local = GD(lr=LR, steps=3, momentum=0.5)  # the coincidence holds for any solver
    a = path(run_of(twin, problem, local, sampler), rounds)
    b = path(run_of(FedAvg(), problem, local, sampler), rounds)
    return between(b, a, note)


def _fedlga(method: Method, problem: Quadratics) -> Finding | None:
    """If every client finishes its work, FedLGA is FedAvg with scheme I."""
    if not isinstance(method, FedLGA):
        return None
    local, sampler = GD(lr=LR, steps=3), Weighted(3)
    a = path(run_of(method, problem, local, sampler), 5)
    b = path(run_of(FedAvg("I"), problem, local, sampler), 5)
    return between(b, a, "all complete is FedAvg, scheme I")


def _splitting(method: Method, problem: Quadratics) -> Finding | None:
    """FedSplit is FedDR with α = 2."""
    if not isinstance(method, FedSplit | FedDR) or method.g is not None:
        return None
    split = method if isinstance(method, FedSplit) else FedSplit(method.eta)
    reflected = changed(method if isinstance(method, FedDR) else FedDR(method.eta), alpha=2.0)
    a = path(run_of(split, problem, Exact()), 8)
    b = path(run_of(reflected, problem, Exact()), 8)
    return between(a, b, "FedSplit = FedDR(alpha=2)")


def _dual(method: Method, problem: Quadratics) -> Finding | None:
    """With full participation, FedDyn is FedPD with η = 1/α."""
    if not isinstance(method, FedDyn | FedPD):
        return None
    dyn = method if isinstance(method, FedDyn) else FedDyn(1 / method.eta)
    dual = method if isinstance(method, FedPD) else FedPD(1 / method.alpha)
    a = path(run_of(dyn, problem, Exact(), objective="clients"), 8)
    b = path(run_of(dual, problem, Exact(), objective="clients"), 8)
    return between(a, b, "FedDyn = FedPD with eta = 1/alpha, everyone taking part")


def _without_delay(method: Method, problem: Quadratics) -> Finding | None:
    """With one client at work at a time there is no delay: arrivals are rounds of one client."""
    if not method.asynchronous or method.buffer > 1:
        return None
    local = Exact() if isinstance(method, FedDR) else GD(lr=LR, steps=3)
    alone = arriving(method, problem, local, Uniform(1))
    models, order = [], []
    for _ in range(12):
        order.append(list(alone.step().cohort))
        models.append(alone.server.x.clone())
    rounds = path(run_of(method, problem, local, Fixed(order)), 12)
    return between(torch.stack(models), rounds, "without delay it is rounds of one client")


EQUIVALENCES = (
    _single_client,
    _one_step,
    _like_fedavg,
    _fedlga,
    _splitting,
    _dual,
    _without_delay,
)
