"""Synchronous rounds: draw a cohort, dispatch it, train, fold."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from undrift.core.clients import ClientStates
from undrift.core.diagnostics import diagnose
from undrift.core.messages import Assignment, buffer_bytes
from undrift.core.method import Conditions, Draw, Method
from undrift.core.problem import Download, ServerState
from undrift.core.records import Record
from undrift.core.replies import Replies
from undrift.core.round_result import RoundResult
from undrift.core.sampling import All, Cohort, Fixed
from undrift.core.uploads.norm_bounds import OVER_BOUND, NormLimits
from undrift.engines.serial import SerialEngine
from undrift.loops.adversaries import add_attackers
from undrift.loops.base import Loop
from undrift.loops.cohorts import draw_cohort
from undrift.loops.dispatch import Dispatch, dispatch_with_clock, dispatch_without_clock
from undrift.loops.paces import RoundPace, WaitForAll
from undrift.loops.private_rounds import make_mechanism
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.privacy.mechanism import Mechanism
from undrift.utils.errors import Diverged, UndriftError, require
from undrift.utils.keys import draw_of_round


class Synchronous(Loop):
    """A run in rounds; with a clock, `pace` decides when a round ends."""

    def __init__(
        self,
        spec: RunSpec,
        engine: EngineFactory = SerialEngine,
        states: StatesFactory = ClientStates,
    ):
        pace = self._round_pace(spec)
        self.pace = pace
        super().__init__(spec, engine, states)
        require(
            self.fleet is not None or not pace.needs_devices,
            f"{type(pace).__name__} needs a virtual clock: describe the devices, for example "
            f"devices=ud.Devices(speed=100).",
        )
        most = self.sampler.most(self.roster)
        require(
            pace.min_replies <= most,
            f"{type(pace).__name__}'s min_replies is {pace.min_replies}, but must be at most "
            f"{most}, the largest number of clients in a round.",
        )

    def _round_pace(self, spec: RunSpec) -> RoundPace:
        """The pace of the run; an error if it is not a pace of rounds."""
        pace = WaitForAll() if spec.pace is None else spec.pace
        if not isinstance(pace, RoundPace):
            raise UndriftError(
                f"The pace of a synchronous run must be ud.WaitForAll, ud.Deadline or "
                f"ud.FirstToRespond, not {pace!r}."
            )
        return pace

    def _make_mechanism(self) -> Mechanism | None:
        return make_mechanism(self, self.pace, self._noise_source())

    def conditions(self) -> Conditions:
        kind = self.sampler.kind(self.roster)
        unreliable = self.fleet is not None and not self.fleet.reliable
        if kind == "all" and (unreliable or self.pace.loses):
            kind = "responding"
        return self._conditions(participation=kind)

    def _step(self) -> Record:
        began = time.perf_counter()
        t, method = self.round, self.method
        cohort = self._cohort()

        draw = draw_of_round(self.seed, t)
        server = method.begin(self.server, draw)
        down = self._download(server)
        dispatch = self._dispatch(cohort, draw, down)
        if method.needs_all and dispatch.absent:
            raise UndriftError(
                f"In round {t + 1} client {dispatch.absent[0]!r} does no work, but {method.name} "
                f"is defined only when every client takes part in every round: give it more time, "
                f"or choose a method that allows partial participation."
            )
        diagnosed = self._diagnosed(t + 1)
        assignments = [Assignment(c, work, down, self.buffers) for c, work in dispatch.used.items()]
        if self.states.kinds:
            # Before the engine starts: states of the next cohort are read while this one trains.
            self.states.prefetch(self._next_cohort(cohort))
        # Neither the engine nor `fold` changes the loop: server and client states are replaced
        # below, together. A round that raises, or has too few replies, leaves both as they were.
        result = self._run(method, assignments, diagnosed)
        failed = self._failed_in_training(result, dispatch)
        if not result.replies.count and failed:
            first, reason = next(iter(failed.items()))
            raise Diverged(
                f"In round {t + 1} no client of the cohort sent a usable update "
                f"(client {first!r}: {reason}); a smaller learning rate may help."
            )
        if self.downloads is not None:
            replied = [*result.kept, *result.rejected]
            result.down = self._sent_down(result, replied, down)
            self.downloads.received(replied, down)
        record = Record(
            round=t + 1,
            cohort=list(cohort),
            rejected=list(result.rejected.items()),
            absent=dispatch.absent,
            lost=[*dispatch.lost.items(), *result.lost.items()],
            partial=result.partial,
            bytes_down=dict(result.down + dispatch.wasted_down),
            bytes_up=dict(result.up),
            steps=result.steps,
            gradients=result.evaluations,
            wasted_steps=dispatch.wasted_steps + result.wasted_steps,
            wasted_gradients=dispatch.wasted_gradients + result.wasted_evaluations,
        )
        folded = None
        # A private round is never skipped: that would tell how many clients replied.
        private = self.mechanism is not None and self.pace.min_replies <= 1
        if private or result.replies.count >= self._min_replies():
            folded = self._folded(server, result, record)
        if folded is not None:
            before = self.server
            self._apply_update(folded, result)
            for client, keep in result.kept.items():
                self.states.put(client, keep)
            if diagnosed:
                record.diagnostics = diagnose(method, before, self.server, result.replies)
        else:  # skipped: no state changes, and all work is wasted
            rejected = {client for client, _ in record.rejected}
            record.lost += [(c, "skipped") for c in result.kept if c not in rejected]
            record.wasted_steps += record.steps
            record.wasted_gradients += record.gradients
            record.updates = record.partial = record.steps = record.gradients = 0
        self._advance_clock(record, dispatch)
        self.round += 1
        record.seconds = time.perf_counter() - began
        return record

    def _diagnosed(self, round: int) -> bool:
        """Whether the diagnostics of a round are computed."""
        # They come from single clients' uploads, which a private run does not publish.
        return self.diagnoses and self.mechanism is None and self._evaluated(round)

    def _run(
        self, method: Method, assignments: Sequence[Assignment], diagnosed: bool
    ) -> RoundResult:
        """Have the engine do the work of the round, within the bounds on norms if there are any."""
        limits = self._norm_limits(self.server.x, self.buffers)
        result = self.engine.run(method, assignments, self.states, self.round, diagnosed, limits)
        self._add_attackers(method, result, assignments, diagnosed, limits)
        if self.norms is None or limits is None:
            return result
        norms, steps = result.norms, result.norm_steps
        tighter = self.norms.tightened(limits, norms, steps)
        if tighter is not None:
            result = self._run_again(method, assignments, diagnosed, tighter)
        self.norms.add(norms, steps, limits.rate)
        return result

    def _run_again(
        self,
        method: Method,
        assignments: Sequence[Assignment],
        diagnosed: bool,
        limits: NormLimits,
    ) -> RoundResult:
        """The same work with other limits: it gives the same bits, as `run` changes no state."""
        result = self.engine.run(method, assignments, self.states, self.round, diagnosed, limits)
        self._add_attackers(method, result, assignments, diagnosed, limits)
        return result

    def _add_attackers(
        self,
        method: Method,
        result: RoundResult,
        assignments: Sequence[Assignment],
        diagnosed: bool,
        limits: NormLimits | None,
    ) -> None:
        """Add the replies of attackers, which the engine has put aside, as the attack has them."""
        add_attackers(self.spec.attack, self.job, method, result, assignments, diagnosed, limits)

    def _min_replies(self) -> int:
        """With fewer replies a round is skipped, because of the pace or the robust statistic."""
        statistic = self.spec.statistic
        return max(self.pace.min_replies, 0 if statistic is None else statistic.min_replies)

    def _download(self, server: ServerState) -> Download:
        """What clients have of the server's vectors in this round."""
        down = self.method.download(server)
        if self.downloads is not None:
            down = self.downloads.compress(down, self.round)
        return down if self.mechanism is None else down.replace(**self.mechanism.settings())

    def _sent_down(
        self, result: RoundResult, replied: Iterable[Hashable], down: Download
    ) -> Counter[str]:
        """The bytes of this round's compressed downloads, by tensor."""
        return self._received(replied, down)

    def _received(self, clients: Iterable[Hashable], down: Download) -> Counter[str]:
        """The bytes that clients receive in this round, by tensor, if downloads are compressed."""
        assert self.downloads is not None
        found: Counter[str] = Counter()
        for client in clients:
            found.update(self.downloads.bytes_for(client, down))
            found.update(buffer_bytes(self.buffers))
        return found

    def _folded(
        self, server: ServerState, result: RoundResult, record: Record
    ) -> ServerState | None:
        """The server state after the round's fold; None if the round is to be skipped.

        First the server: the states that clients keep (control variates, duals) must belong to the
        same round as the server's sums of them.
        """
        folded = self.method.fold(server, self._released(result))
        fault = self._state_fault(folded)
        if fault is not None:
            raise self._diverged(fault)
        return folded

    def _released(self, result: RoundResult) -> Replies:
        """What the method folds: the sums of the round, or those that a private run releases."""
        if self.mechanism is None:
            return result.replies
        rate = self.local.rate(self.round)
        return self.mechanism.release(result.replies, self.x0, self.round, rate)

    def _failed_in_training(self, result: RoundResult, dispatch: Dispatch) -> dict[Hashable, str]:
        """Clients whose replies were rejected because of training, not of a damaged device."""
        return {
            c: why
            for c, why in result.rejected.items()
            if c not in dispatch.damaged and not why.startswith(OVER_BOUND)
        }

    def _cohort(self) -> Cohort:
        """The cohort, drawn among available clients; if there are none, the clock moves on."""
        first = self.round == 0 and self.method.starts_with_all
        sampler = All() if first else self.sampler
        if self.fleet is None or self.fleet.steady:
            return draw_cohort(sampler, self.roster, self.seed, self.round)
        # Wait until one of the clients that can be drawn is available: any client, or for given
        # cohorts one of this round's.
        wanted: slice | list[int] = slice(None)
        if isinstance(sampler, Fixed):
            given = draw_cohort(sampler, self.roster, self.seed, self.round)
            wanted = [self.roster.position[client] for client in given]
        available = self.fleet.available(self.now)
        if not available[wanted].any():
            next_time = float(self.fleet.next_available(self.now)[wanted].min())
            if math.isinf(next_time):
                self.stopped = "no client is available any more"
                return {}
            self.now = next_time
            available = self.fleet.available(self.now)
        return draw_cohort(sampler, self.roster, self.seed, self.round, available)

    def _next_cohort(self, cohort: Cohort) -> Iterator[Hashable]:
        """The clients of the next round that are not in this one, if known in advance.

        With changing availability they are not: they depend on when this round ends.
        """
        if self.round + 1 < self.total and (self.fleet is None or self.fleet.steady):
            for client in draw_cohort(self.sampler, self.roster, self.seed, self.round + 1):
                if client not in cohort:
                    yield client

    def _dispatch(self, cohort: Cohort, draw: Draw, down: Download) -> Dispatch:
        """Who does how much of the cohort's work, and whose replies are used."""
        if self.fleet is None:
            return dispatch_without_clock(self.planner, self.method, cohort, self.round)
        # Only a method with its own `begin` may send different vectors from round to round.
        same = type(self.method).begin is Method.begin
        cost = self.fixed_cost if same else self._fixed_cost(draw)
        if self.downloads is not None:
            cost = replace(cost, down_by={k: dict(self._received([k], down)) for k in cohort})
        return dispatch_with_clock(
            self.planner, self.method, cohort, self.round, self.fleet, self.pace, self.now, cost
        )

    def _advance_clock(self, record: Record, dispatch: Dispatch) -> None:
        """Set the clock to the end of the round, and record who worked when."""
        if self.fleet is None:
            return
        record.busy_seconds, record.idle_seconds = dispatch.busy, dispatch.idle
        unused = {client: "rejected" for client, _ in record.rejected} | dict(record.lost)
        for span in dispatch.spans:
            self._record_span(record, span._replace(outcome=unused.get(span.client, "replied")))
        self.now = record.virtual_seconds = dispatch.over
