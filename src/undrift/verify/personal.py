"""Facts on what belongs to a client alone: its own model, and personal parameters.

Each function measures one fact and returns None if it does not apply to the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.messages import PERSONAL
from undrift.core.method import Method
from undrift.core.problem import Client, Keep, LocalResult
from undrift.core.sampling import All, Sampler
from undrift.local.solvers import GD, Exact
from undrift.loops import Loop
from undrift.methods import Alone, Ditto, PFedMe
from undrift.nets.personal import NORMALISATION, Personal
from undrift.theory import Quadratics, fixed_points
from undrift.verify import problems
from undrift.verify.limits import goal_of
from undrift.verify.problems import START, STEPS
from undrift.verify.runs import (
    LR,
    Finding,
    between,
    changed,
    common_objective,
    partial,
    path,
    run_of,
    settle,
    steps,
    worst,
)
from undrift.verify.subjects import Subject

STRONG = 1e12
"""λ of a pull after which a personal model is the server's up to rounding."""
MORE_ROUNDS = 200
"""Rounds in which own models settle once the server's model has."""
ROUNDS = 3


# The fact "own"


def own(subject: Subject) -> Finding | None:
    """Where the clients' own models end, and the special cases of their pull."""
    method = subject.method
    if isinstance(method, Ditto):
        return worst(list(_ditto(subject, method)))
    if isinstance(method, PFedMe):
        return _pfedme(method)
    if isinstance(method, Alone):
        return worst(list(_alone(method)))
    return None


def _ditto(subject: Subject, method: Ditto) -> Iterator[Finding]:
    problem, sampler = problems.quadratics(), partial(method)
    objective = common_objective(method, sampler)
    alone = _own_models(_stepped(Alone(), problem, sampler, objective))
    free = _own_models(_stepped(changed(method, lam=0.0), problem, sampler, objective))
    yield between(alone, free, "lam = 0 is training alone")

    objective = common_objective(method, All())
    pulled = run_of(changed(method, lam=STRONG), problem, Exact(), All(), objective)
    for _ in range(ROUNDS):
        sent = pulled.server.x.clone()
        pulled.step()
    found = _own_models(pulled)
    yield between(sent.expand_as(found), found, "a strong pull gives the server's model")

    local = steps(subject)
    q = Roster(problem.ids, problem.sizes, objective).weights
    goal = goal_of(method, problem, q, local)
    assert goal is not None
    run = run_of(method, problem, local, All(), objective)
    settle(run, goal, 1e-10)
    path(run, MORE_ROUNDS)
    expected = fixed_points.prox(problem.H, problem.b, goal, method.lam)
    yield between(expected, _own_models(run), "v_k minimises f_k + (λ/2)|v − x|²")


def _pfedme(method: PFedMe) -> Finding | None:
    """With exact inner solutions and R = 1, w minimises the mean of the Moreau envelopes."""
    problem = problems.quadratics()
    q = Roster(problem.ids, problem.sizes, "samples").weights
    goal = fixed_points.moreau_optimum(problem.H, problem.b, q, method.lam)
    run = run_of(changed(method, R=1), problem, Exact())
    w = settle(run, goal, 1e-10)
    run.step()
    expected = fixed_points.prox(problem.H, problem.b, goal, method.lam)
    return worst(
        [
            between(goal, w, "w minimises the mean of the Moreau envelopes"),
            between(expected, _own_models(run), "θ_k = prox of f_k at w"),
        ]
    )


def _alone(method: Alone) -> Iterator[Finding]:
    problem = problems.quadratics()
    run = run_of(method, problem, GD(lr=LR, steps=STEPS))
    run.step()
    first = []
    for k in range(len(problem)):
        x = START
        for _ in range(STEPS[k]):
            x = x - LR * problem.gradient(k, x)
        first.append(x)
    yield between(torch.stack(first), _own_models(run), "the first round starts at x⁰")
    path(run, 2 * MORE_ROUNDS)
    minima = fixed_points.prox(problem.H, problem.b, run.server.x, 0.0)
    yield between(minima, _own_models(run), "every client reaches its own minimum")


def _stepped(method: Method, problem: Quadratics, sampler: Sampler, objective: str) -> Loop:
    """A run after some rounds of gradient descent with momentum."""
    run = run_of(method, problem, GD(lr=LR, steps=STEPS, momentum=0.5), sampler, objective)
    path(run, 2 * ROUNDS)
    return run


def _own_models(run: Loop) -> Tensor:
    """The own models of all clients, `[N, P]`."""
    return torch.stack([run.last_of(id) for id in run.roster.ids])


# The fact "private"


def private(subject: Subject) -> Finding | None:
    """What is personal never travels; where nothing personal acts, nothing changes."""
    if subject.method.own_model is not None:
        return _own_model_stays(subject.method)
    if subject.method.problems > 1:
        return None
    return worst([_personal_part(subject, way) for way in WAYS])


def _own_model_stays(method: Method) -> Finding:
    """No upload is a client's own model, nor depends on the one it kept before the round."""
    kept_name = str(method.own_model)
    problem = problems.quadratics()
    roster = Roster(problem.ids, problem.sizes, "samples")
    down = method.download(method.begin(method.init(problem.initial()), lambda purpose: 0.0))
    for id in roster.ids:
        client = roster.client(id)
        mine = Keep(**{name: _made_up(3, n) for n, name in enumerate(method.kept())})
        disturbed = mine.replace(**{kept_name: getattr(mine, kept_name) + 1.0})
        upload, keep = _finished(method, down, mine, client)
        other, _ = _finished(method, down, disturbed, client)
        new = getattr(keep, kept_name)
        for name, value in upload.items():
            if not torch.equal(torch.as_tensor(value), torch.as_tensor(getattr(other, name))):
                note = f"the upload {name!r} depends on the kept {kept_name!r}"
                return Finding("no dependence", "one", math.inf, note)
            if isinstance(value, Tensor) and _reveals(value, new, problem.initial()):
                note = f"the upload {name!r} is the kept {kept_name!r}"
                return Finding("another vector", value.tolist(), math.inf, note)
    return Finding("nothing of it travels", "nothing", 0.0)


def _finished(method: Method, down: Any, mine: Keep, client: Client) -> tuple[Any, Keep]:
    """What a client uploads and keeps after work whose results are made up."""
    solved = [_made_up(5, n) for n in range(method.problems)]
    result = LocalResult(solved[0], 3.0, 3.0, 4.0, LR, later=tuple(solved[1:]))
    return method.finish(down, mine, result, client)


def _reveals(sent: Tensor, own_model: Tensor, x: Tensor) -> bool:
    """Whether a vector is a model, or its difference from the server's, up to the sign."""
    return any(
        torch.allclose(sent, sign * vector, atol=1e-9)
        for sign in (1, -1)
        for vector in (own_model, own_model - x)
    )


def _made_up(seed: int, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + number)
    return torch.randn(3, generator=generator, dtype=torch.float64)


WAYS = {
    "FedPer": Personal(["offset"]),
    "FedRep": Personal(["offset"], first_epochs=2),
    "FedBN": Personal(NORMALISATION),
}
"""The ways to have personal parameters, by the method that introduced them."""


def _personal_part(subject: Subject, way: str) -> Finding:
    """Traffic and server with personal parameters, beside those of a model without them."""
    method = subject.method
    sampler = partial(method)
    objective = common_objective(method, sampler)

    def run(model: str) -> tuple[Tensor, list[int], Loop]:
        personal = None if model == "plain" else WAYS[way]
        losses = problems.with_personal_part(way, model, personal)
        found = run_of(method, losses, GD(lr=LR, steps=2), sampler, objective)
        models, sent = [], []
        for _ in range(ROUNDS):
            record = found.step()
            models.append(found.server.x.clone())
            sent.append(sum(record.bytes_up.values()) + sum(record.bytes_down.values()))
        return torch.stack(models), sent, found

    plain, without, _ = run("plain")
    still, unused, _ = run("idle")
    alive, sent, trained = run("acting")
    if not (without == unused == sent) or alive.shape != plain.shape:
        return Finding(without, sent, math.inf, f"{way}: personal parameters are sent")
    before = trained.losses.initial_personal()
    seen = [getattr(trained.states.get(id), PERSONAL) for id in trained.states.seen()]
    if before is None or all(torch.equal(each, before) for each in seen):
        return Finding("trained", "not", math.inf, f"{way}: personal parameters do not move")
    return between(plain, still, f"{way}: personal parameters that do not act change the server")
