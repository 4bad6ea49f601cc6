"""`Loop`, the base class of synchronous and asynchronous loops: one run, record by record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from torch import Tensor

from undrift.core.clients import ClientStates, Roster
from undrift.core.messages import LAST, TrackedModels, buffer_bytes
from undrift.core.method import INITIAL, Conditions
from undrift.core.problem import ServerState
from undrift.core.records import Record, Span
from undrift.core.round_result import RoundResult
from undrift.core.targets import reached
from undrift.core.uploads import UploadChain
from undrift.devices import Fleet, Profiles
from undrift.engines.base import Job
from undrift.engines.serial import SerialEngine
from undrift.loops.dispatch import FixedCost
from undrift.loops.measuring import measure
from undrift.loops.planning import WorkPlanner
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.methods.traffic import traffic_of
from undrift.utils.errors import Diverged, require
from undrift.utils.threads import one_thread

MAX_SPANS = 500
"""Spans stored per run, for the figure of who worked when; later ones are dropped."""


class Loop(ABC):
    """A run of one method, round by round.

    Iterate over `rounds()`. Between two rounds the whole state of the run is in `records`,
    `states`, and what `saved` and `write_once_parts` return: a loop restored from them continues
    with the same bits.
    """

    def __init__(
        self,
        spec: RunSpec,
        engine: EngineFactory = SerialEngine,
        states: StatesFactory = ClientStates,
    ):
        method, losses, seed = spec.method, spec.losses, spec.seed
        evaluation = spec.evaluation
        self.spec = spec
        self.method = method
        self.losses = losses
        self.local = spec.local
        self.sampler = spec.sampler
        self.total = spec.rounds
        self.seed = seed
        self.evaluation = evaluation
        self.target = dict(spec.target)
        self.callbacks = list(spec.callbacks)
        self.roster = Roster(losses.ids, losses.sizes, spec.objective)
        self.weights = evaluation.weights(self.roster, seed)
        """the weights of the clients' training losses in evaluations, in the order of the data"""
        require(
            not {*evaluation.parts}.isdisjoint(losses.parts),
            f"The parts to evaluate on are {', '.join(map(repr, evaluation.parts))}, but the data "
            f"only have {', '.join(map(repr, losses.parts))}.",
        )
        self.sampler.check(self.roster)
        devices = self._devices()
        self.fleet: Fleet | None = devices.fleet(self.roster, seed) if devices else None
        models = evaluation.models
        tracked = TrackedModels(cohort="cohort" in models, last="all" in models or "own" in models)
        self.job = Job(self.roster, spec.local, seed, tracked, UploadChain(spec.transforms))
        self.planner = WorkPlanner(self.job, spec.limit)
        method.check(self.conditions())
        self.engine = engine(losses, self.job)

        self.round = 0
        self.now = 0.0
        """the time of the virtual clock, in seconds"""
        self.x0 = losses.initial()
        self.server = method.init(self.x0.clone())
        self.buffers = losses.initial_buffers()
        kinds = method.kept() | self.job.uploads.init() | ({LAST: INITIAL} if tracked.last else {})
        self.states = states(kinds, self.x0)
        self.cohort_mean: Tensor = self.x0
        self.last_mean: Tensor = self.x0
        self.records: list[Record] = []
        self.stopped: str | None = None
        """why the run ended before its last round; None if it did not"""
        self.diverged = False
        self.fixed_cost = self._fixed_cost()
        self._span_count = 0

    @abstractmethod
    def conditions(self) -> Conditions:
        """The conditions of this run, for `Method.check`."""

    def _devices(self) -> Profiles | None:
        """The device profiles of the clients; None for a run without a virtual clock."""
        return self.spec.devices

    @abstractmethod
    def _step(self) -> Record:
        """Execute one round, without evaluation."""

    def rounds(self) -> Iterator[Record]:
        """Execute the rounds and yield their records; the first is that of the initial model."""
        if not self.records:
            yield self._complete(Record(round=0, updates=0))
        while self.round < self.total and self.stopped is None:
            yield self._complete(self.step())

    def step(self) -> Record:
        """Execute one round, without evaluation, and name the engine's strategy."""
        with one_thread():
            record = self._step()
        record.strategy = self.engine.strategy
        return record

    def last_of(self, client: Hashable) -> Tensor:
        """A client's last model; last models must be tracked."""
        return getattr(self.states.get(client), LAST)

    def saved(self) -> dict[str, dict[str, Any]]:
        """What a resumed run needs besides records and client states, by part.

        The names of parts and values are the format of run stores: they must not change.
        """
        return {
            "server": dict(self.server.items()),
            "buffers": dict(self.buffers),
            "means": {"cohort": self.cohort_mean, "last": self.last_mean},
            "ended": {"stopped": self.stopped},
            "clock": {"now": self.now},
            "engine": self.engine.saved(),
        }

    def write_once_parts(self) -> dict[str, dict[str, Any]]:
        """Further parts that never change while they exist, so that each is written only once.

        A part that is no longer returned is removed from the store.
        """
        return {}

    def restore(self, part: Callable[[str], dict[str, Any]], records: Sequence[Record]) -> None:
        """Continue after the last of `records`; `part(name)` reads a part that was saved."""
        self.records = list(records)
        self.round = self.records[-1].round
        self.server = ServerState(**part("server"))
        self.buffers = part("buffers")
        means = part("means")
        self.cohort_mean, self.last_mean = means["cohort"], means["last"]
        self.stopped = part("ended")["stopped"]
        self.now = part("clock")["now"]
        self.engine.restore(part("engine"))
        self._span_count = sum(len(record.spans) for record in self.records)

    def _conditions(self, **more: Any) -> Conditions:
        """The conditions that all loops know, with `more` of the loop's own."""
        return Conditions(
            clients=len(self.roster),
            equal=self.roster.equal,
            takes_steps=self.local.takes_steps,
            buffers=bool(self.losses.initial_buffers()),
            transformed=bool(self.spec.transforms),
            **more,
        )

    def _fixed_cost(self, draw: Callable[[str], float] = lambda purpose: 0.0) -> FixedCost:
        """What a client of this run receives, computes and sends besides its steps."""
        traffic = traffic_of(self.method, draw)
        shape = self.x0.numel(), self.x0.element_size()
        buffers = buffer_bytes(self.buffers)
        return FixedCost(
            traffic.bytes_down(*shape) | buffers,
            traffic.bytes_up(*shape) | buffers,
            traffic.first_gradient,
        )

    def _apply_update(self, server: ServerState, result: RoundResult, share: float = 1.0) -> None:
        """Replace the server state, the buffers and the tracked means by those of an update.

        `share` is the part of all clients at work that the update comes from. Buffers move only
        that part of the way: a single reply must not replace the statistics of all clients.
        """
        # Check before anything is replaced: after an error the run still has its last good state.
        name = self.method.name
        require(
            isinstance(server, ServerState) and "x" in server,
            f"{name}'s fold must return a ServerState with the model x, not {server!r}.",
        )
        require(
            server.x.shape == self.x0.shape,
            f"{name}'s fold returned a model of shape {list(server.x.shape)} instead of "
            f"{list(self.x0.shape)}.",
        )
        if not bool(server.x.isfinite().all()):
            raise Diverged(
                f"In round {self.round + 1} the server's model is not finite (NaN or Inf), while "
                f"all replies were; a smaller learning rate or step may help."
            )
        self.server = server
        if result.buffers:
            means = self.method.fold_buffers(self.buffers, result.buffers)
            self.buffers = {
                name: self.buffers[name].lerp(mean, share)
                if share < 1 and mean.is_floating_point()
                else mean
                for name, mean in means.items()
            }
        if result.cohort_mean is not None:
            self.cohort_mean = result.cohort_mean
        if result.last_change is not None:
            self.last_mean = self.last_mean + result.last_change

    def _record_span(self, record: Record, span: Span) -> None:
        """Add a client's span to the record, unless the run has `MAX_SPANS` already."""
        if self._span_count < MAX_SPANS:
            record.spans.append(span)
            self._span_count += 1

    def _complete(self, record: Record) -> Record:
        """Measure the models if the round is evaluated, keep the record and call the callbacks."""
        if self._evaluated(record.round):
            self._measure(record)
        self.records.append(record)
        for callback in self.callbacks:
            if callback(self, record):
                self.stopped = self.stopped or "a callback asked to stop"
        if self.stopped and not record.metrics:  # the last record of a run always has metrics
            self._measure(record)
        return record

    def _evaluated(self, round: int) -> bool:
        """Whether metrics and diagnostics of a round are computed."""
        return round == self.total or round % self.evaluation.every == 0

    def _measure(self, record: Record) -> None:
        """Compute the metrics of a record, and stop the run if a target is reached."""
        with one_thread():
            record.metrics = measure(self)
        self.stopped = self.stopped or reached(self.target, record.metrics)
