"""The server's side: losses that are elsewhere, and an engine that asks for work there."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from hashlib import blake2b

import torch
from torch import Tensor, nn

from undrift.core.clients import ClientStates
from undrift.core.losses import Federation
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.problem import Client
from undrift.core.round_result import RoundResult
from undrift.core.targets import PARTS
from undrift.deploy.payloads import Refused, decode, encode
from undrift.deploy.post import REFUSED, Arrival, Post
from undrift.deploy.protocol import LOOK, SLACK, VERSION, Expected, Order, expected_of
from undrift.engines.base import Engine, Job
from undrift.loops.paces import Deadline, FirstToRespond, Pace
from undrift.nets.flat import FlatModule
from undrift.utils.keys import generator

METRICS = 100
"""The most metrics of a site."""
NAME = re.compile(r"\w[\w .²-]{0,60}")
"""What a metric may be called."""
SOON = 0.01
NO_ANSWER = "no answer"
"""What is said of a site that did not answer in time."""


class RemoteFederation(Federation):
    """The losses of sites: the server knows the model and how many samples each has, no more.

    Parameters
    ----------
    module
        the initial model
    samples
        of each site, by part
    moving
        the buffers of the model that training changes
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
        there = {part for own in self.samples.values() for part in own}
        return tuple(part for part in PARTS if part in there)


class RemoteEngine(Engine):
    """Has the clients' work done at their sites, by the wall clock.

    Parameters
    ----------
    losses, job
        as for every engine
    post
        carries what is said
    run
        what the run is called at the sites
    label
        the method's label in the experiment
    timeout
        the seconds that a site may take to answer
    pace
        when a round ends
    waiting
        told who is waited for
    """

    losses: RemoteFederation
    strategy = "at the sites"

    def __init__(
        self,
        losses: RemoteFederation,
        job: Job,
        post: Post,
        run: str,
        label: str,
        timeout: float,
        pace: Pace,
        waiting: Callable[[Collection[str]], None] = lambda sites: None,
    ):
        self.losses = losses
        self.job = job
        self.post = post
        self._run = run
        self._label = label
        self._timeout = timeout
        self._pace = pace
        self.waiting = waiting
        self._orders: dict[str, Order] = {}
        """those under way, by their tickets"""
        self._late: dict[str, tuple[str, float]] = {}
        """who is at work on an order that nobody waits for any more, and until when at most"""
        self._aside: deque[Arrival] = deque()
        """answers to orders that came while something else was waited for"""
        self._committed: dict[Hashable, int] = {}
        self._unmeasured: list[tuple[Hashable, str]] = []

    def begin(self, states: ClientStates) -> None:
        """A round begins: what was accepted until now is committed, and is gone back to."""
        self._committed = {id: _version(states, id) for id in states.seen()}

    def free(self) -> set[str]:
        """The sites that are there and not at work on an order that is late."""
        while self._late and (arrival := self._hear(SOON)) is not None:
            if arrival.ticket in self._orders:
                self._aside.append(arrival)
        for ticket, (_, until) in list(self._late.items()):
            if time.monotonic() > until:
                self.post.forget(ticket)
                del self._late[ticket]
        return set(self.post.sites()) - {site for site, _ in self._late.values()}

    def next(self, seconds: float) -> Arrival | None:
        """The next answer, within so many seconds."""
        return self._aside.popleft() if self._aside else self._hear(seconds)

    def _hear(self, seconds: float) -> Arrival | None:
        arrival = self.post.next(seconds)
        if arrival is not None:
            self._late.pop(arrival.ticket, None)
        return arrival

    # One by one

    def send(
        self, method: Method, assignment: Assignment, states: ClientStates, diagnose: bool
    ) -> str:
        """Ask a site for its client's work; gives the ticket."""
        id = assignment.client.id
        base = _version(states, id) if id in set(states.seen()) else 0
        order = Order(
            run=self._run,
            label=self._label,
            seed=self.job.seed,
            client=assignment.client,
            work=assignment.work,
            base=base,
            committed=self._committed.get(id, 0),
            version=assignment.work.turn + 1,
            diagnose=diagnose,
            budget=self._pace.budget if isinstance(self._pace, Deadline) else None,
            download=assignment.download,
            buffers=assignment.buffers,
        )
        most = self._expected(method, order).most
        ticket = self.post.send(str(id), order.encoded(), self._seconds(), most)
        self._orders[ticket] = order
        return ticket

    def take(self, method: Method, arrival: Arrival) -> tuple[Client | None, Reply | None, str]:
        """Whose answer arrived, the reply in it, and otherwise why there is none."""
        order = self._orders.pop(arrival.ticket, None)
        if order is None:
            return None, None, "nobody asked for it"
        if arrival.trouble is not None and arrival.trouble.startswith(REFUSED):
            return order.client, order.refused(arrival.trouble), ""
        if arrival.trouble is not None:
            return order.client, None, arrival.trouble
        try:
            return order.client, self._reply(method, arrival.data, order), ""
        except Refused as error:
            return order.client, order.refused(f"{REFUSED}: {str(error).rstrip('.')}"), ""

    def _give_up(self, ticket: str, until: float) -> None:
        """Do not wait for an answer any more; until it comes its site is not asked again."""
        order = self._orders.pop(ticket)
        self._late[ticket] = str(order.client.id), until

    def _expected(self, method: Method, order: Order) -> Expected:
        def draw(purpose: str) -> float:
            return generator(self.job.seed, purpose, order.work.round).random()

        return expected_of(method, order, self.losses.flat.x, order.buffers, self.job.tracked, draw)

    def _reply(self, method: Method, data: bytes, order: Order) -> Reply:
        expected = self._expected(method, order)
        said = _error_in(data, expected.most)
        if said is not None:
            raise Refused(f"the site says: {said}")
        return expected.reply(data, order)

    # A round

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
            self.send(method, assignment, states, diagnose): assignment.client
            for assignment in assignments
        }
        found: dict[Hashable, Reply] = {}
        began = time.monotonic()
        ends = began + self._seconds()
        while waiting and not self._enough(found):
            left = ends - time.monotonic()
            arrival = self.next(left) if left > 0 else None
            if arrival is None:
                break
            waiting.pop(arrival.ticket, None)
            client, reply, why = self.take(method, arrival)
            if reply is not None:
                found[reply.client.id] = reply
            elif client is not None:
                result.lost[client.id] = why
        for ticket, client in waiting.items():
            self._give_up(ticket, began + self._timeout)
            result.lost[client.id] = "late" if self._enough(found) else NO_ANSWER
        for (
            assignment
        ) in assignments:  # in their order, so that the sums do not depend on who was first
            if assignment.client.id in found:
                result.take(found[assignment.client.id])
        return result

    def _enough(self, found: Mapping[Hashable, Reply]) -> bool:
        good = sum(reply.wrong is None for reply in found.values())
        return isinstance(self._pace, FirstToRespond) and good >= self._pace.replies

    def _seconds(self) -> float:
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
        """Metrics over the sites that answer: means by their samples, the training loss by q_k."""
        free = self.free()
        there = [site for site in self.losses.ids if site in free]
        request = encode(
            {"kind": LOOK, "seed": self.job.seed, "parts": list(parts)},
            {"x": x, **{f"buffers {name}": value for name, value in buffers.items()}},
        )
        waiting = {self.post.send(str(site), request, self._timeout, SLACK): site for site in there}
        found: dict[Hashable, dict[str, float]] = {}
        ends = time.monotonic() + self._timeout
        while waiting and time.monotonic() < ends:
            arrival = self._hear(ends - time.monotonic())
            if arrival is None:
                break
            if arrival.ticket in self._orders:  # of training, which is seen to afterwards
                self._aside.append(arrival)
                continue
            site = waiting.pop(arrival.ticket, None)
            if site is not None:
                try:
                    found[site] = _metrics_in(arrival, parts)
                except Refused as error:
                    self._refuse(site, str(error))
        for ticket, site in waiting.items():
            self.post.forget(ticket)
            self._refuse(site, NO_ANSWER)
        return _together(self.losses, weights, self._alike(found))

    def _alike(self, found: dict[Hashable, dict[str, float]]) -> dict[Hashable, dict[str, float]]:
        """The sites that measure what most of them do."""
        kinds = Counter(frozenset(metrics) for metrics in found.values())
        usual = kinds.most_common(1)[0][0] if kinds else frozenset()
        for site in [site for site, metrics in found.items() if metrics.keys() != usual]:
            self._refuse(site, "its metrics are not those of the others")
            del found[site]
        return found

    def _refuse(self, site: Hashable, why: str) -> None:
        self._unmeasured.append((site, f"{REFUSED}: evaluation, {why.rstrip('.')}"))

    def unmeasured(self) -> list[tuple[Hashable, str]]:
        """Whose metrics are missing since this was asked last, and why."""
        found, self._unmeasured = self._unmeasured, []
        return found


def _error_in(data: bytes, most: int) -> str | None:
    """The sentence with which a site refused, if it did."""
    values, _ = decode(data, most)
    said = values.get("error")
    return None if said is None else str(said)[:300].rstrip(".")


def _version(states: ClientStates, id: Hashable) -> int:
    return int(getattr(states.get(id), VERSION))


def _metrics_in(arrival: Arrival, parts: Collection[str]) -> dict[str, float]:
    """The metrics of an answer, which are of the parts that were asked for."""
    if arrival.trouble is not None:
        raise Refused(arrival.trouble)
    values, tensors = decode(arrival.data, SLACK)
    if "error" in values:
        raise Refused(f"the site says: {str(values['error'])[:300]}")
    found = values.get("metrics")
    if tensors or not isinstance(found, dict) or not 0 < len(found) <= METRICS:
        raise Refused("it has no metrics")
    for name, value in found.items():
        part, _, metric = name.partition("_")
        if part not in parts or not NAME.fullmatch(metric):
            raise Refused(f"nobody asked for {name[:40]!r}")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Refused(f"{name[:40]!r} is no number")
        if metric == "accuracy" and not 0 <= value <= 1:
            raise Refused(f"{name[:40]!r} is not between 0 and 1")
    return {name: float(value) for name, value in found.items()}


def _together(
    losses: RemoteFederation, weights: Tensor, found: Mapping[Hashable, Mapping[str, float]]
) -> dict[str, float]:
    """The metrics of sites as those of all: training losses by q_k, everything else by samples."""
    q = dict(zip(losses.ids, weights.tolist(), strict=True))
    names = dict.fromkeys(name for own in found.values() for name in own)
    together = {}
    for name in names:
        part = name.partition("_")[0]
        own = {
            site: q[site] if name == "train_loss" else losses.samples[str(site)].get(part, 0)
            for site, metrics in found.items()
            if name in metrics
        }
        total = sum(own.values())
        if total:
            together[name] = sum(w / total * found[site][name] for site, w in own.items())
    together |= _spread(losses, found)
    if "train_loss" not in together:
        together["train_loss"] = float("nan")
    return together


def _spread(
    losses: RemoteFederation, found: Mapping[Hashable, Mapping[str, float]]
) -> dict[str, float]:
    """Accuracy per site: mean, standard deviation, and mean of the worst tenth."""
    for part in ("test", "train"):
        name = f"{part}_accuracy"
        each = [own[name] for own in found.values() if name in own]
        if len(each) > 1:
            values = torch.tensor(each, dtype=torch.float64).sort().values
            worst = values[: max(1, len(values) // 10)]
            return {
                f"{part}_client_accuracy_mean": float(values.mean()),
                f"{part}_client_accuracy_std": float(values.std(correction=0)),
                f"{part}_client_accuracy_worst_tenth": float(worst.mean()),
            }
    return {}
