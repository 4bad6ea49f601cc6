"""The messages of a deployment: requests that the server sends, and answers that it checks.

`wire_format` turns them into bytes, and a `Transport` carries those. The server checks every answer
against what the method declares before it uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from undrift.core.diagnostics import A_NORM, MOVED, SQUARE
from undrift.core.messages import CHANGE, COHORT, Reply, TrackedModels, buffer_bytes, bytes_of
from undrift.core.method import Method
from undrift.core.problem import Client, Download, Keep, Named, Upload, Work
from undrift.deploy.wire_format import (
    InvalidMessage,
    TensorSpec,
    check_numbers,
    check_tensors,
    decode,
    encode,
    size_bytes,
)
from undrift.methods.traffic import traffic_of
from undrift.utils.errors import UndriftError

IDENTIFY, DESCRIBE, WORK, EVALUATE = "identify", "describe", "work", "evaluate"
"""The kinds of requests: say your name, describe your data and model, train, evaluate a model."""
MAX_REQUEST_BYTES = 4_000_000_000
"""The largest request that a site accepts."""
OVERHEAD_BYTES = 1_000_000
"""How many bytes an answer may have besides its tensors."""
VERSION = "@version"
"""The server's state of a client: the version of the client's state, kept at its site, that the
server accepted last."""
SHOWN_CHARACTERS = 300
"""Records quote at most this much of what a site says."""


@dataclass(frozen=True)
class WorkRequest:
    """A client's assignment as it is sent to its site, with the state to start from."""

    run: str
    """identifies the run: sites keep states by run"""
    label: str
    """the method's label in the experiment"""
    seed: int
    client: Client
    work: Work
    base: int
    """the version of the client's state to start from; 0 if it has not taken part yet"""
    committed: int
    """the version that a restarted server continues from: the site keeps it and all that follow"""
    version: int
    """the version of the new state"""
    diagnose: bool
    """whether to upload what the diagnostics of a round need"""
    budget: float | None
    """the seconds within which the site does as many steps as it can; None for all steps"""
    download: Download
    buffers: Mapping[str, Tensor]

    def encoded(self) -> bytes:
        """The request as bytes; `parse_work_request` is the inverse."""
        numbers, vectors = _split(self.download)
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
        tensors = _add_prefix("down ", vectors) | _add_prefix("buffers ", self.buffers)
        return encode(values, tensors)

    def rejected(self, why: str, steps: int = 0, evaluations: int = 0) -> Reply:
        """The reply that stands for an unusable answer to this request."""
        down = bytes_of(self.download) | buffer_bytes(self.buffers)
        return _reply(self, Upload(), {}, steps, evaluations, down, {}, why)


def parse_work_request(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> WorkRequest:
    """The request with these decoded values and tensors."""
    try:
        return WorkRequest(
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
            download=Download(**values["numbers"], **_with_prefix("down ", tensors)),
            buffers=_with_prefix("buffers ", tensors),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidMessage(
            f"The work request is incomplete ({type(error).__name__}: {error})."
        ) from None


def encode_work_answer(request: WorkRequest, reply: Reply) -> bytes:
    """A site's answer to a work request; of an unusable reply it has only the reason."""
    values: dict[str, Any] = {
        "run": request.run,
        "client": request.client.id,
        "version": request.version,
        "steps": reply.steps,
        "evaluations": reply.evaluations,
        "wrong": reply.wrong,
        "numbers": {},
    }
    if reply.wrong is not None:
        return encode(values, {})
    values["numbers"], vectors = _split(reply.upload)
    tensors = _add_prefix("up ", vectors) | _add_prefix("buffers ", reply.buffers)
    return encode(values, tensors)


@dataclass(frozen=True)
class ExpectedAnswer:
    """What the answer to a work request must contain, as the method declares it."""

    vectors: Mapping[str, TensorSpec]
    numbers: frozenset[str]
    buffers: Mapping[str, TensorSpec]

    @property
    def max_bytes(self) -> int:
        """The largest allowed answer."""
        return size_bytes(self.vectors) + size_bytes(self.buffers) + OVERHEAD_BYTES

    def parse(self, data: bytes, request: WorkRequest) -> Reply:
        """The reply in an answer; `InvalidMessage` if it is not exactly what was asked for."""
        values, tensors = decode(data, self.max_bytes)
        raise_site_error(values)
        for name, wanted in (
            ("run", request.run),
            ("client", request.client.id),
            ("version", request.version),
        ):
            # True == 1, so a bool would pass for the version.
            if values.get(name) != wanted or isinstance(values.get(name), bool):
                raise InvalidMessage(f"it answers another request: {name!r} is not {wanted!r}")
        steps = _integer(values, "steps", request.work.steps)
        evaluations = _integer(values, "evaluations", 2**62)
        wrong = values.get("wrong")
        if wrong is not None:
            return request.rejected(str(wrong)[:SHOWN_CHARACTERS], steps, evaluations)
        numbers = values.get("numbers")
        if not isinstance(numbers, dict):
            raise InvalidMessage("'numbers' is missing")
        found = check_numbers(numbers, self.numbers)
        vectors, buffers = _with_prefix("up ", tensors), _with_prefix("buffers ", tensors)
        if len(vectors) + len(buffers) != len(tensors):
            raise InvalidMessage("it has tensors that were not asked for")
        check_tensors(vectors, self.vectors)
        check_tensors(buffers, self.buffers)
        upload = Upload(**vectors, **found)
        # Names with @ are diagnostics and tracked models, which the cost of a method leaves out.
        counted = {n: v for n, v in upload.items() if not n.startswith("@")}
        up = bytes_of(Upload(**counted)) | buffer_bytes(buffers)
        down = bytes_of(request.download) | buffer_bytes(request.buffers)
        return _reply(request, upload, buffers, steps, evaluations, down, up, None)


def raise_site_error(values: Mapping[str, Any]) -> None:
    """Raise the error that a site sent in place of an answer, if it did."""
    if "error" in values:
        raise InvalidMessage(f"the site reports: {str(values['error'])[:SHOWN_CHARACTERS]}")


def expected_answer(
    method: Method,
    request: WorkRequest,
    x: Tensor,
    tracked: TrackedModels,
    draw: Callable[[str], float],
) -> ExpectedAnswer:
    """What the answer to a request must contain.

    `x` is any model, for its type and shape; `draw` gives the random numbers of the round, on which
    a method's uploads may depend.
    """
    vector = TensorSpec(x.dtype, tuple(x.shape))
    up = traffic_of(method, draw).up
    vectors = {name: vector for name, is_vector in up.items() if is_vector}
    numbers = {name for name, is_vector in up.items() if not is_vector}
    if tracked.cohort:
        vectors[COHORT] = vector
    if tracked.last:
        vectors[CHANGE] = vector
    if request.diagnose:
        vectors[MOVED] = vector
        numbers |= {SQUARE, A_NORM}
    buffers = {
        name: TensorSpec(value.dtype, tuple(value.shape)) for name, value in request.buffers.items()
    }
    return ExpectedAnswer(vectors, frozenset(numbers), buffers)


def _reply(
    request: WorkRequest,
    upload: Upload,
    buffers: dict[str, Tensor],
    steps: int,
    evaluations: int,
    down: dict[str, int],
    up: dict[str, int],
    wrong: str | None,
) -> Reply:
    version = torch.tensor([request.version], dtype=torch.float64)
    return Reply(
        client=request.client,
        upload=upload,
        keep=Keep(**{VERSION: version}),
        buffers=buffers,
        steps=steps,
        evaluations=evaluations,
        complete=steps >= request.work.expected,
        down=down,
        up=up,
        wrong=wrong,
    )


def _integer(values: Mapping[str, Any], name: str, most: int) -> int:
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
        raise InvalidMessage(f"{name!r} must be an integer in [0, {most}]")
    return found


def _split(named: Named) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The numbers and the vectors among named values."""
    numbers, vectors = {}, {}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.dim():
            vectors[name] = value
        elif value is None:
            raise UndriftError(f"{type(named).__name__}.{name} is None and cannot be sent.")
        else:
            numbers[name] = float(value)
    return numbers, vectors


def _add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, by their names without it."""
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
