"""The answers of a deployment: a site makes them, and the server checks them.

`orders` has the requests that they answer. The server checks every answer against what the method
declares before it uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from undrift.compression import InvalidEncoding
from undrift.compression.wire import UploadCoder
from undrift.core.diagnostics import A_NORM, MOVED, SQUARE
from undrift.core.messages import CHANGE, COHORT, Reply, TrackedModels, buffer_bytes
from undrift.core.method import Method
from undrift.core.problem import Client, Keep, Upload, Work
from undrift.core.uploads import UploadChain
from undrift.deploy.orders import DESCRIBE as DESCRIBE
from undrift.deploy.orders import EVALUATE as EVALUATE
from undrift.deploy.orders import IDENTIFY as IDENTIFY
from undrift.deploy.orders import WORK as WORK
from undrift.deploy.orders import WorkOrder, add_prefix, split, with_prefix
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
from undrift.utils.plain_text import plain_text

MAX_REQUEST_BYTES = 4_000_000_000
"""The largest request that a site accepts."""
OVERHEAD_BYTES = 1_000_000
"""How many bytes an answer may have besides its tensors."""
NOT_COUNTED = (COHORT, CHANGE, MOVED, SQUARE, A_NORM)
"""Tracked models and diagnostics, which the cost of a method leaves out."""
VERSION = "@version"
"""The server's state of a client: the version of the client's state, kept at its site, that the
server accepted last."""
REPORTED = "its training failed"
"""The first words of the reason why a reply is rejected that says itself that it is unusable."""
SITE_ERROR = "the site reports: "
"""The first words of the reason why there is no reply if the site sent an error in its place."""
LACKS = "lacks"
"""The name of what an error has besides its sentence if the site needs whole vectors."""
CODED = "coded "
"""Beginning of the names of tensors that encode compressed vectors."""
RUNNING_VARIANCE = "running_var"
"""What torch's normalising layers call the buffer with their variances."""
SHOWN_CHARACTERS = 300
"""Records quote at most this much of what a site says."""


@dataclass(frozen=True)
class WorkRequest:
    """A work order that the server has sent, with what it expects of the answer."""

    order: WorkOrder
    client: Client
    work: Work
    method: Method
    diagnose: bool
    """whether the upload has what the diagnostics of a round need"""
    down_before: Mapping[str, int] = field(default_factory=dict)
    """the bytes of an order of the same work that the site could not use, by tensor"""

    @property
    def down(self) -> dict[str, int]:
        """The bytes that were sent to the site, by tensor."""
        found = Counter(self.order.down_bytes)
        found.update(self.down_before)
        return dict(found)

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The buffers that were sent."""
        return self.order.buffers

    def rejected(self, why: str, steps: int = 0, evaluations: int = 0) -> Reply:
        """The reply that stands for an unusable answer to this request."""
        return _reply(self, Upload(), {}, steps, evaluations, self.down, {}, why)


def sent_tensors(
    reply: Reply,
    work: Work,
    coder: UploadCoder | None,
    masked: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The tensors of a usable reply as they travel: compressed vectors in their encoding.

    With secure aggregation, `masked` takes the place of the uploaded vectors.
    """
    _, vectors = split(reply.upload)
    coded: dict[str, Tensor] = {}
    if masked is not None:
        vectors = dict(masked)
    elif coder is not None:
        coded = add_prefix(CODED, coder.encode(vectors, work))
        # A whole vector for diagnostics would be larger than the compressed upload.
        left_out = {*coder.names, MOVED}
        vectors = {name: value for name, value in vectors.items() if name not in left_out}
    return add_prefix("up ", vectors) | coded | add_prefix("buffers ", reply.buffers)


def encode_work_answer(
    order: WorkOrder,
    reply: Reply,
    work: Work,
    coder: UploadCoder | None = None,
    masked: Mapping[str, Tensor] | None = None,
) -> bytes:
    """A site's answer to a work order; of an unusable reply it has only the reason.

    `coder` and `masked` are as in `sent_tensors`.
    """
    values: dict[str, Any] = {
        "run": order.terms.key,
        "client": reply.client.id,
        "version": order.version,
        "steps": reply.steps,
        "evaluations": reply.evaluations,
        "wrong": reply.wrong,
        "numbers": {},
    }
    if reply.wrong is not None:
        return encode(values, {})
    values["numbers"], _ = split(reply.upload)
    return encode(values, sent_tensors(reply, work, coder, masked))


@dataclass(frozen=True)
class ExpectedAnswer:
    """What the answer to a work request must contain, as the method declares it."""

    vectors: Mapping[str, TensorSpec]
    numbers: frozenset[str]
    buffers: Mapping[str, TensorSpec]
    uploads: UploadChain
    vector: TensorSpec
    """the type and shape of the model"""
    coder: UploadCoder | None = None
    """decodes compressed vectors, which are not in `vectors`"""

    @property
    def coded(self) -> dict[str, TensorSpec]:
        """The tensors of compressed vectors, as they travel."""
        if self.coder is None:
            return {}
        layout = self.coder.layout(self.vector.shape[0], self.vector.dtype)
        return {name: TensorSpec(*each) for name, each in layout.items()}

    @property
    def max_bytes(self) -> int:
        """The largest allowed answer."""
        sizes = (size_bytes(each) for each in (self.vectors, self.coded, self.buffers))
        return sum(sizes) + OVERHEAD_BYTES

    def parse(self, data: bytes, request: WorkRequest) -> Reply:
        """The reply in an answer; `InvalidMessage` if it is not exactly what was asked for."""
        values, tensors = decode(data, self.max_bytes)
        raise_site_error(values)
        for name, wanted in (
            ("run", request.order.terms.key),
            ("client", request.client.id),
            ("version", request.order.version),
        ):
            # True == 1, so a bool would pass for the version.
            if values.get(name) != wanted or isinstance(values.get(name), bool):
                raise InvalidMessage(f"it answers another request: {name!r} is not {wanted!r}")
        steps = _integer(values, "steps", request.work.steps)
        evaluations = _integer(values, "evaluations", 2**62)
        wrong = values.get("wrong")
        if wrong is not None:
            why = f"{REPORTED}: {plain_text(wrong, SHOWN_CHARACTERS)}"
            return request.rejected(why, steps, evaluations)
        numbers = values.get("numbers")
        if not isinstance(numbers, dict):
            raise InvalidMessage("'numbers' is missing")
        found = check_numbers(numbers, self.numbers)
        vectors, buffers = with_prefix("up ", tensors), with_prefix("buffers ", tensors)
        coded = with_prefix(CODED, tensors)
        if len(vectors) + len(buffers) + len(coded) != len(tensors):
            raise InvalidMessage("it has tensors that were not asked for")
        check_tensors(vectors, self.vectors)
        check_tensors(buffers, self.buffers)
        _require_variances(buffers)
        upload = Upload(**vectors, **self._decoded(coded, request.work), **found)
        counted = {n: v for n, v in upload.items() if n not in NOT_COUNTED}
        up = self.uploads.sent_bytes(request.method, Upload(**counted)) | buffer_bytes(buffers)
        return _reply(request, upload, buffers, steps, evaluations, request.down, up, None)

    def _decoded(self, coded: Mapping[str, Tensor], work: Work) -> dict[str, Tensor]:
        """The compressed vectors; `InvalidMessage` if the tensors are no encoding of any."""
        check_tensors(coded, self.coded)
        if self.coder is None:
            return {}
        size, dtype = self.vector.shape[0], self.vector.dtype
        try:
            return self.coder.decode(coded, size, dtype, work)
        except InvalidEncoding as error:
            raise InvalidMessage(str(error)) from None


def lacks_vectors(data: bytes) -> bool:
    """Whether an answer says that the site has not got the vectors that its order changes."""
    try:
        values, _ = decode(data, OVERHEAD_BYTES)
    except InvalidMessage:
        return False
    return values.get(LACKS) is True


def raise_site_error(values: Mapping[str, Any]) -> None:
    """Raise the error that a site sent in place of an answer, if it did."""
    if "error" in values:
        raise InvalidMessage(f"{SITE_ERROR}{plain_text(values['error'], SHOWN_CHARACTERS)}")


def expected_answer(
    method: Method,
    request: WorkRequest,
    x: Tensor,
    tracked: TrackedModels,
    draw: Callable[[str], float],
    uploads: UploadChain,
    coder: UploadCoder | None,
) -> ExpectedAnswer:
    """What the answer to a request must contain.

    `x` is any model, for its type and shape; `draw` gives the random numbers of the round, on which
    a method's uploads may depend; `uploads` and `coder` are the run's transforms and its coder.
    """
    vector = TensorSpec(x.dtype, tuple(x.shape))
    up = traffic_of(method, draw).up
    vectors = {name: vector for name, is_vector in up.items() if is_vector}
    numbers = {name for name, is_vector in up.items() if not is_vector} | uploads.numbers()
    if tracked.cohort:
        vectors[COHORT] = vector
    if tracked.last:
        vectors[CHANGE] = vector
    if request.diagnose:
        numbers |= {SQUARE, A_NORM}
        if coder is None:
            vectors[MOVED] = vector
    buffers = {
        name: TensorSpec(value.dtype, tuple(value.shape)) for name, value in request.buffers.items()
    }
    if coder is not None:
        vectors = {name: spec for name, spec in vectors.items() if name not in coder.names}
    return ExpectedAnswer(vectors, frozenset(numbers), buffers, uploads, vector, coder)


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
    version = torch.tensor([request.order.version], dtype=torch.float64)
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


def _require_variances(buffers: Mapping[str, Tensor]) -> None:
    """Refuse negative variances of normalising layers: their square roots would ruin the model."""
    for name, value in buffers.items():
        if name.rpartition(".")[2] == RUNNING_VARIANCE and bool((value < 0).any()):
            raise InvalidMessage(f"the variance {name!r} is negative")


def _integer(values: Mapping[str, Any], name: str, most: int) -> int:
    found = values.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
        raise InvalidMessage(f"{name!r} must be an integer in [0, {most}]")
    return found
