"""Synchronous rounds: draw a cohort, let it work, fold, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from torch import Tensor

from undrift.clients import ClientStates, Roster
from undrift.diagnostics import diagnose
from undrift.engines.base import LAST, Engine, Job, Limit, RoundResult, Watch
from undrift.engines.serial import SerialEngine
from undrift.errors import Diverged, require, require_whole
from undrift.evaluation import Evaluation, measure
from undrift.keys import generator
from undrift.losses import Losses
from undrift.methods.base import INITIAL, Method, Setting
from undrift.problem import Server
from undrift.records import Record
from undrift.sampling import All, Sampler
from undrift.solvers import Local
from undrift.targets import Target, reached
from undrift.threads import one_thread

Callback = Callable[["Synchronous", Record], bool | None]
"""Called after every round; returning True ends the run."""


class Synchronous:
    """A run of one method, round by round.

    Iterate over `rounds()`; between rounds, `server`, `states` and `records` are all there is.
    """

    def __init__(
        self,
        method: Method,
        losses: Losses,
        local: Local,
        sampler: Sampler,
        rounds: int,
        objective: str = "samples",
        seed: int = 0,
        evaluation: Evaluation = Evaluation(),
        limit: Limit | None = None,
        target: Mapping[str, Target] | None = None,
        callbacks: Sequence[Callback] = (),
        engine: Callable[[Losses, Job], Engine] = SerialEngine,
        states: Callable[[Mapping[str, str], Tensor], ClientStates] = ClientStates,
    ):
        require_whole("rounds", rounds, at_least=0)
        self.method = method
        self.losses = losses
        self.local = local
        self.sampler = sampler
        self.total = rounds
        self.seed = seed
        self.evaluation = evaluation
        self.target = dict(target or {})
        self.callbacks = list(callbacks)
        self.roster = Roster(losses.ids, losses.sizes, objective)
        sampler.check(self.roster)
        method.check(
            Setting(
                clients=len(self.roster),
                participation=sampler.kind(self.roster),
                equal=self.roster.equal,
                takes_steps=local.takes_steps,
                buffers=bool(losses.initial_buffers()),
            )
        )
        models = evaluation.models
        watch = Watch(cohort="cohort" in models, last="all" in models or "own" in models)
        self.engine = engine(losses, Job(self.roster, local, seed, limit, watch))

        self.round = 0
        self.x0 = losses.initial()
        self.server = method.init(self.x0.clone())
        self.buffers = losses.initial_buffers()
        self.states = states(method.kept() | ({LAST: INITIAL} if watch.last else {}), self.x0)
        self.cohort_mean: Tensor = self.x0
        self.last_mean: Tensor = self.x0
        self.records: list[Record] = []
        self.stopped: str | None = None
        """why the run ended before its last round"""
        self.diverged = False

    def rounds(self) -> Iterator[Record]:
        """Do the rounds, one by one. The first record is that of the initial model."""
        if not self.records:
            yield self._keep(Record(round=0))
        while self.round < self.total and self.stopped is None:
            yield self._keep(self.step())

    def step(self) -> Record:
        """One round, without evaluation."""
        with one_thread():
            return self._step()

    def _step(self) -> Record:
        began = time.perf_counter()
        t = self.round
        sampler = All() if t == 0 and self.method.starts_with_all else self.sampler
        cohort = sampler.draw(self.roster, self.seed, t)
        if not cohort:
            self.round += 1  # nobody takes part: the round is counted, and changes nothing
            return Record(round=self.round, seconds=time.perf_counter() - began)
        server = self.method.begin(
            self.server, lambda purpose: generator(self.seed, purpose, t).random()
        )
        down = self.method.download(server)
        diagnosed = self._evaluated(t + 1)
        result = self.engine.run(self.method, down, cohort, self.states, self.buffers, t, diagnosed)
        if not result.replies.count and result.rejected:
            first, reason = next(iter(result.rejected.items()))
            raise Diverged(
                f"In round {t + 1} no client of the cohort sent a usable update "
                f"(client {first!r}: {reason}); a smaller learning rate may help."
            )
        before = self.server
        if result.replies.count:
            server = self.method.fold(server, result.replies)
        self._accept(server, result)
        return Record(
            round=self.round,
            diagnostics=diagnose(self.method, before, self.server, result.replies)
            if diagnosed
            else {},
            cohort=list(cohort),
            rejected=result.rejected,
            absent=result.absent,
            bytes_down=dict(result.down),
            bytes_up=dict(result.up),
            steps=result.steps,
            gradients=result.evaluations,
            seconds=time.perf_counter() - began,
        )

    def last_of(self, client: Hashable) -> Tensor:
        """A client's last model, where these are watched."""
        return getattr(self.states.get(client), LAST)

    def _accept(self, server: Server, result: RoundResult) -> None:
        """Take over everything a round changed, at once."""
        name = self.method.name
        require(
            isinstance(server, Server) and "x" in server,
            f"{name}'s fold must return a Server with the model x, not {server!r}.",
        )
        require(
            server.x.shape == self.x0.shape,
            f"{name}'s fold returned a model of shape {list(server.x.shape)} instead of "
            f"{list(self.x0.shape)}.",
        )
        if not bool(server.x.isfinite().all()):
            raise Diverged(
                f"In round {self.round + 1} the server's model is not finite (NaN or Inf), though "
                f"every update was; a smaller learning rate or step may help."
            )
        self.server = server
        for client, keep in result.kept.items():
            self.states.put(client, keep)
        if result.buffers:
            self.buffers = self.method.fold_buffers(self.buffers, result.buffers)
        if result.cohort_mean is not None:
            self.cohort_mean = result.cohort_mean
        if result.last_change is not None:
            self.last_mean = self.last_mean + result.last_change
        self.round += 1

    def _keep(self, record: Record) -> Record:
        """Measure, write down, and see whether to go on."""
        if self._evaluated(record.round):
            self._measure(record)
        self.records.append(record)
        for callback in self.callbacks:
            if callback(self, record):
                self.stopped = self.stopped or "a callback asked to stop"
        if self.stopped and not record.metrics:
            self._measure(record)
        return record

    def _evaluated(self, round: int) -> bool:
        """Whether a round is measured and diagnosed."""
        return round == self.total or round % self.evaluation.every == 0

    def _measure(self, record: Record) -> None:
        with one_thread():
            record.metrics = measure(self)
        self.stopped = self.stopped or reached(self.target, record.metrics)
