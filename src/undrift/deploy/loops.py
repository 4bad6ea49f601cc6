"""The loops of a deployment: synchronous rounds and asynchronous training with real sites.

They derive from the loops of a simulation and replace what depends on the virtual clock: who is
available, when a round ends, and where replies come from.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from undrift.core.messages import Assignment, Reply
from undrift.core.method import Conditions, Method
from undrift.core.problem import Download, ServerState
from undrift.core.records import Record, Span
from undrift.core.replies import Replies
from undrift.core.round_result import RoundResult
from undrift.core.sampling import All, Cohort
from undrift.core.targets import reached
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.deploy.downloads.history import DownloadHistory
from undrift.deploy.guards.targets import is_supported
from undrift.deploy.protocol import REPORTED, SITE_ERROR
from undrift.deploy.remote import RemoteEngine
from undrift.deploy.secure.engine import SecureEngine
from undrift.deploy.transport import REFUSED
from undrift.devices import ARRIVES
from undrift.loops import Asynchronous, Loop, Synchronous
from undrift.loops.asynchronous import Dispatched
from undrift.loops.cohorts import draw_cohort
from undrift.loops.dispatch import Dispatch, dispatch_without_clock
from undrift.loops.evaluation_schedule import EvaluationSchedule, deployed_schedule
from undrift.loops.event_queue import ANYBODY, WAKES, EventQueue, Trip
from undrift.loops.paces import RoundPace, WaitForAll
from undrift.loops.private_rounds import make_mechanism
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.privacy.mechanism import Mechanism
from undrift.privacy.noise_sources import NoNoise, SystemNoise
from undrift.privacy.system_coins import secret_cohort
from undrift.runs.store.releases import ReleaseLedger
from undrift.utils.errors import Diverged, UndriftError
from undrift.utils.keys import generator

POLL_SECONDS = 1.0
"""How often the server checks whether a site is connected again."""
ABSENCE_LIMIT_SECONDS = 3600.0
"""How long the server waits for a site to connect before it gives up."""
UNUSABLE = "the update was not used"
"""The first words of the reason why replies are rejected that gave an unusable server state."""
SHOWN_REFUSALS = 3
"""How many different reasons of refusing sites an error names."""
MAX_WASTED_ROUNDS = 10
"""A run stops after this many rounds in a row without progress because answers were rejected."""


class WallClock:
    """Seconds that a run has been running; a resumed run continues from `before` seconds."""

    def __init__(self, before: float = 0.0):
        self._before = before
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the run began, without the time between a stop and a resume."""
        return self._before + time.monotonic() - self._began


class DeployedLoop(Loop):
    """What both loops of a deployment have in common."""

    engine: RemoteEngine
    _wasted_rounds = 0
    _failing: frozenset[Hashable] = frozenset()
    """sites whose training failed in the present row of wasted rounds"""
    _refusals: Mapping[Hashable, str] = {}
    """sites that have refused their orders since the last reply that was used, with the reasons"""
    _refused_rounds = 0
    """rounds since then"""

    def step(self) -> Record:
        self.engine.begin_round(self.states)
        record = super().step()
        record.expelled = [*sorted(self.engine.expelled_sites())]
        # Steps without an update are progress: accepted replies wait in the buffer. An update of a
        # private round without steps is nothing but noise.
        progress = record.steps or (record.updates and self.mechanism is None)
        if record.rejected and not progress:
            self._wasted_rounds += 1
            self._failing |= {c for c, why in record.rejected if _is_of_training(why)}
        else:
            self._wasted_rounds, self._failing = 0, frozenset()
        if self._wasted_rounds >= MAX_WASTED_ROUNDS:
            self._give_up(*record.rejected[-1])
        return record

    def _give_up(self, site: Hashable, why: str) -> None:
        """End after too many wasted rounds.

        A single site must not be able to end a run for good: only if the training of most sites
        failed, the run has diverged. Otherwise it can be resumed.
        """
        if 2 * len(self._failing) > len(self.roster):
            raise Diverged(
                f"In the last {MAX_WASTED_ROUNDS} rounds no site sent a usable update (site "
                f"{site!r}: {why}); a smaller learning rate may help."
            )
        raise UndriftError(
            f"The last {MAX_WASTED_ROUNDS} rounds changed nothing because answers were rejected "
            f"(site {site!r}, {why}); undrift deploy expel removes a site, and undrift resume "
            f"continues from round {self.round - 1}."
        )

    def _require_willing(self, round: int, used: bool, rejected: Mapping[Hashable, str]) -> None:
        """Raise if no site takes part: in a round, counted from 1, replies were `used` or rejected.

        Without this a private run would release nothing but noise, and any run would end as if it
        had learned something.
        """
        if used:
            self._refusals, self._refused_rounds = {}, 0
            return
        start = f"{REFUSED}: {SITE_ERROR}"
        new = {site: why.removeprefix(start) for site, why in rejected.items() if start in why}
        self._refusals = {**self._refusals, **new}
        self._refused_rounds += 1
        if not self._refusals:
            return
        members = {str(id) for id in self.roster.ids} - self.engine.expelled_sites()
        everyone = {str(site) for site in self._refusals} >= members
        idle = not any(record.steps for record in self.records)
        if isinstance(self.engine, SecureEngine):
            # Sites refuse to unmask a round twice, after a server died in it; the next one may do.
            everyone = everyone and idle and self._refused_rounds > 1
        if everyone or (idle and round >= self.total):
            raise UndriftError(self._said_by_refusing(round))

    def _said_by_refusing(self, round: int) -> str:
        """One sentence: which sites refused what."""
        reasons: dict[str, list[str]] = {}
        for site, why in self._refusals.items():
            reasons.setdefault(why.rstrip("."), []).append(repr(str(site)))
        shown = [f"{', '.join(sites)}: {why}" for why, sites in reasons.items()][:SHOWN_REFUSALS]
        more = len(reasons) - len(shown)
        return (
            f"No site takes part in {self.method.name} (seed {self.seed}): up to round {round} all "
            f"that were asked refused or failed ({'; '.join(shown)}"
            f"{f'; and {more} other reasons' if more else ''}); undrift resume continues when they "
            f"accept it."
        )

    def require_members(self) -> None:
        """Raise if all sites are expelled."""
        if self.engine.expelled_sites() >= {str(id) for id in self.roster.ids}:
            raise UndriftError(
                "All sites are expelled: undrift deploy expel --undo takes one back."
            )

    def _evaluation_schedule(self) -> EvaluationSchedule:
        clients = self._clients_per_round()
        return deployed_schedule(self.evaluation, self.roster, self.local, clients)

    def _measure(self, record: Record, last: bool) -> None:
        self.engine.site_metrics.clear()
        self.engine.measure_next(record.round, self.evaluation.models, self.states)
        super()._measure(record, last)
        record.rejected += self.engine.take_rejected_metrics()

    def _target_reached(self, metrics: Mapping[str, float]) -> str | None:
        for metric, target in self.target.items():
            # A metric is missing if no site sent it: then its target is not reached.
            found = reached({metric: target}, metrics) if metric in metrics else None
            if found is not None and is_supported(self, metric, target, metrics):
                return found
        return None


class DeployedSynchronous(DeployedLoop, Synchronous):
    """Synchronous rounds with sites.

    A site that is not connected, or still at work for an earlier round, is not asked. A site that
    does not answer in time is recorded as lost.

    Parameters
    ----------
    spec, engine, states
        as for every loop
    releases
        remembers the released rounds and metrics of a private run; None for no memory
    site_noise
        whether the noise of a private run comes from the sites
    """

    def __init__(
        self,
        spec: RunSpec,
        engine: EngineFactory,
        states: StatesFactory,
        releases: ReleaseLedger | None = None,
        site_noise: bool = False,
    ):
        self._site_noise = site_noise
        super().__init__(spec, engine, states)
        self._releases = releases
        self._count_releases()
        if self.method.needs_all:  # the method is not defined for a round without everyone
            self.pace = WaitForAll(len(self.roster))
        self._clock = WallClock()

    def _make_mechanism(self) -> Mechanism | None:
        # A site that is away makes the others of a fixed-size cohort more likely.
        source = NoNoise() if self._site_noise else SystemNoise()
        return make_mechanism(self, self._given_pace, source, steady=False)

    def _count_releases(self) -> None:
        """Count what was released and not committed, because the server died."""
        if self.mechanism is None or self._releases is None:
            return
        self.mechanism.releases = max(self.mechanism.releases, len(self._releases.rounds))
        if self.mechanism.guarantee.metrics is None:
            return
        missing = self.mechanism.evaluations - len(self._releases.evaluations)
        if missing > 0:
            # An older version entered no metrics, and may have released one more than it committed.
            self._releases.add_evaluations(self.round, missing + 1)
        self.mechanism.evaluations = len(self._releases.evaluations)

    def _step(self) -> Record:
        if self.mechanism is None or self._releases is None:
            return super()._step()
        if self.round not in self._releases.rounds:
            return super()._step()
        # The server died after it released this round, maybe after the model had left. The sites'
        # contributions must not be released again under other noise.
        self.round += 1
        self.now = self._clock.now
        return Record(round=self.round, updates=0, virtual_seconds=self.now)

    def _released(self, result: RoundResult) -> Replies:
        if self.mechanism is not None and self._releases is not None:
            self._releases.add(self.round)
        return super()._released(result)

    def release_metrics(
        self, by_client: Mapping[str, Mapping[Hashable, float]], parts: Sequence[str]
    ) -> dict[str, float]:
        if self._releases is not None:  # first on disk: whoever sees the metrics, they are counted
            self._releases.add_evaluations(self.round)
        return super().release_metrics(by_client, parts)

    def _round_pace(self, spec: RunSpec) -> RoundPace:
        # The engine ends the round as the given pace says, by the wall clock. The loop then waits
        # for everyone who is left: it must not apply the pace again, to virtual times.
        self._given_pace = super()._round_pace(spec)
        return WaitForAll(self._given_pace.min_replies)

    def conditions(self) -> Conditions:
        kind = self.sampler.kind(self.roster)
        loses = self._given_pace.loses
        return self._conditions(participation="responding" if kind == "all" and loses else kind)

    def restore(self, part: Callable[[str], dict[str, Any]], records: Sequence[Record]) -> None:
        super().restore(part, records)
        self._count_releases()
        self._clock = WallClock(self.now)

    def _run(
        self, method: Method, assignments: Sequence[Assignment], diagnosed: bool
    ) -> RoundResult:
        result = super()._run(method, assignments, diagnosed)
        # Before anything is released: sums without any reply are nothing but noise.
        if assignments:
            self._require_willing(self.round + 1, result.replies.count > 0, result.rejected)
        return result

    def _run_again(
        self,
        method: Method,
        assignments: Sequence[Assignment],
        diagnosed: bool,
        limits: NormLimits,
    ) -> RoundResult:
        # The sites are not asked twice: the engine still has their answers.
        return self.engine.add_up(method, assignments, self.round, diagnosed, limits)

    def _folded(
        self, server: ServerState, result: RoundResult, record: Record
    ) -> ServerState | None:
        # What sites sent must not end the run: the round is skipped, and its sites are named.
        folded = self.method.fold(server, self._released(result))
        fault = self._state_fault(folded)
        if fault is None:
            return folded
        record.rejected += [(client, f"{UNUSABLE}: {fault}") for client in result.kept]
        return None

    def _failed_in_training(self, result: RoundResult, dispatch: Dispatch) -> dict[Hashable, str]:
        # A site may say anything: `DeployedLoop` gives up when most sites fail, round after round.
        return {}

    def _cohort(self) -> Cohort:
        sampler = All() if self._asks_everyone() else self.sampler
        available = self._wait_for_sites()
        # Without a mask the sampler draws as in a simulation, which gives the same cohorts.
        mask = None if available.all() else available
        if self.mechanism is not None and type(sampler) is not All:
            self.engine.available = None
            return secret_cohort(sampler, self.roster, mask)
        # Every site draws the cohort itself, and needs to know among whom.
        there = [
            str(id) for id, is_there in zip(self.roster.ids, available, strict=True) if is_there
        ]
        self.engine.available = None if mask is None else tuple(there)
        cohort = draw_cohort(sampler, self.roster, self.seed, self.round, mask)
        full = cohort if mask is None else draw_cohort(sampler, self.roster, self.seed, self.round)
        self.engine.cohort = tuple(str(id) for id in self.roster.ids if id in cohort)
        self.engine.full_cohort = len(full)
        return cohort

    def _download(self, server: ServerState) -> Download:
        down = super()._download(server)
        if self.downloads is not None:
            if self.engine.downloads is None:
                self.engine.downloads = DownloadHistory(self.downloads)
            self.engine.downloads.add(self.round)
        return down

    def _sent_down(
        self, result: RoundResult, replied: Iterable[Hashable], down: Download
    ) -> Counter[str]:
        # As counted for each order: a site may have needed whole vectors.
        return result.down

    def _asks_everyone(self) -> bool:
        return self.round == 0 and self.method.starts_with_all

    def _wait_for_sites(self) -> np.ndarray:
        """Which sites can be asked; waits until one can be, or all if the round needs them."""
        until = time.monotonic() + ABSENCE_LIMIT_SECONDS
        everyone = self.method.needs_all or self._asks_everyone()
        while True:
            idle = self.engine.idle_sites()
            self.require_members()
            if everyone:
                self._require_everyone()
            available = np.array([id in idle for id in self.roster.ids])
            if available.all() or (available.any() and not everyone):
                self.engine.waiting([])
                return available
            expelled = self.engine.expelled_sites()
            away = [str(id) for id in self.roster.ids if id not in idle]
            missing = [site for site in away if site not in expelled]
            self.engine.waiting(missing)
            if time.monotonic() > until:
                which = f"The site {missing[0]!r} has" if everyone else "All sites have"
                raise UndriftError(
                    f"{which} been away for {ABSENCE_LIMIT_SECONDS / 60:.0f} minutes in round "
                    f"{self.round + 1}; undrift resume continues when they are back."
                )
            time.sleep(POLL_SECONDS)

    def _require_everyone(self) -> None:
        """Raise if a site is expelled, in a round that needs every site."""
        expelled = sorted(self.engine.expelled_sites())
        if expelled:
            raise UndriftError(
                f"The site {expelled[0]!r} is expelled, but {self.method.name} needs every site in "
                f"round {self.round + 1}: start a new run without that site in data.sites, or take "
                f"it back with undrift deploy expel --undo."
            )

    def _diagnosed(self, round: int) -> bool:
        # They need single uploads.
        return super()._diagnosed(round) and not isinstance(self.engine, SecureEngine)

    def _dispatch(self, cohort: Cohort, draw: Callable[[str], float], down: Download) -> Dispatch:
        self._round_start = self._clock.now
        return dispatch_without_clock(self.planner, self.method, cohort, self.round)

    def _advance_clock(self, record: Record, dispatch: Dispatch) -> None:
        now = self._clock.now
        unused = {client: "rejected" for client, _ in record.rejected} | dict(record.lost)
        for client in dispatch.used:
            # The server cannot tell receiving from computing: the whole round counts as both.
            span = Span(client.id, self._round_start, self._round_start, now, now, "replied")
            self._record_span(record, span._replace(outcome=unused.get(client.id, "replied")))
        self.now = record.virtual_seconds = now


class DeployedAsynchronous(DeployedLoop, Asynchronous):
    """Asynchronous training with sites: a site that has answered gets the newest model."""

    queue: SiteEventQueue

    def _step(self) -> Record:
        record = super()._step()
        self._require_willing(record.round, bool(record.steps), dict(record.rejected))
        return record

    def _make_queue(self) -> EventQueue:
        return SiteEventQueue(self)

    def _launch(self, k: int) -> Dispatched:
        dispatched = super()._launch(k)
        assignment = self._assignment(dispatched)
        ticket = self.engine.request_work(self.method, assignment, self.states, self.diagnoses)
        self.queue.expect(ticket, dispatched.trip)
        return dispatched

    def _reply(self, dispatched: Dispatched) -> Reply:
        return self.queue.reply_of(dispatched.trip.k)

    def _indicates_divergence(self, dispatched: Dispatched, reply: Reply) -> bool:
        # A site may say anything: `DeployedLoop` gives up when most sites fail, round after round.
        return False

    def _drop_buffer(self, fault: str, record: Record) -> None:
        # What sites sent must not end the run: their replies are dropped, and the sites are named.
        for reply in self._buffer:
            record.rejected.append((reply.client.id, f"{UNUSABLE}: {fault}"))
            record.steps -= min(record.steps, reply.steps)
            record.wasted_steps += reply.steps
        self._buffer = []

    def restore(self, part: Callable[[str], dict[str, Any]], records: Sequence[Record]) -> None:
        # The requests of the stopped server are lost, and so are their answers: every site is asked
        # again, with the restored model. What the store says about trips under way is not used.
        super().restore(part, records)
        self.reset()


def _is_of_training(why: str) -> bool:
    """Whether a reply was rejected because training failed, rather than for its form or size."""
    return why.startswith((REPORTED, UNUSABLE))


class SiteEventQueue(EventQueue):
    """The event queue of a deployment: the sites at work, by the wall clock.

    `land` blocks until a site answers. A site has at most one trip under way, so its position in
    the roster identifies the trip and its reply.
    """

    def __init__(self, loop: DeployedAsynchronous):
        self._loop = loop
        self._launched = 0
        self._clock = WallClock()
        self.reset()

    @property
    def now(self) -> float:
        return self._clock.now

    @property
    def launched(self) -> int:
        return self._launched

    @property
    def next_time(self) -> float:
        # Nobody knows when a site will answer. With ∞ the loop starts waiting clients at once,
        # which is right: their sites are idle.
        return float("inf")

    def __len__(self) -> int:
        return len(self._trips) + len(self._to_wake)

    def is_available(self, k: int) -> bool:
        id = self._loop.roster.ids[k]
        return k not in self._busy and id in self._loop.engine.connected_sites()

    def pick(self) -> int | None:
        idle = [k for k in range(len(self._loop.roster)) if self.is_available(k)]
        u = generator(self._loop.seed, "arrivals", self.launched).random()
        return idle[int(u * len(idle))] if idle else None

    def launch(self, k: int, units: float) -> Trip:
        now, number = self.now, self._launched
        self._launched += 1
        self._busy.add(k)
        return Trip(now, number, number, k, now, now, now, ARRIVES)

    def expect(self, ticket: str, trip: Trip) -> None:
        """Wait for the answer with this ticket as the end of a trip."""
        self._trips[ticket] = trip

    def wake(self, k: int = ANYBODY) -> None:
        self._to_wake.append(k)

    def free(self, k: int) -> None:
        self._busy.discard(k)
        self._replies.pop(k, None)  # still there if the reply was too old to use

    def reply_of(self, k: int) -> Reply:
        """The reply of a site whose trip has landed."""
        return self._replies[k]

    def land(self) -> Trip:
        engine = self._loop.engine
        while True:
            answer = engine.next_answer(POLL_SECONDS)
            if answer is not None:
                self._last_answer = time.monotonic()
                engine.waiting([])
                trip = self._trips.pop(answer.ticket, None)
                found = engine.work_result(self._loop.method, answer)
                if trip is not None and found is not None:
                    if found.reply is not None:
                        self._replies[trip.k] = found.reply
                    outcome = ARRIVES if found.reply is not None else found.failure
                    now = self.now
                    return trip._replace(end=now, sending=now, outcome=outcome)
            if not self._trips:
                self._require_not_alone()
            # One wake-up after every poll without an answer: the loop then tries to start the
            # client, and calls `wake` again if it still cannot.
            if answer is None and self._to_wake:
                return Trip(self.now, -1, -1, self._to_wake.pop(0), 0.0, 0.0, 0.0, WAKES)

    def _require_not_alone(self) -> None:
        """Give up when no site has answered or connected for too long."""
        engine = self._loop.engine
        self._loop.require_members()
        known = engine.connected_sites() | engine.expelled_sites()
        engine.waiting([str(id) for id in self._loop.roster.ids if id not in known])
        if time.monotonic() - self._last_answer > ABSENCE_LIMIT_SECONDS:
            raise UndriftError(
                f"All sites have been away for {ABSENCE_LIMIT_SECONDS / 60:.0f} minutes; undrift "
                f"resume continues when they are back."
            )

    def reset(self) -> None:
        self._trips: dict[str, Trip] = {}
        """trips under way, by the ticket of their request"""
        self._replies: dict[int, Reply] = {}
        """replies that have arrived and are not taken in yet"""
        self._busy: set[int] = set()
        self._to_wake: list[int] = []
        """clients, or `ANYBODY`, to start when they are available"""
        self._last_answer = time.monotonic()

    def saved(self) -> dict[str, Any]:
        return {"launched": self.launched, "now": self.now}

    def restore(self, saved: dict[str, Any]) -> None:
        self._launched = saved["launched"]
        self._clock = WallClock(saved["now"])
