"""Synchronous rounds: draw a cohort, dispatch it, train, fold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from undrift.core.clients import ClientStates
from undrift.core.diagnostics import diagnose
from undrift.core.messages import Assignment
from undrift.core.method import Conditions, Method
from undrift.core.records import Record
from undrift.core.round_result import RoundResult
from undrift.core.sampling import All, Cohort, Fixed
from undrift.engines.serial import SerialEngine
from undrift.loops.base import Loop
from undrift.loops.cohorts import draw_cohort
from undrift.loops.dispatch import Dispatch, dispatch_with_clock, dispatch_without_clock
from undrift.loops.paces import RoundPace, WaitForAll
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.utils.errors import Diverged, UndriftError, require
from undrift.utils.keys import generator


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

        def draw(purpose: str) -> float:
            return generator(self.seed, purpose, t).random()

        server = method.begin(self.server, draw)
        down = method.download(server)
        dispatch = self._dispatch(cohort, draw)
        if method.needs_all and dispatch.absent:
            raise UndriftError(
                f"In round {t + 1} client {dispatch.absent[0]!r} does no work, but {method.name} "
                f"is defined only when every client takes part in every round: give it more time, "
                f"or choose a method that allows partial participation."
            )
        diagnosed = self._evaluated(t + 1)
        assignments = [Assignment(c, work, down, self.buffers) for c, work in dispatch.used.items()]
        if self.states.kinds:
            # Before the engine starts: states of the next cohort are read while this one trains.
            self.states.prefetch(self._next_cohort(cohort))
        # Neither the engine nor `fold` changes the loop: server and client states are replaced
        # below, together. A round that raises, or has too few replies, leaves both as they were.
        result = self.engine.run(method, assignments, self.states, t, diagnosed)
        failed = self._failed_in_training(result, dispatch)
        if not result.replies.count and failed:
            first, reason = next(iter(failed.items()))
            raise Diverged(
                f"In round {t + 1} no client of the cohort sent a usable update "
                f"(client {first!r}: {reason}); a smaller learning rate may help."
            )
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
        if result.replies.count >= self.pace.min_replies:
            before = self.server
            # First the server, which may raise: the states that clients keep (control variates,
            # duals) must belong to the same round as the server's sums of them.
            self._apply_update(method.fold(server, result.replies), result)
            for client, keep in result.kept.items():
                self.states.put(client, keep)
            if diagnosed:
                record.diagnostics = diagnose(method, before, self.server, result.replies)
        else:  # skipped for too few replies: no state changes, and all work is wasted
            record.lost += [(client, "skipped") for client in result.kept]
            record.wasted_steps += record.steps
            record.wasted_gradients += record.gradients
            record.updates = record.partial = record.steps = record.gradients = 0
        self._advance_clock(record, dispatch)
        self.round += 1
        record.seconds = time.perf_counter() - began
        return record

    def _failed_in_training(self, result: RoundResult, dispatch: Dispatch) -> dict[Hashable, str]:
        """Clients whose replies were rejected because of training, not of a damaged device."""
        return {c: why for c, why in result.rejected.items() if c not in dispatch.damaged}

    def _cohort(self) -> Cohort:
        """The cohort, drawn among available clients; if there are none, the clock moves on."""
        first = self.round == 0 and self.method.starts_with_all
        sampler = All() if first else self.sampler
        if self.fleet is None or self.fleet.steady:
            return draw_cohort(sampler, self.roster, self.seed, self.round)
        # Wait until one of the clients that can be drawn is available: any client, or for given
        # cohorts one of this round's.
        wanted = np.ones(len(self.roster), dtype=bool)
        if isinstance(sampler, Fixed):
            wanted[:] = False
            given = draw_cohort(sampler, self.roster, self.seed, self.round)
            wanted[[self.roster.position[client] for client in given]] = True
        if not (self.fleet.available(self.now) & wanted).any():
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

    def _dispatch(self, cohort: Cohort, draw: Callable[[str], float]) -> Dispatch:
        """Who does how much of the cohort's work, and whose replies are used."""
        if self.fleet is None:
            return dispatch_without_clock(self.planner, self.method, cohort, self.round)
        # Only a method with its own `begin` may send different vectors from round to round.
        same = type(self.method).begin is Method.begin
        cost = self.fixed_cost if same else self._fixed_cost(draw)
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
