"""What rounds and arrivals have in common: a run of one method, record by record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from torch import Tensor

from undrift.core.clients import ClientStates, Roster
from undrift.core.messages import LAST, TrackedModels, statistics
from undrift.core.method import INITIAL, Conditions
from undrift.core.problem import ServerState
from undrift.core.records import Record, Span
from undrift.core.round_result import RoundResult
from undrift.core.targets import reached
from undrift.core.uploads import UploadChain
from undrift.devices import Fleet, Profiles
from undrift.engines.base import Job
from undrift.engines.serial import SerialEngine
from undrift.loops.dispatch import Load
from undrift.loops.measuring import measure
from undrift.loops.planning import WorkPlanner
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.methods.traffic import traffic_of
from undrift.utils.errors import Diverged, require
from undrift.utils.threads import one_thread

SPANS = 500
"""So many times that a client worked are written down for the picture of who worked when."""


class Loop(ABC):
    """A run of one method, round by round.

    Iterate over `rounds()`; between rounds, `server`, `states`, `records` and what `saved` gives
    are all there is.
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
        """the q_k by which training losses are added up, in the order of the data"""
        require(
            not {*evaluation.parts}.isdisjoint(losses.parts),
            f"The parts to evaluate on are {', '.join(map(repr, evaluation.parts))}, but the data "
            f"have only {', '.join(map(repr, losses.parts))}.",
        )
        self.sampler.check(self.roster)
        devices = self._devices()
        self.fleet: Fleet | None = devices.fleet(self.roster, seed) if devices else None
        models = evaluation.models
        tracked = TrackedModels(cohort="cohort" in models, last="all" in models or "own" in models)
        self.job = Job(self.roster, spec.local, seed, tracked, UploadChain(spec.transforms))
        self.planner = WorkPlanner(self.job, spec.limit)
        method.check(self.setting())
        self.engine = engine(losses, self.job)

        self.round = 0
        self.now = 0.0
        """the time of the virtual clock"""
        self.x0 = losses.initial()
        self.server = method.init(self.x0.clone())
        self.buffers = losses.initial_buffers()
        kinds = method.kept() | self.job.uploads.init() | ({LAST: INITIAL} if tracked.last else {})
        self.states = states(kinds, self.x0)
        self.cohort_mean: Tensor = self.x0
        self.last_mean: Tensor = self.x0
        self.records: list[Record] = []
        self.stopped: str | None = None
        """why the run ended before its last round"""
        self.diverged = False
        self.load = self._load()
        self._spans = 0

    @abstractmethod
    def setting(self) -> Conditions:
        """What the method is asked to work in."""

    def _devices(self) -> Profiles | None:
        """The device profiles of the clients; None for no virtual clock."""
        return self.spec.devices

    @abstractmethod
    def _step(self) -> Record:
        """One round."""

    def rounds(self) -> Iterator[Record]:
        """Do the rounds, one by one. The first record is that of the initial model."""
        if not self.records:
            yield self._keep(Record(round=0, updates=0))
        while self.round < self.total and self.stopped is None:
            yield self._keep(self.step())

    def step(self) -> Record:
        """One round, without evaluation."""
        with one_thread():
            record = self._step()
        record.strategy = self.engine.strategy
        return record

    def last_of(self, client: Hashable) -> Tensor:
        """A client's last model, where these are watched."""
        return getattr(self.states.get(client), LAST)

    def saved(self) -> dict[str, dict[str, Any]]:
        """All that a run which goes on later needs, besides the records and the clients' states."""
        return {
            "server": dict(self.server.items()),
            "buffers": dict(self.buffers),
            "means": {"cohort": self.cohort_mean, "last": self.last_mean},
            "ended": {"stopped": self.stopped},
            "clock": {"now": self.now},
            "engine": self.engine.saved(),
        }

    def lasting(self) -> dict[str, dict[str, Any]]:
        """Further parts of that, which stay as they are until they are gone."""
        return {}

    def restore(self, part: Callable[[str], dict[str, Any]], records: Sequence[Record]) -> None:
        """Go on from what `saved` gave, part by part, after the last of the records."""
        self.records = list(records)
        self.round = self.records[-1].round
        self.server = ServerState(**part("server"))
        self.buffers = part("buffers")
        means = part("means")
        self.cohort_mean, self.last_mean = means["cohort"], means["last"]
        self.stopped = part("ended")["stopped"]
        self.now = part("clock")["now"]
        self.engine.restore(part("engine"))
        self._spans = sum(len(record.spans) for record in self.records)

    def _setting(self, **more: Any) -> Conditions:
        return Conditions(
            clients=len(self.roster),
            equal=self.roster.equal,
            takes_steps=self.local.takes_steps,
            buffers=bool(self.losses.initial_buffers()),
            transformed=bool(self.spec.transforms),
            **more,
        )

    def _load(self, draw: Callable[[str], float] = lambda purpose: 0.0) -> Load:
        """What a client receives, computes and sends, besides its steps."""
        traffic = traffic_of(self.method, draw)
        shape = self.x0.numel(), self.x0.element_size()
        buffers = statistics(self.buffers)
        return Load(
            traffic.bytes_down(*shape) | buffers,
            traffic.bytes_up(*shape) | buffers,
            traffic.first_gradient,
        )

    def _take_over(self, server: ServerState, result: RoundResult, share: float = 1.0) -> None:
        """Take over what an update changed, at once.

        `share` is the part of the clients at work that it comes from: buffers move so far only.
        """
        name = self.method.name
        require(
            isinstance(server, ServerState) and "x" in server,
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

    def _write_down(self, record: Record, span: Span) -> None:
        """Write down that a client worked, as long as it is for a picture of the first rounds."""
        if self._spans < SPANS:
            record.spans.append(span)
            self._spans += 1

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
