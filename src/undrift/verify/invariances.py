"""Invariances: changes of a problem that must not, or must, change what a method computes.

Each function measures one fact and returns None if it does not apply to the method.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from undrift.core.method import Method
from undrift.core.problem import Client, Download, Keep, LocalProblem, LocalResult
from undrift.core.replies import Replies
from undrift.core.sampling import All, Uniform
from undrift.local.solvers import GD
from undrift.utils.errors import require_choice
from undrift.verify import problems
from undrift.verify.problems import SIZES, START
from undrift.verify.runs import (
    LR,
    Finding,
    allows,
    between,
    common_objective,
    partial,
    path,
    planned,
    run_of,
    steps,
    worst,
)
from undrift.verify.subjects import Subject

EQUAL_SIZES = [10, 10, 10, 10]


def runs(subject: Subject) -> Finding:
    """Run one round, to see whether the method's code raises an error."""
    method = subject.method
    if method.converges_to is not None:
        claims = ("optimum", "averaging", "normalised averaging", "sharpness-aware gradients")
        require_choice(f"{method.name}.converges_to", method.converges_to, claims)
    sampler = partial(method)
    objective = common_objective(method, sampler)
    run_of(method, problems.quadratics(), steps(subject), sampler, objective).step()
    return Finding("a round", "a round", 0.0)


def order(subject: Subject) -> Finding:
    """Permuting the clients changes no bit."""
    problem = problems.quadratics()
    sampler = partial(subject.method)
    objective = common_objective(subject.method, sampler)
    a = path(run_of(subject.method, problem, steps(subject), sampler, objective), 6)
    other = problems.permuted(problem, [2, 0, 3, 1])
    b = path(run_of(subject.method, other, steps(subject), sampler, objective), 6)
    return between(a, b)


def shift(subject: Subject) -> Finding | None:
    """Shifting all data by a vector shifts every model by that vector."""
    if subject.method.g is not None:
        return None
    by = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    problem, sampler = problems.quadratics(), partial(subject.method)
    objective = common_objective(subject.method, sampler)
    a = path(run_of(subject.method, problem, steps(subject), sampler, objective), 6) + by
    moved = problems.shifted(problem, by)
    b = path(run_of(subject.method, moved, steps(subject), sampler, objective), 6)
    return between(a, b)


def still(subject: Subject) -> Finding | None:
    """If no client moves, because all share one minimiser, the server does not move."""
    if subject.method.g is not None:
        return None
    problem, sampler = problems.agreeing(problems.quadratics()), partial(subject.method)
    objective = common_objective(subject.method, sampler)
    found = path(run_of(subject.method, problem, steps(subject), sampler, objective), 4)
    return between(START.expand(4, -1), found)


def weights(subject: Subject) -> Finding:
    """Four identical clients act as one, whatever their weights."""
    base, local = problems.quadratics(), GD(lr=LR, steps=3)
    one = path(run_of(subject.method, problems.identical(base, 1, [7]), local), 5)
    many = problems.identical(base, 4, EQUAL_SIZES)
    findings = [between(one, path(run_of(subject.method, many, local), 5), "equal weights")]
    if allows(subject.method, All(), SIZES, "samples") and not _problem_depends_on_client(subject):
        unequal = problems.identical(base, 4, SIZES)
        found = path(run_of(subject.method, unequal, local), 5)
        findings.append(between(one, found, "unequal weights"))
    sampler = Uniform(2)
    if not subject.method.keeps and allows(subject.method, sampler, EQUAL_SIZES, "samples"):
        found = path(run_of(subject.method, many, local, sampler), 5)
        findings.append(between(one, found, "two of four take part"))
    return worst(findings)  # type: ignore[return-value]


def buffers(subject: Subject) -> Finding:
    """BatchNorm statistics are averaged by samples and are not parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses, inputs = problems.with_batchnorm()
    sampler = partial(subject.method)
    objective = common_objective(subject.method, sampler)
    run = run_of(subject.method, losses, GD(lr=LR, steps=2), sampler, objective)
    done = planned(subject.method, [2])[0]
    record = run.step()
    cohort = [inputs[int(str(k))] for k in record.cohort]
    n = sum(len(x) for x in cohort)
    mean = sum(len(x) * x.mean(0) for x in cohort) / n
    var = sum(len(x) * x.var(0, ddof=1) for x in cohort) / n
    expected = torch.as_tensor([*mean, *var, done])
    found = torch.cat([value.double().flatten() for value in run.buffers.values()])
    finding = between(expected, found)
    counter = run.buffers["0.num_batches_tracked"]
    if counter.is_floating_point() or run.server.x.numel() != 10:
        return Finding("10 parameters and a whole counter", str(counter.dtype), math.inf)
    return finding


def stacked(subject: Subject) -> Finding:
    """Clients stacked as `[C, P]` give the same problems and the same fold as one by one."""
    method, sampler = subject.method, partial(subject.method)
    objective = common_objective(method, sampler)
    run = run_of(method, problems.quadratics(), steps(subject), sampler, objective)
    path(run, 3)
    server = method.begin(run.server, lambda purpose: 0.0)
    down = method.download(server)
    clients = [run.roster.client(id) for id in run.roster.ids]
    mine = [run.states.get(client.id) for client in clients]
    results = [
        _made_up_result(method, method.problem(down, kept, c), c)
        for kept, c in zip(mine, clients, strict=True)
    ]

    single = Replies(method.sums(), len(clients), LR)
    done = []
    for client, kept, result in zip(clients, mine, results, strict=True):
        done.append(method.finish(down, kept, result, client))
        single.add(client, done[-1][0])
    asked = [method.problem(down, kept, c) for kept, c in zip(mine, clients, strict=True)]
    client, kept, result = Client.stack(clients, START), _stack(mine), _stack_results(results)
    problem = method.problem(down, kept, client)
    together = Replies(method.sums(), len(clients), LR)
    upload, keep = method.finish(down, kept, result, client)
    together.add_several(clients, client, upload)
    findings = [between(method.fold(server, single).x, method.fold(server, together).x, "the fold")]
    for name in ("start", "linear", "center", "weight", "scale"):
        values = [getattr(each, name) for each in asked]
        findings.append(_rows_agree(values, getattr(problem, name), name))
    for name, value in keep.items():
        values = [getattr(own, name) for _, own in done]
        findings.append(_rows_agree(values, value, f"the kept {name}"))
    for name, value in upload.items():
        values = [getattr(sent, name) for sent, _ in done]
        findings.append(_rows_agree(values, value, f"the upload {name}"))
    if method.elementwise:
        findings += _parts_agree(method, down, mine[0], results[0], clients[0])
    return worst(findings)  # type: ignore[return-value]


def _parts_agree(
    method: Method, down: Download, mine: Keep, result: LocalResult, client: Client
) -> list[Finding]:
    """Whether the first numbers of every vector are computed from the first numbers of others."""

    def first(value: Any) -> Any:
        return value[:2] if isinstance(value, Tensor) and value.ndim == 1 else value

    part = type(down)(**{name: first(value) for name, value in down.items()})
    own = Keep(**{name: first(value) for name, value in mine.items()})
    short = replace(
        result, **{each.name: first(getattr(result, each.name)) for each in fields(result)}
    )
    findings = []
    whole, some = method.problem(down, mine, client), method.problem(part, own, client)
    for name in ("start", "linear", "center", "weight", "scale"):
        findings.append(_rows_agree([first(getattr(whole, name))], getattr(some, name), name))
    wholes = method.finish(down, mine, result, client)
    for made, found in zip(wholes, method.finish(part, own, short, client), strict=True):
        for name, value in made.items():
            findings.append(_rows_agree([first(value)], getattr(found, name), f"a part of {name}"))
    return findings


def _rows_agree(values: list[Any], stacked: Any, note: str) -> Finding:
    """Whether a value of several clients has each client's value in its row."""
    if stacked is None or any(value is None for value in values):
        agree = stacked is None and all(value is None for value in values)
        return Finding("None for all or for none", agree, 0.0 if agree else math.inf, note)
    each = [torch.as_tensor(value, dtype=torch.float64).reshape(-1) for value in values]
    rows, found = torch.stack(each), torch.as_tensor(stacked, dtype=torch.float64)
    vector = found.ndim == 1 and len(found) == rows.shape[1] > 1  # the same for all clients
    if found.ndim not in (0, 2) and not vector:
        return Finding("[C, P] or [C, 1]", list(found.shape), math.inf, note)
    return between(rows, found.expand_as(rows), note)


def _made_up_result(method: Method, problem: LocalProblem, client: Client) -> LocalResult:
    """A result without any training, different for every client; the moves nearly cancel."""
    x = problem.start * 0.9 + (float(client.samples) - 11) / 10
    tau = 1.0 + float(client.samples) % 4
    later = tuple(x / (4 + number) for number in range(1, method.problems))
    return LocalResult(
        x, tau, tau, 1.5 * tau, LR, first_gradient=x / 2, last_gradient=x / 3, later=later
    )


def _stack(kept: list[Keep]) -> Keep:
    names = [name for name, _ in kept[0].items()]
    return Keep(**{name: torch.stack([getattr(k, name) for k in kept]) for name in names})


def _stack_results(results: list[LocalResult]) -> LocalResult:
    def column(name: str) -> Tensor:
        return torch.tensor([[getattr(r, name)] for r in results], dtype=torch.float64)

    def rows(name: str) -> Tensor:
        return torch.stack([getattr(r, name) for r in results])

    return LocalResult(
        rows("x"),
        column("steps"),
        column("expected"),
        column("a_norm"),
        LR,
        rows("first_gradient"),
        rows("last_gradient"),
        later=tuple(torch.stack(each) for each in zip(*(r.later for r in results), strict=True)),
    )


def _problem_depends_on_client(subject: Subject) -> bool:
    """Whether pull or scale depend on the client's q_k, as FedDyn's α_k does."""
    run = run_of(subject.method, problems.quadratics(), steps(subject))
    down = subject.method.download(run.server)
    problem = [
        subject.method.problem(down, run.states.get(id), run.roster.client(id))
        for id in run.roster.ids
    ]
    return len({(float(p.weight), float(p.scale)) for p in problem}) > 1
