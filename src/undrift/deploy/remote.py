"""The server's side: losses that are elsewhere, and an engine that asks for work there."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from undrift.clients import ClientStates
from undrift.deploy.payloads import Refused, decode, encode
from undrift.deploy.post import Arrival, Post
from undrift.deploy.protocol import LOOK, SLACK, VERSION, Expected, Order, expected_of
from undrift.engines.base import Engine, Errand, Job, OwnModel, Reply, RoundResult
from undrift.errors import UndriftError
from undrift.keys import generator
from undrift.losses import ClientLoss, Losses
from undrift.methods.base import Method
from undrift.modules import FlatModule
from undrift.paces import Deadline, FirstToRespond, Pace
from undrift.problem import Client
from undrift.targets import PARTS

REFUSED = "refused"
"""How the reason begins for which an answer is not taken in."""
NO_ANSWER = "no answer"
"""What is said of a site that did not answer in time."""


class RemoteLosses(Losses):
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

    @property
    def parts(self) -> tuple[str, ...]:
        there = {part for own in self.samples.values() for part in own}
        return tuple(part for part in PARTS if part in there)

    def value(self, k: int, x: Tensor) -> float:
        raise UndriftError(ELSEWHERE)

    def gradient(self, k: int, x: Tensor) -> Tensor:
        raise UndriftError(ELSEWHERE)

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
    ) -> dict[str, float]:
        raise UndriftError(ELSEWHERE)

    @contextmanager
    def training(self, k: int, buffers: Mapping[str, Tensor], number: int) -> Iterator[ClientLoss]:
        raise UndriftError(ELSEWHERE)
        yield


ELSEWHERE = "The data of a deployment are at its sites: only their engine can use them."


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
    """

    losses: RemoteLosses
    strategy = "at the sites"

    def __init__(
        self,
        losses: RemoteLosses,
        job: Job,
        post: Post,
        run: str,
        label: str,
        timeout: float,
        pace: Pace,
    ):
        self.losses = losses
        self.job = job
        self.post = post
        self._run = run
        self._label = label
        self._timeout = timeout
        self._pace = pace
        self._orders: dict[str, Order] = {}
        """those under way, by their tickets"""

    # One by one

    def send(self, method: Method, errand: Errand, states: ClientStates, diagnose: bool) -> str:
        """Ask a site for its client's work; gives the ticket."""
        seen = errand.client.id in set(states.seen())
        base = int(getattr(states.get(errand.client.id), VERSION)) if seen else 0
        order = Order(
            run=self._run,
            label=self._label,
            seed=self.job.seed,
            client=errand.client,
            work=errand.work,
            base=base,
            version=errand.work.turn + 1,
            diagnose=diagnose,
            budget=self._pace.budget if isinstance(self._pace, Deadline) else None,
            download=errand.download,
            buffers=errand.buffers,
        )
        most = self._expected(method, order).most
        ticket = self.post.send(str(errand.client.id), order.encoded(), self._timeout, most)
        self._orders[ticket] = order
        return ticket

    def take(self, method: Method, arrival: Arrival) -> tuple[Client | None, Reply | None, str]:
        """Whose answer arrived, the reply in it, and otherwise why there is none."""
        order = self._orders.pop(arrival.ticket, None)
        if order is None:
            return None, None, "nobody asked for it"
        if arrival.trouble is not None:
            return order.client, None, arrival.trouble
        try:
            return order.client, self._reply(method, arrival.data, order), ""
        except Refused as error:
            return order.client, order.refused(f"{REFUSED}: {str(error).rstrip('.')}"), ""

    def forget(self, ticket: str) -> None:
        """Do not wait for an answer any more."""
        self._orders.pop(ticket, None)
        self.post.forget(ticket)

    def _expected(self, method: Method, order: Order) -> Expected:
        def draw(purpose: str) -> float:
            return generator(self.job.seed, purpose, order.work.round).random()

        return expected_of(method, order, self.losses.flat.x, order.buffers, self.job.watch, draw)

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
        errands: Iterable[Errand],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        errands = list(errands)
        result = RoundResult(method, self.job, round, diagnose)
        waiting = {self.send(method, errand, states, diagnose): errand.client for errand in errands}
        found: dict[Hashable, Reply] = {}
        ends = time.monotonic() + self._seconds()
        while waiting and not self._enough(found):
            left = ends - time.monotonic()
            arrival = self.post.next(left) if left > 0 else None
            if arrival is None:
                break
            waiting.pop(arrival.ticket, None)
            client, reply, why = self.take(method, arrival)
            if reply is not None:
                found[reply.client.id] = reply
            elif client is not None:
                result.lost[client.id] = why
        for ticket, client in waiting.items():
            self.forget(ticket)
            result.lost[client.id] = "late" if self._enough(found) else NO_ANSWER
        for errand in errands:  # in their order, so that the sums do not depend on who was first
            if errand.client.id in found:
                result.take(found[errand.client.id])
        return result

    def replies(
        self, method: Method, errands: Iterable[Errand], states: ClientStates, diagnose: bool = True
    ) -> Iterator[Reply]:
        raise UndriftError("A deployment takes replies as they arrive, not in their order.")

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
        there = [site for site in self.losses.ids if site in self.post.sites()]
        request = encode(
            {"kind": LOOK, "seed": self.job.seed, "parts": list(parts)},
            {"x": x, **{f"buffers {name}": value for name, value in buffers.items()}},
        )
        waiting = {self.post.send(str(site), request, self._timeout, SLACK): site for site in there}
        found: dict[Hashable, dict[str, float]] = {}
        ends = time.monotonic() + self._timeout
        while waiting and time.monotonic() < ends:
            arrival = self.post.next(ends - time.monotonic())
            if arrival is None:
                break
            site = waiting.pop(arrival.ticket, None)
            metrics = _metrics_in(arrival)
            if site is not None and metrics:
                found[site] = metrics
        for ticket in waiting:
            self.post.forget(ticket)
        return _together(self.losses, weights, found)

    def evaluate_own(
        self, models: Iterable[OwnModel], buffers: Mapping[str, Tensor]
    ) -> Iterator[dict[str, float]]:
        raise UndriftError(
            "A deployment does not evaluate clients' own models: leave 'own' out of the models."
        )

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        raise UndriftError("A deployment has no gradient_mapping: leave it out of [evaluation].")


def _error_in(data: bytes, most: int) -> str | None:
    """The sentence with which a site refused, if it did."""
    values, _ = decode(data, most)
    said = values.get("error")
    return None if said is None else str(said)[:300].rstrip(".")


def _metrics_in(arrival: Arrival) -> dict[str, float]:
    """The metrics of an answer; nothing where it is none."""
    if arrival.trouble is not None:
        return {}
    try:
        values, tensors = decode(arrival.data, SLACK)
    except Refused:
        return {}
    found = values.get("metrics")
    if tensors or not isinstance(found, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _together(
    losses: RemoteLosses, weights: Tensor, found: Mapping[Hashable, Mapping[str, float]]
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
            together[name] = sum(w * found[site][name] for site, w in own.items()) / total
    together |= _spread(losses, found)
    if "train_loss" not in together:
        together["train_loss"] = float("nan")
    return together


def _spread(
    losses: RemoteLosses, found: Mapping[Hashable, Mapping[str, float]]
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
