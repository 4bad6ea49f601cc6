"""The engine of a deployment: it asks the sites for the clients' work, and collects the answers.

`RemoteFederation` and `RemoteEngine` take the place of the losses and the engine of a simulation.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undrift.core.clients import ClientStates
from undrift.core.losses import Federation
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.problem import Client
from undrift.core.round_result import RoundResult
from undrift.core.targets import PARTS
from undrift.deploy.protocol import (
    EVALUATE,
    OVERHEAD_BYTES,
    VERSION,
    ExpectedAnswer,
    WorkRequest,
    expected_answer,
    raise_site_error,
)
from undrift.deploy.transport import REFUSED, Answer, Transport
from undrift.deploy.wire_format import InvalidMessage, decode, encode
from undrift.engines.base import Engine, Job
from undrift.loops.paces import Deadline, FirstToRespond, Pace
from undrift.nets.flat import FlatModule
from undrift.utils.keys import generator

MAX_METRICS = 100
"""The most metrics that one site may send."""
METRIC_NAME = re.compile(r"\w[\w .²-]{0,60}")
"""Allowed names of metrics, after the part and an underscore."""
DRAIN_SECONDS = 0.01
"""How long to wait for each answer that may already be there."""
NO_ANSWER = "no answer"
"""The reason recorded for a site that did not answer in time."""

Waiting = Callable[[Collection[str]], None]
"""Is told which sites the server waits for; an empty collection when it waits no more."""


class RemoteFederation(Federation):
    """The clients of a deployment: the server has the model and the sites' numbers of samples.

    Parameters
    ----------
    module
        the initial model
    samples
        the number of samples of each site, by part
    moving
        the names of the model's buffers that training changes
    """

    def __init__(
        self, module: nn.Module, samples: Mapping[str, Mapping[str, int]], moving: Collection[str]
    ):
        self.flat = FlatModule(module, torch.device("cpu"))
        self.samples = samples
        self.ids = list(samples)
        self.sizes = torch.tensor([samples[site]["train"] for site in samples])
        self.dimension = len(self.flat.x)
        self._initial = self.flat.x.clone()
        buffers = self.flat.buffers()
        self._buffers = {name: buffers[name] for name in sorted(moving)}

    def initial(self) -> Tensor:
        return self._initial.clone()

    def initial_buffers(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._buffers.items()}

    def fingerprint(self) -> str:
        return blake2b(json.dumps(self.samples).encode(), digest_size=16).hexdigest()

    @property
    def parts(self) -> tuple[str, ...]:
        found = {part for own in self.samples.values() for part in own}
        return tuple(part for part in PARTS if part in found)


class WorkResult(NamedTuple):
    """What came of a work request."""

    client: Client
    reply: Reply | None
    """the reply, possibly a rejected one; None if the site sent none"""
    failure: str = ""
    """why there is no reply"""


class RemoteEngine(Engine):
    """Has the clients' work done at their sites, with the wall clock as the clock.

    Every request has a ticket. A ticket is in exactly one of three places: in `_open` while its
    answer is wanted; in `_overdue` when the round has ended without it, since its site is still at
    work; in neither once it is answered or forgotten. Evaluation requests are tracked by `evaluate`
    alone, as it returns only when they are answered or forgotten.

    Parameters
    ----------
    losses, job
        as for every engine
    transport
        carries requests and answers
    run
        identifies the run at the sites
    label
        the method's label in the experiment
    timeout
        the seconds that a site may take to answer
    pace
        when a round ends
    waiting
        is told which sites the server waits for
    """

    losses: RemoteFederation
    strategy = "at the sites"

    def __init__(
        self,
        losses: RemoteFederation,
        job: Job,
        transport: Transport,
        run: str,
        label: str,
        timeout: float,
        pace: Pace,
        waiting: Waiting = lambda sites: None,
    ):
        self.losses = losses
        self.job = job
        self.transport = transport
        self.waiting = waiting
        self._run = run
        self._label = label
        self._timeout = timeout
        self._pace = pace
        self._open: dict[str, WorkRequest] = {}
        """work requests whose answer is wanted, by ticket"""
        self._overdue: dict[str, tuple[str, float]] = {}
        """by ticket: sites still at work for a round that ended, and when to stop expecting them"""
        self._deferred: deque[Answer] = deque()
        """answers to work requests that arrived while the engine waited for something else"""
        self._committed: dict[Hashable, int] = {}
        """the version of each client's state that a restarted server continues from"""
        self._rejected_metrics: list[tuple[Hashable, str]] = []

    def begin_round(self, states: ClientStates) -> None:
        """Note the versions of the clients' states that the store has when a round begins.

        If the server dies during the round, it resumes with these versions. The sites are told so
        with every request, and keep them until a later round is committed.
        """
        self._committed = {id: _version(states, id) for id in states.seen()}

    def idle_sites(self) -> set[str]:
        """The connected sites, except those still at work for a round that ended without them."""
        # A site does one thing at a time: a request would wait behind the overdue work, and most
        # likely be late as well.
        while self._overdue and (answer := self._receive(DRAIN_SECONDS)) is not None:
            if answer.ticket in self._open:
                self._deferred.append(answer)
        for ticket, (_, until) in list(self._overdue.items()):
            if time.monotonic() > until:
                self.transport.forget(ticket)
                del self._overdue[ticket]
        return set(self.transport.sites()) - {site for site, _ in self._overdue.values()}

    def next_answer(self, seconds: float) -> Answer | None:
        """The next answer, or None if there is none within `seconds`."""
        return self._deferred.popleft() if self._deferred else self._receive(seconds)

    def _receive(self, seconds: float) -> Answer | None:
        answer = self.transport.next(seconds)
        if answer is not None:
            self._overdue.pop(answer.ticket, None)
        return answer

    # Single requests

    def request_work(
        self, method: Method, assignment: Assignment, states: ClientStates, diagnose: bool
    ) -> str:
        """Send a client's assignment to its site, and return the ticket."""
        id = assignment.client.id
        base = _version(states, id) if id in set(states.seen()) else 0
        request = WorkRequest(
            run=self._run,
            label=self._label,
            seed=self.job.seed,
            client=assignment.client,
            work=assignment.work,
            base=base,
            committed=self._committed.get(id, 0),
            # Grows from one request of a client to the next. A resumed server uses the numbers
            # after its last commit again, and the site overwrites those files. A base is always a
            # version whose answer the server accepted, so it is never a leftover.
            version=assignment.work.turn + 1,
            diagnose=diagnose,
            budget=self._pace.budget if isinstance(self._pace, Deadline) else None,
            download=assignment.download,
            buffers=assignment.buffers,
        )
        max_bytes = self._expected(method, request).max_bytes
        ticket = self.transport.send(str(id), request.encoded(), self._seconds(), max_bytes)
        self._open[ticket] = request
        return ticket

    def work_result(self, method: Method, answer: Answer) -> WorkResult | None:
        """What an answer to a work request says; None if no such request is open."""
        request = self._open.pop(answer.ticket, None)
        if request is None:
            return None
        if answer.failure is not None:
            refused = answer.failure.startswith(REFUSED)
            reply = request.rejected(answer.failure) if refused else None
            return WorkResult(request.client, reply, answer.failure)
        try:
            reply = self._expected(method, request).parse(answer.data, request)
        except InvalidMessage as error:
            reply = request.rejected(f"{REFUSED}: {str(error).rstrip('.')}")
        return WorkResult(request.client, reply)

    def _expected(self, method: Method, request: WorkRequest) -> ExpectedAnswer:
        def draw(purpose: str) -> float:
            return generator(self.job.seed, purpose, request.work.round).random()

        return expected_answer(method, request, self.losses.flat.x, self.job.tracked, draw)

    # Rounds

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        assignments = list(assignments)
        result = self.job.result(method, round, diagnose)
        waiting = {
            self.request_work(method, assignment, states, diagnose): assignment.client
            for assignment in assignments
        }
        replies: dict[Hashable, Reply] = {}
        began = time.monotonic()
        ends = began + self._seconds()
        while waiting and not self._has_enough(replies):
            left = ends - time.monotonic()
            answer = self.next_answer(left) if left > 0 else None
            if answer is None:
                break
            waiting.pop(answer.ticket, None)
            found = self.work_result(method, answer)
            if found is None:
                continue
            if found.reply is not None:
                replies[found.client.id] = found.reply
            else:
                result.lost[found.client.id] = found.failure
        for ticket, client in waiting.items():
            del self._open[ticket]
            self._overdue[ticket] = str(client.id), began + self._timeout
            result.lost[client.id] = "late" if self._has_enough(replies) else NO_ANSWER
        # In the order of the assignments, not of arrival: floating-point sums depend on the order.
        for assignment in assignments:
            if assignment.client.id in replies:
                result.take(replies[assignment.client.id])
        return result

    def _has_enough(self, replies: Mapping[Hashable, Reply]) -> bool:
        """Whether the pace ends the round with these replies."""
        usable = sum(reply.wrong is None for reply in replies.values())
        return isinstance(self._pace, FirstToRespond) and usable >= self._pace.replies

    def _seconds(self) -> float:
        """How long the answer to a work request is waited for."""
        if isinstance(self._pace, Deadline):
            return min(self._pace.seconds, self._timeout)
        return self._timeout

    # Evaluation

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
    ) -> dict[str, float]:
        """Metrics over the sites that answer: the training loss by q_k, the others by samples."""
        idle = self.idle_sites()
        request = encode(
            {"kind": EVALUATE, "seed": self.job.seed, "parts": list(parts)},
            {"x": x, **{f"buffers {name}": value for name, value in buffers.items()}},
        )
        waiting = {
            self.transport.send(str(site), request, self._timeout, OVERHEAD_BYTES): site
            for site in self.losses.ids
            if site in idle
        }
        found: dict[Hashable, dict[str, float]] = {}
        ends = time.monotonic() + self._timeout
        while waiting and time.monotonic() < ends:
            answer = self._receive(ends - time.monotonic())
            if answer is None:
                break
            if answer.ticket in self._open:  # asynchronous work, which the loop takes in later
                self._deferred.append(answer)
                continue
            site = waiting.pop(answer.ticket, None)
            if site is not None:
                try:
                    found[site] = _metrics_in(answer, parts)
                except InvalidMessage as error:
                    self._reject_metrics(site, str(error))
        for ticket, site in waiting.items():
            self.transport.forget(ticket)
            self._reject_metrics(site, NO_ANSWER)
        return _combined(self.losses, weights, self._consistent(found))

    def _consistent(
        self, found: dict[Hashable, dict[str, float]]
    ) -> dict[Hashable, dict[str, float]]:
        """The sites that have the same metrics as most of them; the others are rejected."""
        kinds = Counter(frozenset(metrics) for metrics in found.values())
        usual = kinds.most_common(1)[0][0] if kinds else frozenset()
        for site in [site for site, metrics in found.items() if metrics.keys() != usual]:
            self._reject_metrics(site, "its metrics differ from those of the other sites")
            del found[site]
        return found

    def _reject_metrics(self, site: Hashable, why: str) -> None:
        self._rejected_metrics.append((site, f"{REFUSED}: evaluation, {why.rstrip('.')}"))

    def take_rejected_metrics(self) -> list[tuple[Hashable, str]]:
        """The sites whose metrics were rejected since the last call, with the reasons."""
        found, self._rejected_metrics = self._rejected_metrics, []
        return found


def _version(states: ClientStates, id: Hashable) -> int:
    return int(getattr(states.get(id), VERSION))


def _metrics_in(answer: Answer, parts: Collection[str]) -> dict[str, float]:
    """The metrics in an answer, checked to be of the parts that were asked for."""
    if answer.failure is not None:
        raise InvalidMessage(answer.failure)
    values, tensors = decode(answer.data, OVERHEAD_BYTES)
    raise_site_error(values)
    found = values.get("metrics")
    if tensors or not isinstance(found, dict) or not 0 < len(found) <= MAX_METRICS:
        raise InvalidMessage("it has no metrics")
    for name, value in found.items():
        part, _, metric = name.partition("_")
        shown = repr(name[:40])
        if part not in parts or not METRIC_NAME.fullmatch(metric):
            raise InvalidMessage(f"{shown} was not asked for")
        if value is None:  # undefined at this site
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidMessage(f"{shown} must be a number")
        if metric == "accuracy" and not 0 <= value <= 1:
            raise InvalidMessage(f"{shown} must be in [0, 1]")
    return {name: math.nan if value is None else float(value) for name, value in found.items()}


def _combined(
    losses: RemoteFederation, weights: Tensor, found: Mapping[Hashable, Mapping[str, float]]
) -> dict[str, float]:
    """The metrics of all sites from those of each: training losses by q_k, others by samples.

    A site on which a metric is undefined does not count in it; an undefined loss is not hidden.
    """
    q = dict(zip(losses.ids, weights.tolist(), strict=True))
    names = dict.fromkeys(name for metrics in found.values() for name in metrics)
    combined = {}
    for name in names:
        part = name.partition("_")[0]
        shares = {
            site: q[site] if name == "train_loss" else losses.samples[str(site)].get(part, 0)
            for site, metrics in found.items()
            if name in metrics and (name.endswith("_loss") or not math.isnan(metrics[name]))
        }
        total = sum(shares.values())
        if total:
            combined[name] = sum(w / total * found[site][name] for site, w in shares.items())
    combined |= _accuracy_spread(found)
    if "train_loss" not in combined:
        combined["train_loss"] = float("nan")
    return combined


def _accuracy_spread(found: Mapping[Hashable, Mapping[str, float]]) -> dict[str, float]:
    """Accuracy per site: mean, standard deviation, and mean of the worst tenth of the sites."""
    for part in ("test", "train"):
        name = f"{part}_accuracy"
        each = [metrics[name] for metrics in found.values() if name in metrics]
        if len(each) > 1:
            values = torch.tensor(each, dtype=torch.float64).sort().values
            worst = values[: max(1, len(values) // 10)]
            return {
                f"{part}_client_accuracy_mean": float(values.mean()),
                f"{part}_client_accuracy_std": float(values.std(correction=0)),
                f"{part}_client_accuracy_worst_tenth": float(worst.mean()),
            }
    return {}
