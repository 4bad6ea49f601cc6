"""The engine of a deployment: it asks the sites for the clients' work, and collects the answers.

`RemoteEngine` takes the place of the engine of a simulation.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from undrift.compression.wire import coder_of
from undrift.core.client_metrics import ClientMetrics
from undrift.core.clients import ClientStates
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.problem import Client
from undrift.core.round_result import RoundResult
from undrift.core.uploads import Senders
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.deploy.downloads.history import DownloadHistory
from undrift.deploy.federation import RemoteFederation
from undrift.deploy.guards.metrics import combined_metrics, has_own_models, metrics_in
from undrift.deploy.orders import EvaluationOrder, RunTerms, WorkOrder
from undrift.deploy.protocol import (
    OVERHEAD_BYTES,
    VERSION,
    ExpectedAnswer,
    WorkRequest,
    expected_answer,
    lacks_vectors,
)
from undrift.deploy.transport import REFUSED, Answer, Transport
from undrift.deploy.wire_format import InvalidMessage
from undrift.engines.base import Engine, Job
from undrift.loops.paces import Deadline, FirstToRespond, Pace
from undrift.utils.keys import generator
from undrift.utils.plain_text import plain_text

DRAIN_SECONDS = 0.01
"""How long to wait for each answer that may already be there."""
EXPULSION_SECONDS = 1.0
"""How often the server checks, while it waits for answers, whether a site was expelled."""
NO_ANSWER = "no answer"
"""The reason recorded for a site that did not answer in time."""
EXPELLED = "expelled"
"""The reason recorded for a site that was expelled while it was at work."""

Waiting = Callable[[Collection[str]], None]
"""Is told which sites the server waits for; an empty collection when it waits no more."""


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
        identifies the run folder at the sites
    label
        the method's label in the experiment
    rounds
        the number of rounds of the run
    attempt
        how often the server has been started with this run folder
    timeout
        the seconds that a site may take to answer
    pace
        when a round ends
    waiting
        is told which sites the server waits for
    expelled
        returns the sites that are expelled at the moment: they are not asked, and their answers
        are refused
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
        rounds: int,
        attempt: int,
        timeout: float,
        pace: Pace,
        waiting: Waiting = lambda sites: None,
        expelled: Callable[[], Collection[str]] = frozenset,
    ):
        self.losses = losses
        self.job = job
        self._coder = coder_of(job.uploads, job.seed)
        self._expelled = expelled
        self._revoked: set[str] = set()
        self._answers: tuple[dict[Hashable, Reply], dict[Hashable, str]] = {}, {}
        """the replies of the last round, and the sites that were lost in it"""
        self.site_metrics: list[dict[Hashable, dict[str, float]]] = []
        """the metrics of each site, one entry per evaluated model"""
        self.transport = transport
        self.waiting = waiting
        roster = job.roster
        numbers = zip(roster.sizes.tolist(), roster.weights.tolist(), strict=True)
        rows = dict(zip(map(str, roster.ids), numbers, strict=True))
        self._terms = RunTerms(run, label, job.seed, attempt, rounds, rows)
        self.available: tuple[str, ...] | None = None
        """the sites among which the cohort of the round was drawn; None for all"""
        self.cohort: tuple[str, ...] = ()
        """the cohort of the round, in the order of the roster"""
        self.full_cohort = 0
        """how many sites it would have if all were available"""
        self._to_measure: deque[tuple[int, str]] = deque()
        """the round and the names of the models that are evaluated next"""
        self._versions: dict[Hashable, int] = {}
        """the versions of the clients' states that their own models belong to"""
        self._timeout = timeout
        self._pace = pace
        self._open: dict[str, WorkRequest] = {}
        """work requests whose answer is wanted, by ticket"""
        self._overdue: dict[str, tuple[str, float]] = {}
        """by ticket: sites still at work for a round that ended, and when to stop expecting them"""
        self._deferred: deque[Answer] = deque()
        """answers to work requests that arrived while the engine waited for something else"""
        self._committed: dict[Hashable, int] = {}
        """the oldest version of each client's state that a restarted server may continue from"""
        self._rejected_metrics: list[tuple[Hashable, str]] = []
        self.downloads: DownloadHistory | None = None
        """what each site lacks of compressed downloads; None if they are sent as they are"""

    def begin_round(self, states: ClientStates) -> None:
        """Note the versions of the clients' states that the store has when a round begins.

        If the server dies during the round, or goes back to an earlier one, it resumes with these
        versions or later ones. The sites are told so with every request, and keep them.
        """
        self._committed = {id: int(getattr(states.oldest(id), VERSION)) for id in states.seen()}

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
        return self.connected_sites() - {site for site, _ in self._overdue.values()}

    def expelled_sites(self) -> set[str]:
        """The expelled sites; the key of one that is new among them is revoked."""
        expelled = set(self._expelled())
        for site in expelled - self._revoked:
            self.transport.revoke(site)
        self._revoked = expelled
        return expelled

    def connected_sites(self) -> set[str]:
        """The connected sites that are not expelled."""
        return set(self.transport.sites()) - self.expelled_sites()

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
        history, download = self.downloads, assignment.download
        order = WorkOrder(
            terms=self._terms,
            round=assignment.work.round,
            turn=assignment.work.turn,
            base=base,
            committed=self._committed.get(id, 0),
            available=self.available,
            download=download,
            buffers=assignment.buffers,
            sealed=self._sealed(str(id)),
            changes={} if history is None else history.lacked_by(str(id), download),
        )
        return self._send(WorkRequest(order, assignment.client, assignment.work, method, diagnose))

    def _send(self, request: WorkRequest) -> str:
        max_bytes = self._expected(request.method, request).max_bytes
        site, data = str(request.client.id), request.order.encoded()
        ticket = self.transport.send(site, data, self._seconds(), max_bytes)
        self._open[ticket] = request
        return ticket

    def _send_whole(self, answer: Answer) -> str | None:
        """Send an order again with whole vectors, if the site answered that it lacks some.

        Returns the new ticket, or None if the answer says something else.
        """
        request = self._open.get(answer.ticket)
        if request is None or not request.order.changes or answer.failure is not None:
            return None
        if not lacks_vectors(answer.data):
            return None
        del self._open[answer.ticket]
        whole = replace(request.order, changes={})
        return self._send(replace(request, order=whole, down_before=request.down))

    def _sealed(self, site: str) -> Mapping[str, str] | None:
        """What a work order has for secure aggregation; None without it."""
        return None

    def work_result(self, method: Method, answer: Answer) -> WorkResult | None:
        """What an answer to a work request says; None if no such request is open."""
        request = self._open.pop(answer.ticket, None)
        if request is None:
            return None
        if request.client.id in self.expelled_sites():
            return WorkResult(request.client, None, EXPELLED)
        if answer.failure is not None:
            failure = plain_text(answer.failure)
            refused = failure.startswith(REFUSED)
            return WorkResult(
                request.client, request.rejected(failure) if refused else None, failure
            )
        try:
            reply = self._expected(method, request).parse(answer.data, request)
            self._require_transformed(request, reply)
        except InvalidMessage as error:
            reply = request.rejected(f"{REFUSED}: {str(error).rstrip('.')}")
        return WorkResult(request.client, reply)

    def _require_transformed(self, request: WorkRequest, reply: Reply) -> None:
        """Refuse an upload that cannot have passed the upload transforms, such as clipping."""
        if reply.wrong is None:
            senders = Senders(self.job.seed, [request.work])
            fault = self.job.uploads.fault(reply.upload, request.order.download, senders)
            if fault is not None:
                raise InvalidMessage(fault)

    def _expected(self, method: Method, request: WorkRequest) -> ExpectedAnswer:
        def draw(purpose: str) -> float:
            return generator(self.job.seed, purpose, request.work.round).random()

        job, x = self.job, self.losses.initial()
        return expected_answer(method, request, x, job.tracked, draw, job.uploads, self._coder)

    # Rounds

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
        limits: NormLimits | None = None,
    ) -> RoundResult:
        assignments = list(assignments)
        self._answers = self._work_of_round(method, assignments, states, diagnose)
        return self.add_up(method, assignments, round, diagnose, limits)

    def _work_of_round(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool,
    ) -> tuple[dict[Hashable, Reply], dict[Hashable, str]]:
        """The replies of a round, and the clients that were lost in it with the reasons."""
        waiting = {
            self.request_work(method, assignment, states, diagnose): assignment.client
            for assignment in assignments
        }
        replies: dict[Hashable, Reply] = {}
        lost: dict[Hashable, str] = {}
        began = time.monotonic()
        ends = began + self._seconds()
        while waiting and not self._has_enough(replies):
            answer = self._next_of_round(waiting, ends, lost)
            if answer is None:
                break
            client = waiting.pop(answer.ticket, None)
            again = self._send_whole(answer)
            if again is not None and client is not None:
                waiting[again] = client
                continue
            found = self.work_result(method, answer)
            if found is None:
                continue
            if found.reply is not None:
                replies[found.client.id] = found.reply
            else:
                lost[found.client.id] = found.failure
        for ticket, client in waiting.items():
            del self._open[ticket]
            self._overdue[ticket] = str(client.id), began + self._timeout
            lost[client.id] = "late" if self._has_enough(replies) else NO_ANSWER
        return replies, lost

    def _next_of_round(
        self, waiting: dict[str, Client], ends: float, lost: dict[Hashable, str]
    ) -> Answer | None:
        """The next answer of a round that ends at `ends`; sites expelled meanwhile are lost."""
        while waiting and (left := ends - time.monotonic()) > 0:
            asked, seconds = time.monotonic(), min(left, EXPULSION_SECONDS)
            answer = self.next_answer(seconds)
            if answer is not None or time.monotonic() - asked < seconds / 2:
                return answer  # None this early: no answer can arrive any more
            expelled = self.expelled_sites()
            for ticket in [t for t, client in waiting.items() if client.id in expelled]:
                lost[waiting.pop(ticket).id] = EXPELLED
                del self._open[ticket]
                self.transport.forget(ticket)
        return None

    def add_up(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        round: int,
        diagnose: bool,
        limits: NormLimits | None,
    ) -> RoundResult:
        """The result of the last round's answers, within these limits on norms."""
        replies, lost = self._answers
        result = self.job.result(method, round, diagnose, limits)
        result.lost |= lost
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

    def measure_next(self, round: int, models: Iterable[str], states: ClientStates) -> None:
        """Say what the next calls of `evaluate` are about: the models of a round, in this order.

        `states` has the versions of the clients' states that their own models belong to.
        """
        self._to_measure = deque((round, model) for model in models)
        self._versions = {id: _version(states, id) for id in states.seen()}

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
        clients: ClientMetrics | None = None,
        train_samples: int | None = None,
    ) -> dict[str, float]:
        """Metrics over the sites that answer: the training loss by q_k, the others by samples."""
        idle = self.idle_sites()
        round, model = self._to_measure.popleft()
        own = has_own_models(self.losses, model)
        versions = self._versions if own else {}
        waiting = {}
        for site in self.losses.ids:
            if site in idle:
                base = versions.get(site, 0)
                order = EvaluationOrder(self._terms, round, model, x, buffers, base)
                ticket = self.transport.send(
                    str(site), order.encoded(), self._timeout, OVERHEAD_BYTES
                )
                waiting[ticket] = site
        found: dict[Hashable, dict[str, float]] = {}
        self.site_metrics.append(found)
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
                    found[site] = metrics_in(answer, parts)
                except InvalidMessage as error:
                    self._reject_metrics(site, str(error))
        for ticket, site in waiting.items():
            self.transport.forget(ticket)
            self._reject_metrics(site, NO_ANSWER)
        found = self._consistent(found)
        if clients is not None:
            for client in self.losses.ids:
                clients.add(client, found.get(client, {}))
        return combined_metrics(self.losses, weights, found, parts, own)

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
        reason = f"{REFUSED}: evaluation, {plain_text(why).rstrip('.')}"
        self._rejected_metrics.append((site, reason))

    def take_rejected_metrics(self) -> list[tuple[Hashable, str]]:
        """The sites whose metrics were rejected since the last call, with the reasons."""
        found, self._rejected_metrics = self._rejected_metrics, []
        return found


def _version(states: ClientStates, id: Hashable) -> int:
    return int(getattr(states.get(id), VERSION))
