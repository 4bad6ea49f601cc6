"""`Loop`, the base class of synchronous and asynchronous loops: one run, record by record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from undrift.compression.downloads import DownloadCompressor
from undrift.core.client_metrics import ClientMetrics
from undrift.core.clients import ClientStates, Roster
from undrift.core.messages import COHORT, LAST, PERSONAL, TrackedModels, buffer_bytes
from undrift.core.method import INITIAL, Conditions, Method
from undrift.core.problem import ServerState
from undrift.core.records import Record, Span
from undrift.core.round_result import RoundResult
from undrift.core.targets import reached
from undrift.core.uploads import UploadChain
from undrift.core.uploads.norm_bounds import (
    FIRST_SCALE,
    NormHistory,
    NormLimits,
    harmless_norm,
    measured_vectors,
    model_size,
)
from undrift.devices import Fleet, Profiles
from undrift.engines.base import Job
from undrift.engines.serial import SerialEngine
from undrift.local.solvers import Local
from undrift.loops.dispatch import FixedCost
from undrift.loops.evaluation_schedule import EvaluationSchedule, schedule_of
from undrift.loops.measuring import measure, noisy_metrics
from undrift.loops.planning import WorkPlanner
from undrift.loops.private_rounds import counted_samples, make_mechanism, restore_mechanism
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.loops.upload_transforms import transforms_of
from undrift.methods.traffic import traffic_of
from undrift.nets.modes import unmark_eval_parts
from undrift.nets.module_losses import ModuleLosses
from undrift.privacy.mechanism import Mechanism
from undrift.privacy.noise_sources import KeyedNoise, NoiseSource
from undrift.robust.settings import check_statistic
from undrift.utils.errors import Diverged, UndriftError, require, require_type
from undrift.utils.threads import one_thread

MAX_SPANS = 500
"""Spans stored per run, for the figure of who worked when; later ones are dropped."""


def require_lagging(method: Method) -> None:
    """Refuse to compress the downloads of a method that does not allow vectors that lag behind."""
    require(
        method.downloads_may_lag,
        f"{method.name} does not declare (downloads_may_lag = True) that it ends at the same point "
        f"if clients work with vectors that lag behind the server's: compress uploads only, or "
        f"choose FedAvg, SCAFFOLD or FedDR.",
    )


class Loop(ABC):
    """A run of one method, round by round.

    Iterate over `rounds()`. Between two rounds the whole state of the run is in `records`,
    `states`, and what `saved` and `write_once_parts` return: a loop restored from them continues
    with the same bits.

    Callbacks get it as `run`, to read: the guide's page on own parts lists what they may use.
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
        counted = counted_samples(losses, spec.privacy)
        self.roster = Roster(losses.ids, losses.sizes, spec.objective, counted)
        self.weights = evaluation.weights(self.roster, seed)
        """the weights of the clients' training losses in evaluations, in the order of the data"""
        require(
            not evaluation.parts or not {*evaluation.parts}.isdisjoint(losses.parts),
            f"The parts to evaluate on are {', '.join(map(repr, evaluation.parts))}, but the data "
            f"only have {', '.join(map(repr, losses.parts))}.",
        )
        require(
            evaluation.gradient_mapping is None or losses.initial_personal() is None,
            "gradient_mapping is not defined with personal parameters, of which every client has "
            "its own: leave it out.",
        )
        tune = evaluation.tune
        if tune is not None:
            require_type("evaluation tune", tune, Local, "a solver such as ud.SGD(lr=0.01)")
            require(
                not tune.keeps,
                "The solver of evaluation tune starts anew in every evaluation: use "
                "keep_state=False.",
            )
            require(
                losses.initial_personal() is None,
                "The model 'tuned' is not defined with personal parameters: evaluate 'server', "
                "which has each client's own.",
            )
        require(
            method.problems == 1 or losses.initial_personal() is None,
            f"{method.name} has personal models of its own, so it cannot run with personal "
            f"parameters: leave out personal.",
        )
        self.sampler.check(self.roster)
        devices = self._devices()
        self.fleet: Fleet | None = devices.fleet(self.roster, seed) if devices else None
        tracked = TrackedModels.of(evaluation.models, method.own_model)
        self.x0 = losses.initial()
        chain = UploadChain(
            transforms_of(
                method,
                spec.local,
                own=spec.transforms,
                compression=spec.compression,
                privacy=spec.privacy,
            )
        )
        attack = spec.attack if spec.attack is not None and spec.attack.forges else None
        attackers = frozenset() if attack is None else attack.attackers(self.roster, seed)
        self.job = Job(self.roster, spec.local, seed, tracked, chain, spec.statistic, attackers)
        self.planner = WorkPlanner(self.job, spec.limit)
        conditions = self.conditions()
        method.check(conditions)
        self.mechanism = self._make_mechanism()
        """the Gaussian mechanism of a private run; None without privacy"""
        self._check_statistic(conditions)
        self.downloads = self._make_downloads()
        """compresses what is sent to clients; None if it is sent as it is"""
        self.schedule = self._evaluation_schedule()
        """when the run is evaluated, and on how many training samples"""
        self.engine = engine(losses, self.job)

        self.round = 0
        self.now = 0.0
        """the time of the virtual clock, in seconds"""
        self.server = method.init(self.x0.clone())
        self.buffers = losses.initial_buffers()
        kinds: dict[str, str | Tensor] = {**method.kept(), **self.job.uploads.init()}
        kinds |= dict(spec.local.keeps)
        kinds |= {LAST: INITIAL} if tracked.last else {}
        personal = losses.initial_personal()
        require(
            personal is None or not spec.local.keeps,
            "keep_state=True keeps moments of the shared parameters only, so that it cannot be "
            "used with personal ones: use keep_state=False.",
        )
        kinds |= {} if personal is None else {PERSONAL: personal}
        self.states = states(kinds, self.x0)
        self.cohort_mean: Tensor = self.x0
        self.last_mean: Tensor = self.x0
        self.records: list[Record] = []
        self.client_metrics: dict[str, ClientMetrics] = {}
        """the newest metrics of every client by reported model; empty without results per client"""
        self.stopped: str | None = None
        """why the run ended before its last round; None if it did not"""
        self.diverged = False
        self.fixed_cost = self._fixed_cost()
        self.norms = None if spec.robust is None else NormHistory(spec.robust)
        """the norms of uploads so far; None if they are not bounded"""
        self._span_count = 0

    @property
    def diagnoses(self) -> bool:
        """Whether replies have what the diagnostics of evaluated rounds need."""
        return True

    def _check_statistic(self, conditions: Conditions) -> None:
        """Raise if the run has a robust statistic that is not defined for it."""
        spec, up = self.spec, traffic_of(self.method).up
        require(
            spec.statistic is None or spec.privacy is None,
            "A robust statistic looks at single uploads, which a private run does not: leave out "
            "the statistic or privacy.",
        )
        numbers = [name for name, is_vector in up.items() if not is_vector]
        most = self._most_replies()
        check_statistic(self.method, spec.statistic, conditions.participation, most, numbers)

    def _make_downloads(self) -> DownloadCompressor | None:
        """What compresses the downloads of the run; None if they are sent as they are."""
        down = None if self.spec.compression is None else self.spec.compression.down
        if down is None:
            return None
        require_lagging(self.method)
        return DownloadCompressor(down, self.seed)

    def _most_replies(self) -> int:
        """The largest number of replies of one fold."""
        return self.sampler.most(self.roster)

    @abstractmethod
    def conditions(self) -> Conditions:
        """The conditions of this run, for `Method.check`."""

    def _evaluation_schedule(self) -> EvaluationSchedule:
        """When the run is evaluated, and on how many training samples."""
        clients = self._clients_per_round()
        return schedule_of(self.evaluation, self.losses, self.roster, self.local, clients)

    def _clients_per_round(self) -> float:
        """The mean number of clients that train in a round, about."""
        return self.sampler.mean(self.roster)

    def _devices(self) -> Profiles | None:
        """The device profiles of the clients; None for a run without a virtual clock."""
        return self.spec.devices

    def _make_mechanism(self) -> Mechanism | None:
        """The Gaussian mechanism of the run; an error if its guarantee would not hold."""
        return make_mechanism(self, None, self._noise_source())

    def _noise_source(self) -> NoiseSource:
        """Where the noise of a private run comes from."""
        return KeyedNoise(self.seed)

    @abstractmethod
    def _step(self) -> Record:
        """Execute one round, without evaluation."""

    def rounds(self) -> Iterator[Record]:
        """Execute the rounds and yield their records; the first is that of the initial model."""
        if not self.records:
            yield self._complete(Record(round=0, updates=0))
        while self.round < self.total:
            if self.mechanism is not None:  # also before the first round of a run that is extended
                self.stopped = self.stopped or self.mechanism.exhausted(self.total)
            if self.stopped is not None:
                return
            yield self._complete(self.step())

    def step(self) -> Record:
        """Execute one round, without evaluation, and name the engine's strategy."""
        with one_thread():
            record = self._step()
        record.strategy = self.engine.strategy
        return record

    def model(self) -> nn.Module:
        """A new module with the server's present parameters and buffers, in evaluation mode.

        Personal parameters rest with the clients, so they have their initial values here.
        """
        if not isinstance(self.losses, ModuleLosses):
            raise UndriftError("An analytic problem has no module: its solution is `result.x`.")
        return unmark_eval_parts(self.losses.module_with(self.server.x, self.buffers))

    @property
    def keeps_own_models(self) -> bool:
        """Whether the run has a model of every client: the method's own kind, or the last one."""
        return self.method.own_model is not None or self.job.tracked.last or self.has_personal

    def last_of(self, client: Hashable) -> Tensor:
        """A client's own model: the one its method keeps, else its last one if tracked, else the
        server's.

        Personal parameters, if there are any, come behind it.
        """
        kept = self.method.own_model or (LAST if self.job.tracked.last else None)
        own = self.server.x if kept is None else getattr(self.states.get(client), kept)
        return self.with_personal(own, client)

    @property
    def has_personal(self) -> bool:
        """Whether some parameters are personal, so that every client has a model of its own."""
        return PERSONAL in self.states.kinds

    def with_personal(self, x: Tensor, client: Hashable) -> Tensor:
        """Shared parameters with the client's personal ones behind them, if there are any."""
        if not self.has_personal:
            return x
        return torch.cat([x, getattr(self.states.get(client), PERSONAL)])

    def saved(self) -> dict[str, dict[str, Any]]:
        """What a resumed run needs besides records and client states, by part.

        The names of parts and values are the format of run stores: they must not change.
        """
        more: dict[str, Any] = {} if self.norms is None else {"norms": self.norms.saved()}
        if self.mechanism is not None:
            more["privacy"] = self.mechanism.saved()
        downloads = {} if self.downloads is None else {"downloads": self.downloads.saved()}
        # Means that are not tracked stay at x⁰, which a run knows: they need no room in the store.
        means = {"cohort": self.cohort_mean, "last": self.last_mean}
        return {
            **downloads,
            "server": dict(self.server.items()),
            "buffers": dict(self.buffers),
            "means": {name: value for name, value in means.items() if value is not self.x0},
            "ended": {"stopped": self.stopped},
            "clock": {"now": self.now, **more},
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
        self.cohort_mean = means.get("cohort", self.x0)
        self.last_mean = means.get("last", self.x0)
        self.stopped = part("ended")["stopped"]
        clock = part("clock")
        self.now = clock["now"]
        self.engine.restore(part("engine"))
        if self.norms is not None and "norms" in clock:  # missing if the run began without a bound
            self.norms.restore(clock["norms"])
        if self.downloads is not None:
            self.downloads.restore(part("downloads"))
        restore_mechanism(self.mechanism, clock.get("privacy"), self.method.name)
        self._span_count = sum(len(record.spans) for record in self.records)

    def _conditions(self, **more: Any) -> Conditions:
        """The conditions that all loops know, with `more` of the loop's own."""
        return Conditions(
            clients=len(self.roster),
            equal=self.roster.equal,
            takes_steps=self.local.takes_steps,
            can_ascend=self.local.can_ascend,
            buffers=bool(self.losses.initial_buffers()),
            transformed=bool(self.job.uploads.transforms),
            **more,
        )

    def _fixed_cost(self, draw: Callable[[str], float] = lambda purpose: 0.0) -> FixedCost:
        """What a client of this run receives, computes and sends besides its steps."""
        traffic = traffic_of(self.method, draw)
        shape = self.x0.numel(), self.x0.element_size()
        buffers = buffer_bytes(self.buffers)
        sent = traffic.bytes_up(*shape)
        for name in self.method.sums():
            if traffic.up.get(name):
                sent[name] = self.job.uploads.vector_bytes(self.x0.numel(), self.x0.dtype)
        return FixedCost(
            traffic.bytes_down(*shape) | buffers,
            sent | buffers,
            traffic.first_gradient,
            traffic.gradients_per_step,
        )

    def _norm_limits(self, x: Tensor, buffers: Mapping[str, Tensor]) -> NormLimits | None:
        """The limits of uploads computed from a model and its buffers; None without a bound."""
        if self.norms is None:
            return None
        vectors = measured_vectors(self.method.sums())
        models = vectors if self.method.uploads_models else frozenset({COHORT})
        template = NormLimits(
            ratio=self.norms.bound.ratio,
            rate=self.local.rate(self.round),
            usual={},
            x=x,
            buffers=buffers,
            vectors=vectors,
            models=models,
            floor=harmless_norm(x, self.x0, stateful=bool(self.method.kept())),
        )
        return self.norms.limits(template)

    def _state_fault(self, server: ServerState) -> str | None:
        """Why a folded server state cannot be used, or None; an error if it is none at all."""
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
            return "the server's model is not finite (NaN or Inf), while all replies were"
        if self.norms is None:
            return None
        for vector, value in server.items():
            if isinstance(value, Tensor) and not bool(value.isfinite().all()):
                return f"the server's {vector} is not finite (NaN or Inf), while all replies were"
        size, before = model_size(server.x), model_size(self.server.x)
        if size > FIRST_SCALE * before:
            return f"the server's model grew from norm {before:.3g} to {size:.3g} in one update"
        return None

    def _diverged(self, fault: str) -> Diverged:
        """The error of a server state that cannot be used."""
        return Diverged(
            f"In round {self.round + 1} {fault}; a smaller learning rate or step may help."
        )

    def _apply_update(self, server: ServerState, result: RoundResult, share: float = 1.0) -> None:
        """Replace the server state, the buffers and the tracked means by those of an update.

        `share` is the part of all clients at work that the update comes from. Buffers move only
        that part of the way: a single reply must not replace the statistics of all clients.
        """
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
            self._measure(record, last=record.round == self.total)
        if self.mechanism is not None:
            record.privacy = self.mechanism.recorded(self._evaluated(record.round))
        self.records.append(record)
        for callback in self.callbacks:
            if callback(self, record):
                self.stopped = self.stopped or "a callback asked to stop"
        if self.mechanism is not None and record.round < self.total:
            self.stopped = self.stopped or self.mechanism.exhausted(self.total)
        if self.stopped and record.round < self.total:
            if self._incomplete(record):
                self._measure(record, last=True)  # the last record of a run has all metrics
            if self.mechanism is not None:  # after the last noisy metrics, which ε includes
                record.privacy = self.mechanism.recorded(accounted=True)
        return record

    def _evaluated(self, round: int) -> bool:
        """Whether metrics and diagnostics of a round are computed."""
        return self.schedule.due(round, self.total)

    def _incomplete(self, record: Record) -> bool:
        """Whether the last record of a run would have more metrics, or on more samples."""
        if not self.evaluation.parts:  # a private run without common data
            return False
        estimated = self.schedule.last_whole and "train" in self.evaluation.parts
        estimated = estimated and noisy_metrics(self) is None
        return not record.metrics or estimated

    def _measure(self, record: Record, last: bool) -> None:
        """Compute the metrics of a record, and stop the run if a target is reached."""
        samples = self.schedule.samples_after(last)
        with one_thread():
            record.metrics = measure(self, samples)
        record.measured = self._measured_samples(samples)
        self.stopped = self.stopped or self._target_reached(record.metrics)

    def release_metrics(
        self, by_client: Mapping[str, Mapping[Hashable, float]], parts: Sequence[str]
    ) -> dict[str, float]:
        """The noisy means of the clients' metrics in a private run; they count as released."""
        assert self.mechanism is not None
        return self.mechanism.release_metrics(by_client, parts, self.round)

    def _measured_samples(self, train_samples: int | None) -> dict[str, tuple[int, int]]:
        """By part, on how many samples the models were measured, and how many there are."""
        # The engine's losses measured the model and still have the samples.
        losses = getattr(self.engine, "losses", self.losses)
        if not isinstance(losses, ModuleLosses):
            return {}
        parts = self.evaluation.parts
        if noisy_metrics(self) is not None:  # the clients' numbers of samples are theirs
            parts = tuple(part for part in parts if part in losses.common_parts)
        return losses.measured_samples(self.weights, parts, train_samples)

    def _target_reached(self, metrics: Mapping[str, float]) -> str | None:
        """A sentence on the first target that was reached, or None."""
        return reached(self.target, metrics)
