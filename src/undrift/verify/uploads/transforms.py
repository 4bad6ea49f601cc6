"""Facts about upload transforms, the library's or a user's: they must suit every method and engine.

`undrift verify mine.py:MyTransform` measures them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from undrift import methods as m
from undrift.core.clients import ClientStates
from undrift.core.problem import Keep, Upload, Work
from undrift.core.uploads import Senders, UploadChain, UploadTransform
from undrift.local.solvers import GD, Exact
from undrift.utils.errors import UndriftError, require
from undrift.utils.user_code import user_module
from undrift.verify import problems
from undrift.verify.facts import Fact
from undrift.verify.runs import Finding, between, run_of, worst

CLIENTS, DIMENSION, RATE, ROUNDS = 5, 7, 0.1, 30


@dataclass(frozen=True)
class TransformSubject:
    """A transform to verify."""

    label: str
    transform: UploadTransform
    exempt: Mapping[str, str] = field(default_factory=dict)


def _uploads() -> Upload:
    """Vectors of five clients, of norms from 0.01 to 100."""
    generator = torch.Generator().manual_seed(7)
    rows = torch.randn(CLIENTS, DIMENSION, generator=generator, dtype=torch.float64)
    size = torch.tensor([0.01, 0.1, 1.0, 10.0, 100.0], dtype=torch.float64)[:, None]
    return Upload(moved=size * rows / rows.norm(dim=1, keepdim=True))


def _senders(clients: range) -> Senders:
    works = [
        Work(client=k, round=0, turn=0, steps=1, expected=1, rate=RATE, key=k) for k in clients
    ]
    return Senders(3, works)


def _updated(subject: TransformSubject, clients: range, upload: Upload) -> tuple[Upload, Keep]:
    kinds = UploadChain([subject.transform]).init()
    states = ClientStates(kinds, torch.zeros(DIMENSION, dtype=torch.float64))
    several = upload.moved.ndim == 2
    mine = Keep.stack(states.gather(list(clients))) if several else states.first()
    return subject.transform.update(upload, mine, _senders(clients))


def stacked(subject: TransformSubject) -> Finding | None:
    """The distance of the transform of stacked uploads, `[C, P]`, from that one by one."""
    uploads = _uploads()
    together = _updated(subject, range(CLIENTS), uploads)[0].moved
    single = [
        _updated(subject, range(k, k + 1), Upload(moved=uploads.moved[k]))[0].moved
        for k in range(CLIENTS)
    ]
    return between(torch.stack(single), together)


def repeats(subject: TransformSubject) -> Finding | None:
    """The distance between two calls with the same arguments."""
    first, again = (_updated(subject, range(CLIENTS), _uploads())[0].moved for _ in range(2))
    return between(first, again)


def bounded(subject: TransformSubject) -> Finding | None:
    """By how much an upload exceeds the transform's `norm`, if it has one."""
    norm = getattr(subject.transform, "norm", None)
    if not isinstance(norm, int | float):
        return None
    sent = _updated(subject, range(CLIENTS), _uploads())[0].moved
    largest = float(sent.norm(dim=1).max())
    return Finding(f"at most {norm}", largest, max(0.0, largest - norm))


def mirrors(subject: TransformSubject) -> Finding | None:
    """How far the server's sums are from the sums of what clients keep, for three methods."""
    problem, found = problems.quadratics(), []
    for method, local in (
        (m.SCAFFOLD(), GD(lr=0.2, steps=3)),
        (m.FedDyn(alpha=1.0), Exact()),
        (m.FedDR(eta=0.8), Exact()),
    ):
        run = run_of(method, problem, local, objective="clients", transforms=[subject.transform])
        for _ in range(ROUNDS):
            run.step()
        kept = [run.states.get(client) for client in run.roster.ids]
        if isinstance(method, m.SCAFFOLD):
            pair = run.server.c, sum(each.c for each in kept) / len(kept)
        elif isinstance(method, m.FedDyn):
            pair = run.server.h, sum(each.h for each in kept) / len(kept)
        else:
            pair = run.server.x, sum(2 * each.x - each.y for each in kept) / len(kept)
        found.append(between(*pair, method.name))
    return worst(found)


TRANSFORM_FACTS = [
    Fact(
        "stacked",
        "Clients stacked as [C, P] give the same uploads as one by one.",
        1e-12,
        stacked,
        "an expression does not broadcast over clients, or draws one random number for all",
    ),
    Fact(
        "repeats",
        "The same arguments give the same upload, so that a run can be resumed.",
        0.0,
        repeats,
        "take random numbers from senders.keys(purpose), and state from init()",
    ),
    Fact(
        "bounded",
        "No upload is longer than the norm that the transform declares.",
        0.0,
        bounded,
        "the norm is taken over single vectors or coordinates, or a rounding error exceeds it",
    ),
    Fact(
        "mirrors",
        "The server's sums are those of what clients keep: methods with state settle by it.",
        1e-10,
        mirrors,
        "update changes the upload in place, so that settle() does not see the difference",
    ),
]
"""Every fact about transforms, in the order of the table."""


def load_transform(
    where: str, settings: Mapping[str, object] | None = None
) -> TransformSubject | None:
    """The user's transform of "mine.py:MyTransform"; None if it is something else."""
    source, _, name = where.rpartition(":")
    found = getattr(user_module(source), name, None) if source and name else None
    if isinstance(found, UploadTransform):
        require(not settings, f"{name} is an instance: set its parameters in {source}.")
        return TransformSubject(name, found)
    if not (inspect.isclass(found) and issubclass(found, UploadTransform)):
        return None
    try:
        return TransformSubject(name, found(**(settings or {})))
    except TypeError as error:
        raise UndriftError(
            f"{name} cannot be made: {error}; give its parameters with --set name=value."
        ) from None
