"""Facts on what has an effect: parameters, kept state, and quantities that must not increase."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from undrift.core.method import Method
from undrift.core.problem import Keep
from undrift.core.sampling import All
from undrift.local.solvers import GD
from undrift.loops import Loop
from undrift.theory import Quadratics
from undrift.utils.errors import Diverged
from undrift.verify import problems
from undrift.verify.runs import (
    LR,
    Finding,
    arriving,
    changed,
    common_objective,
    partial,
    path,
    run_of,
    steps,
)
from undrift.verify.subjects import Subject

ROUNDS = 6
NOTICEABLE = 1e-9
"""A smaller change of the model counts as none."""
ROUNDING = 1e-12
"""A monotone quantity may grow by this share in a round."""


def acts(subject: Subject) -> Finding | None:
    """Changing a numeric parameter, a kept vector or a server's vector changes the models.

    A parameter may act in some situations only, so that several problems are tried. What the
    method declares as idle need not act, nor does a client's own model, which is a result. State of
    a user's method must act only if it is declared in `acting`, since it may honestly be a log;
    without influence it is remarked on.
    """
    method = subject.method
    changes: dict[str, float] = {}
    for name, value in method.hyperparameters().items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            others = (value + 1,) if isinstance(value, int) else (value / 2 or 0.1, value / 20)
            changes[name] = max(
                _change(subject, changed(method, **{name: other})) for other in others
            )
    must: set[str] = set(changes)
    may: set[str] = set()
    first = method.init(problems.START)
    held = {name: "kept" for name in method.kept() if name != method.own_model}
    held |= {name: "server's" for name, v in first.items() if isinstance(v, Tensor) and name != "x"}
    for name, owner in held.items():
        words = f"the {owner} {name!r}"
        changes[words] = _influence(subject, name, owner == "kept")
        (must if _is_ours(method) or name in method.acting else may).add(words)
    for name in method.idle:
        must -= {name, f"the kept {name!r}", f"the server's {name!r}"}
        may -= {f"the kept {name!r}", f"the server's {name!r}"}
    if not must | may:
        return None
    silent = [name for name in changes if changes[name] <= NOTICEABLE]
    failing = [name for name in silent if name in must]
    idle = [name for name in silent if name in may]
    remark = f"{' and '.join(idle)} influences nothing" if idle else ""
    note = f"{failing[0]} changes nothing" if failing else ""
    return Finding("a change", changes, 1.0 if failing else 0.0, note, remark)


def _is_ours(method: Method) -> bool:
    return type(method).__module__.startswith("undrift.methods.")


def _change(subject: Subject, other: Method) -> float:
    """The largest change of the models when `other` takes the method's place."""
    largest = 0.0
    for problem in (problems.quadratics(), problems.opposed()):
        with suppress(Diverged):  # FedLGA's literal form on clients that differ much
            a, b = (_path(subject, method, problem) for method in (subject.method, other))
            largest = max(largest, float((a - b).abs().max()))
    return largest


def _path(subject: Subject, method: Method, problem: Quadratics) -> Tensor:
    if method.meant_asynchronous:
        return path(arriving(method, problem, steps(subject)), ROUNDS)
    return _models(_run(subject, method, problem), ROUNDS)


def _models(run: Loop, rounds: int) -> Tensor:
    """The server's models after each of the next rounds, and the clients' own models if they have
    any: what a method does to those counts too."""
    found = path(run, rounds).flatten()
    if run.method.own_model is None:
        return found
    return torch.cat([found, *(run.last_of(client) for client in run.roster.ids)])


def _run(subject: Subject, method: Method, problem: Quadratics) -> Loop:
    sampler = partial(method)
    objective = common_objective(method, sampler)

    def unfinished(client: object, round: int) -> int | None:
        return 1 if client in (1, 3) else None  # without slow clients FedLGA's damping does nothing

    slow = None if subject.equal_steps else unfinished
    return run_of(method, problem, steps(subject), sampler, objective, slow)


def _influence(subject: Subject, name: str, kept: bool) -> float:
    """How much the models change if a value that every client keeps, or one of the server's, is
    changed between two rounds."""
    undisturbed = _models(_run(subject, subject.method, problems.quadratics()), 3 * ROUNDS)
    largest = 0.0
    for round in range(2, ROUNDS):  # a value may be overwritten in some rounds
        run = _run(subject, subject.method, problems.quadratics())
        before = path(run, round).flatten()
        if kept:
            for id in list(run.states.seen()):
                own = dict(run.states.get(id).items())
                run.states.put(id, Keep(**own | {name: own[name] + 0.1}))
        else:
            run.server = run.server.replace(**{name: getattr(run.server, name) + 0.1})
        disturbed = torch.cat([before, _models(run, 3 * ROUNDS - round)])
        largest = max(largest, float((disturbed - undisturbed).abs().max()))
        if largest > NOTICEABLE:
            break
    return largest


def monotone(subject: Subject) -> Finding | None:
    """Quantities that the method declares as monotone do not increase in any round."""
    declared = {**subject.monotone, **subject.method.monotone}
    if not declared:
        return None
    run = run_of(subject.method, problems.quadratics(), GD(lr=LR, steps=3), All())
    run.step()
    before = {name: float(quantity(run)) for name, quantity in declared.items()}
    worst = Finding("no increase", 0.0, 0.0)
    for round in range(2, 30):
        run.step()
        for name, quantity in declared.items():
            now = float(quantity(run))
            growth = (now - before[name]) / max(abs(before[name]), ROUNDING)
            if growth > max(worst.error, ROUNDING):
                worst = Finding(before[name], now, growth, f"{name} grows in round {round}")
            before[name] = now
    return worst
