"""What server and sites say to each other, as bytes: orders and answers, checked on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from undrift.core.diagnostics import A_NORM, MOVED, SQUARE
from undrift.core.messages import CHANGE, COHORT, Reply, TrackedModels, buffer_bytes, bytes_of
from undrift.core.method import Method
from undrift.core.problem import Client, Download, Keep, Named, Upload, Work
from undrift.deploy.payloads import (
    Like,
    Refused,
    check_numbers,
    check_tensors,
    decode,
    encode,
    size,
)
from undrift.methods.traffic import traffic_of
from undrift.utils.errors import UndriftError

WHO, HELLO, WORK, LOOK = "who", "hello", "work", "look"
"""What a site can be asked: its name, what it has, to train, to evaluate a model."""
ORDER = 4_000_000_000
"""The most bytes of an order: a site trusts its server that far."""
SLACK = 1_000_000
"""Bytes of an answer besides its tensors."""
VERSION = "@version"
"""What the server remembers of a client: which of its states is the accepted one."""


@dataclass(frozen=True)
class Order:
    """The work of a client, as it is sent to its site."""

    run: str
    """which run it is for: states are kept by it"""
    label: str
    seed: int
    client: Client
    work: Work
    base: int
    """the client's accepted state, by its version; 0 if it has not taken part yet"""
    committed: int
    """the version that a server which dies goes back to: it is kept, with all that follow"""
    version: int
    """what its new state is called"""
    diagnose: bool
    budget: float | None
    """seconds within which the site does what it can; None for all that is asked"""
    download: Download
    buffers: Mapping[str, Tensor]

    def encoded(self) -> bytes:
        """For the way."""
        numbers, vectors = _sorted(self.download)
        values = {
            "kind": WORK,
            "run": self.run,
            "label": self.label,
            "seed": self.seed,
            "client": {f.name: getattr(self.client, f.name) for f in fields(Client)},
            "work": asdict(self.work),
            "base": self.base,
            "committed": self.committed,
            "version": self.version,
            "diagnose": self.diagnose,
            "budget": self.budget,
            "numbers": numbers,
        }
        return encode(values, _prefixed("down ", vectors) | _prefixed("buffers ", self.buffers))

    def refused(self, why: str, steps: int = 0, evaluations: int = 0) -> Reply:
        """The reply in an answer that cannot be used."""
        down = bytes_of(self.download) | buffer_bytes(self.buffers)
        return _reply(self, Upload(), {}, steps, evaluations, down, {}, why)


def order_from(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Order:
    """The order that arrived."""
    try:
        return Order(
            run=str(values["run"]),
            label=str(values["label"]),
            seed=int(values["seed"]),
            client=Client(**values["client"]),
            work=Work(**values["work"]),
            base=int(values["base"]),
            committed=int(values["committed"]),
            version=int(values["version"]),
            diagnose=bool(values["diagnose"]),
            budget=None if values["budget"] is None else float(values["budget"]),
            download=Download(**values["numbers"], **_under("down ", tensors)),
            buffers=_under("buffers ", tensors),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"An order is not complete ({type(error).__name__}: {error}).") from None


def answer_to(order: Order, reply: Reply, seconds: float) -> bytes:
    """What a site answers to an order; a reply that is wrong is only said to be so."""
    values: dict[str, Any] = {
        "run": order.run,
        "client": order.client.id,
        "version": order.version,
        "steps": reply.steps,
        "evaluations": reply.evaluations,
        "complete": bool(reply.complete),
        "seconds": seconds,
        "wrong": reply.wrong,
        "numbers": {},
    }
    if reply.wrong is not None:
        return encode(values, {})
    values["numbers"], vectors = _sorted(reply.upload)
    return encode(values, _prefixed("up ", vectors) | _prefixed("buffers ", reply.buffers))


@dataclass(frozen=True)
class Expected:
    """What must be in an answer: declared by the method, and checked."""

    vectors: Mapping[str, Like]
    numbers: frozenset[str]
    buffers: Mapping[str, Like]

    @property
    def most(self) -> int:
        """The most bytes it may have."""
        return size(self.vectors) + size(self.buffers) + SLACK

    def reply(self, data: bytes, order: Order) -> Reply:
        """The reply in an answer; `Refused` where it is not what was asked for."""
        values, tensors = decode(data, self.most)
        for name, wanted in (
            ("run", order.run),
            ("client", order.client.id),
            ("version", order.version),
        ):
            if values.get(name) != wanted or isinstance(values.get(name), bool):
                raise Refused(f"it answers another order: its {name} is not the one asked for")
        steps = _whole(values, "steps", order.work.steps)
        evaluations = _whole(values, "evaluations", 2**62)
        wrong = values.get("wrong")
        if wrong is not None:
            return order.refused(str(wrong)[:200], steps, evaluations)
        numbers = values.get("numbers")
        if not isinstance(numbers, dict):
            raise Refused("its numbers are missing")
        found = check_numbers(numbers, self.numbers)
        vectors, buffers = _under("up ", tensors), _under("buffers ", tensors)
        if len(vectors) + len(buffers) != len(tensors):
            raise Refused("it has tensors that nobody asked for")
        check_tensors(vectors, self.vectors)
        check_tensors(buffers, self.buffers)
        upload = Upload(**vectors, **found)
        seen = {n: v for n, v in upload.items() if not n.startswith("@")}
        up = bytes_of(Upload(**seen)) | buffer_bytes(buffers)
        down = bytes_of(order.download) | buffer_bytes(order.buffers)
        return _reply(order, upload, buffers, steps, evaluations, down, up, None)


def expected_of(
    method: Method,
    order: Order,
    x: Tensor,
    buffers: Mapping[str, Tensor],
    tracked: TrackedModels,
    draw: Any,
) -> Expected:
    """What a method's clients answer in this round."""
    vector = Like(x.dtype, tuple(x.shape))
    up = traffic_of(method, draw).up
    vectors = {name: vector for name, is_vector in up.items() if is_vector}
    numbers = {name for name, is_vector in up.items() if not is_vector}
    if tracked.cohort:
        vectors[COHORT] = vector
    if tracked.last:
        vectors[CHANGE] = vector
    if order.diagnose:
        vectors[MOVED] = vector
        numbers |= {SQUARE, A_NORM}
    return Expected(
        vectors,
        frozenset(numbers),
        {name: Like(value.dtype, tuple(value.shape)) for name, value in buffers.items()},
    )


def _reply(
    order: Order,
    upload: Upload,
    buffers: dict[str, Tensor],
    steps: int,
    evaluations: int,
    down: dict[str, int],
    up: dict[str, int],
    wrong: str | None,
) -> Reply:
    version = torch.tensor([order.version], dtype=torch.float64)
    return Reply(
        client=order.client,
        upload=upload,
        keep=Keep(**{VERSION: version}),
        buffers=buffers,
        steps=steps,
        evaluations=evaluations,
        complete=steps >= order.work.expected,
        down=down,
        up=up,
        wrong=wrong,
    )


def _whole(values: Mapping[str, Any], name: str, most: int) -> int:
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
        raise Refused(f"its {name} are no number from 0 to {most}")
    return found


def _sorted(named: Named) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The numbers, and the vectors."""
    numbers, vectors = {}, {}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.dim():
            vectors[name] = value
        elif value is None:
            raise UndriftError(f"{type(named).__name__} has nothing under {name!r} to send.")
        else:
            numbers[name] = float(value)
    return numbers, vectors


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
