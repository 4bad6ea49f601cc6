"""Facts on what has an effect, and in which direction: parameters, state, monotone quantities."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from undrift.core.method import Method
from undrift.core.problem import Keep
from undrift.core.regularizers import Regularizer
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
SLOPE_LR, SLOPE_STEPS, SLOPE_ROUNDS = 1e-3, 2, 60
"""The local work and the rounds on a slope; a pull of weight r shortens a move by about r·2e-3."""
WINDOW = 16
"""The rounds over which speeds are averaged: an even number, since a brake makes them alternate."""
SETTLED = 0.01
"""The share by which the speed of a run that has settled may change from one window to the next."""


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


def descends(subject: Subject) -> Finding | None:
    """On a slope, the same constant gradient for every client, the server goes down, and the state
    it has gathered does not slow it down.

    The speed of a round is its length along −∇F, in units of FedAvg's. Momentum starts at zero and
    only makes a method faster. With a wrong sign it is a brake: the speed settles below that of the
    first round or, if the momentum fades, is lower in between than at first and at last. That
    point is still FedAvg's, so that no limit shows the mistake. With a regulariser g, whose prox
    moves the server by itself, speeds tell nothing, and F + g must not grow.
    """
    method = subject.method
    if not method.uploads:  # every client trains for itself, and the server's model stays
        return None
    problem, gradient = problems.slope(), -problems.slope().b[0]
    local = GD(lr=SLOPE_LR, steps=SLOPE_STEPS)
    run = (
        arriving(method, problem, local)
        if method.meant_asynchronous
        else run_of(method, problem, local, objective=common_objective(method, All()))
    )
    models = torch.cat([problems.START[None], path(run, SLOPE_ROUNDS)])
    if method.g is not None:
        return _objective_falls(models[1:], gradient, method.g)
    unit = SLOPE_LR * SLOPE_STEPS * float(gradient @ gradient)
    speeds = (-models.diff(dim=0) @ gradient / unit).tolist()
    mean, first = sum(speeds) / len(speeds), speeds[0]
    if not mean > 0:
        note = "the server does not move" if mean == 0 else "it moves along the gradient"
        return Finding("a speed above 0", mean, 1.0 - mean, note)
    before, after = (
        sum(part) / WINDOW for part in (speeds[-2 * WINDOW : -WINDOW], speeds[-WINDOW:])
    )
    least = min(first, 1.0)
    if method.meant_asynchronous or method.slows_down or least <= 0:
        return Finding("a speed above 0", mean, 0.0)
    words = f"its first round moves {first:.3g} times as far as FedAvg's"
    if mean < (1 - SETTLED) * min(least, after):  # a decaying rate has its least speed at last
        note = f"{words}, the last ones {after:.3g} times, all in the mean only {mean:.3g} times"
        return Finding(min(least, after), mean, 1 - mean / min(least, after), note)
    # A decaying server rate has not settled; a brake that stops the server has.
    if abs(after - before) > SETTLED * max(after, least / 10):
        return Finding("a speed above 0", mean, 0.0)
    return Finding(
        least, after, max(0.0, 1 - after / least), f"{words}, later ones {after:.3g} times"
    )


def _objective_falls(models: Tensor, gradient: Tensor, g: Regularizer) -> Finding:
    """Whether F + g is not larger after the last round than after the first, which may have moved
    the model from anywhere to where g is finite."""
    first, last = (float(gradient @ x) + g.value(x) for x in (models[0], models[-1]))
    growth = (last - first) / max(1.0, abs(first))
    note = "F + g grows" if growth > ROUNDING else ""
    return Finding(first, last, growth if growth > ROUNDING else 0.0, note)
