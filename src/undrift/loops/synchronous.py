"""Synchronous rounds: draw a cohort, let it work, fold, measure."""

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
from undrift.loops.dispatch import Outing, on_the_clock, without_clock
from undrift.loops.paces import RoundPace, WaitForAll
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.utils.errors import Diverged, UndriftError, require
from undrift.utils.keys import generator


class Synchronous(Loop):
    """A run in rounds; `pace` says when a round ends, where there is a clock."""

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
            f"{type(pace).__name__} needs a clock: say what the devices are like, for example "
            f"devices=ud.Devices(speed=100).",
        )
        most = self.sampler.most(self.roster)
        require(
            pace.min_replies <= most,
            f"{type(pace).__name__}'s min_replies is {pace.min_replies}, but no more than {most} "
            f"clients take part in a round: it must be at most that.",
        )

    def _round_pace(self, spec: RunSpec) -> RoundPace:
        """When a round ends."""
        pace = WaitForAll() if spec.pace is None else spec.pace
        if not isinstance(pace, RoundPace):
            raise UndriftError(f"A synchronous run needs a pace of rounds, not {pace!r}.")
        return pace

    def setting(self) -> Conditions:
        kind = self.sampler.kind(self.roster)
        unreliable = self.fleet is not None and not self.fleet.reliable
        if kind == "all" and (unreliable or self.pace.loses):
            kind = "responding"
        return self._setting(participation=kind)

    def _step(self) -> Record:
        began = time.perf_counter()
        t, method = self.round, self.method
        cohort = self._cohort()

        def draw(purpose: str) -> float:
            return generator(self.seed, purpose, t).random()

        server = method.begin(self.server, draw)
        down = method.download(server)
        outing = self._outing(cohort, draw)
        if method.needs_all and outing.absent:
            raise UndriftError(
                f"In round {t + 1} client {outing.absent[0]!r} manages no work, but {method.name} "
                f"is defined only when every client takes part in every round: give it more time, "
                f"or choose a method that allows partial participation."
            )
        diagnosed = self._evaluated(t + 1)
        assignments = [Assignment(c, work, down, self.buffers) for c, work in outing.used.items()]
        if self.states.kinds:
            self.states.prefetch(self._next_cohort(cohort))
        result = self.engine.run(method, assignments, self.states, t, diagnosed)
        broken = self._broken(result, outing)
        if not result.replies.count and broken:
            first, reason = next(iter(broken.items()))
            raise Diverged(
                f"In round {t + 1} no client of the cohort sent a usable update "
                f"(client {first!r}: {reason}); a smaller learning rate may help."
            )
        record = Record(
            round=t + 1,
            cohort=list(cohort),
            rejected=list(result.rejected.items()),
            absent=outing.absent,
            lost=[*outing.lost.items(), *result.lost.items()],
            partial=result.partial,
            bytes_down=dict(result.down + outing.wasted_down),
            bytes_up=dict(result.up),
            steps=result.steps,
            gradients=result.evaluations,
            wasted_steps=outing.wasted_steps + result.wasted_steps,
            wasted_gradients=outing.wasted_gradients + result.wasted_evaluations,
        )
        if result.replies.count >= self.pace.min_replies:
            before = self.server
            self._take_over(method.fold(server, result.replies), result)
            for client, keep in result.kept.items():
                self.states.put(client, keep)
            if diagnosed:
                record.diagnostics = diagnose(method, before, self.server, result.replies)
        else:  # too few: nothing changes, and what they did is wasted
            record.lost += [(client, "skipped") for client in result.kept]
            record.wasted_steps += record.steps
            record.wasted_gradients += record.gradients
            record.updates = record.partial = record.steps = record.gradients = 0
        self._pass_time(record, outing)
        self.round += 1
        record.seconds = time.perf_counter() - began
        return record

    def _broken(self, result: RoundResult, outing: Outing) -> dict[Hashable, str]:
        """Whose reply is unusable because of what was computed, and not on the way."""
        return {c: why for c, why in result.rejected.items() if c not in outing.damaged}

    def _cohort(self) -> Cohort:
        """Who is asked: drawn among those that are there; if nobody is, the server waits."""
        first = self.round == 0 and self.method.starts_with_all
        sampler = All() if first else self.sampler
        if self.fleet is None or self.fleet.steady:
            return sampler.draw(self.roster, self.seed, self.round)
        # Some of those who can be drawn are waited for: anybody, or the cohort that is given.
        wanted = np.ones(len(self.roster), dtype=bool)
        if isinstance(sampler, Fixed):
            wanted[:] = False
            given = sampler.draw(self.roster, self.seed, self.round)
            wanted[[self.roster.position[client] for client in given]] = True
        if not (self.fleet.available(self.now) & wanted).any():
            soon = float(self.fleet.next_available(self.now)[wanted].min())
            if math.isinf(soon):
                self.stopped = "no client is available any more"
                return {}
            self.now = soon
        there = self.fleet.available(self.now)
        return sampler.draw(self.roster, self.seed, self.round, there)

    def _next_cohort(self, now: Cohort) -> Iterator[Hashable]:
        """Who else takes part in the next round, as far as that is known in advance."""
        if self.round + 1 < self.total and (self.fleet is None or self.fleet.steady):
            for client in self.sampler.draw(self.roster, self.seed, self.round + 1):
                if client not in now:
                    yield client

    def _outing(self, cohort: Cohort, draw: Callable[[str], float]) -> Outing:
        """What becomes of the cohort that is sent to work."""
        if self.fleet is None:
            return without_clock(self.planner, self.method, cohort, self.round)
        # Most methods send the same in every round.
        load = self.load if type(self.method).begin is Method.begin else self._load(draw)
        return on_the_clock(
            self.planner, self.method, cohort, self.round, self.fleet, self.pace, self.now, load
        )

    def _pass_time(self, record: Record, outing: Outing) -> None:
        """Let the clock go on to the end of the round, and write down who worked when."""
        if self.fleet is None:
            return
        record.busy_seconds, record.idle_seconds = outing.busy, outing.idle
        unused = {client: "rejected" for client, _ in record.rejected} | dict(record.lost)
        for span in outing.spans:
            self._write_down(record, span._replace(outcome=unused.get(span.client, "replied")))
        self.now = record.virtual_seconds = outing.over
