"""Runs across sites: rounds and arrivals as in simulation, with the wall clock in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from undrift.core.messages import Assignment, Reply
from undrift.core.method import Conditions
from undrift.core.records import Record, Span
from undrift.core.round_result import RoundResult
from undrift.core.sampling import All, Cohort
from undrift.deploy.post import REFUSED
from undrift.deploy.remote import RemoteEngine
from undrift.devices import ARRIVES
from undrift.loops import Asynchronous, Loop, Synchronous
from undrift.loops.asynchronous import Dispatched
from undrift.loops.cohorts import draw_cohort
from undrift.loops.dispatch import Dispatch, dispatch_without_clock
from undrift.loops.event_queue import ANYBODY, WAKES, Flight
from undrift.loops.paces import RoundPace, WaitForAll
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.utils.errors import UndriftError
from undrift.utils.keys import generator

LOOK = 1.0
"""Every so many seconds it is looked whether a site is there again."""
IN_VAIN = 10
"""After so many rounds that changed nothing, since answers were refused, a run stops."""
PATIENCE = 3600.0
"""So long a server waits for the first site to come back."""


class Clock:
    """Seconds of a run, which go on where a resumed run was stopped."""

    def __init__(self, before: float = 0.0):
        self._before = before
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the run began, without the times at which it did not run."""
        return self._before + time.monotonic() - self._began


class AcrossSites(Loop):
    """What rounds and arrivals across sites have in common."""

    engine: RemoteEngine
    _in_vain = 0
    """rounds in a row that changed nothing, since answers were refused"""

    def _step(self) -> Record:
        self.engine.begin(self.states)
        record = super()._step()  # type: ignore[safe-super]  # of the rounds or arrivals
        used = record.updates or record.steps  # answers may wait in a buffer for others
        self._in_vain = self._in_vain + 1 if record.rejected and not used else 0
        if self._in_vain >= IN_VAIN:
            site, why = record.rejected[-1]
            raise UndriftError(
                f"The last {IN_VAIN} rounds changed nothing, since answers were refused (site "
                f"{site!r}, {why}); undrift resume goes on from round {self.round - 1}."
            )
        return record

    def _measure(self, record: Record) -> None:
        super()._measure(record)
        record.rejected += self.engine.unmeasured()


class Rounds(AcrossSites, Synchronous):
    """Rounds across sites.

    A site that is away or still at work is not asked; one that does not answer is lost.
    """

    def __init__(self, spec: RunSpec, engine: EngineFactory, states: StatesFactory):
        super().__init__(spec, engine, states)
        if self.method.needs_all:  # without one of them, a round changes nothing
            self.pace = WaitForAll(len(self.roster))
        self._clock = Clock()

    def _round_pace(self, spec: RunSpec) -> RoundPace:
        self._by_the_clock = super()._round_pace(spec)
        return WaitForAll(self._by_the_clock.min_replies)

    def conditions(self) -> Conditions:
        kind = self.sampler.kind(self.roster)
        loses = self._by_the_clock.loses
        return self._conditions(participation="responding" if kind == "all" and loses else kind)

    def restore(self, part: Callable[[str], dict[str, Any]], records: Sequence[Record]) -> None:
        super().restore(part, records)
        self._clock = Clock(self.now)

    def _failed_in_training(self, result: RoundResult, dispatch: Dispatch) -> dict[Hashable, str]:
        return {c: why for c, why in result.rejected.items() if not why.startswith(REFUSED)}

    def _cohort(self) -> Cohort:
        first = self.round == 0 and self.method.starts_with_all
        sampler = All() if first else self.sampler
        there = self._there()
        return draw_cohort(
            sampler, self.roster, self.seed, self.round, None if there.all() else there
        )

    def _there(self) -> np.ndarray:
        """Which sites are there; the server waits for one, or for all where it needs them."""
        until = time.monotonic() + PATIENCE
        first = self.round == 0 and self.method.starts_with_all
        everyone = self.method.needs_all or first
        while True:
            sites = self.engine.free()
            there = np.array([id in sites for id in self.roster.ids])
            if there.all() or (there.any() and not everyone):
                self.engine.waiting([])
                return there
            self.engine.waiting([str(id) for id in self.roster.ids if id not in sites])
            if time.monotonic() > until:
                who = "some site" if everyone else "every site"
                raise UndriftError(
                    f"In round {self.round + 1} {who} has been away for {PATIENCE / 60:.0f} "
                    f"minutes; undrift resume goes on when they are back."
                )
            time.sleep(LOOK)

    def _dispatch(self, cohort: Cohort, draw: Callable[[str], float]) -> Dispatch:
        self._left = self._clock.now
        return dispatch_without_clock(self.planner, self.method, cohort, self.round)

    def _advance_clock(self, record: Record, dispatch: Dispatch) -> None:
        now = self._clock.now
        unused = {client: "rejected" for client, _ in record.rejected} | dict(record.lost)
        for client in dispatch.used:
            span = Span(client.id, self._left, self._left, now, now, "replied")
            self._record_span(record, span._replace(outcome=unused.get(client.id, "replied")))
        self.now = record.virtual_seconds = now


class Arrivals(AcrossSites, Asynchronous):
    """Asynchronous training across sites: a site that has answered gets the newest model."""

    def __init__(self, spec: RunSpec, engine: EngineFactory, states: StatesFactory):
        super().__init__(spec, engine, states)
        self.flights: Any = Underway(self)

    def _launch(self, k: int) -> None:
        super()._launch(k)
        task = self._tasks[self.flights.launched - 1]
        assignment = Assignment(task.client, task.work, *self._read[task.version])
        ticket = self.engine.send(self.method, assignment, self.states, diagnose=True)
        self.flights.tickets[ticket] = task.flight

    def _speaks_of_training(self, task: Dispatched, reply: Reply) -> bool:
        return not str(reply.wrong).startswith(REFUSED)

    def landed(self, flight: Flight, reply: Reply | None) -> None:
        """A site's answer is there, or none will come."""
        self._tasks[flight.number] = replace(self._tasks[flight.number], flight=flight)
        if reply is not None:
            self._computed[flight.number] = reply

    def restore(self, part: Callable[[str], dict[str, Any]], records: Sequence[Record]) -> None:
        """Go on: what was under way is asked for again."""
        super().restore(part, records)
        self._tasks.clear()
        self._held.clear()
        self._computed.clear()
        self._read.clear()
        self._readers.clear()
        everyone = self.concurrency == len(self.roster)
        self._starting = [k if everyone else ANYBODY for k in range(self.concurrency)]


class Underway:
    """The sites at work, as `Flights` in simulation: here it is waited until one answers."""

    def __init__(self, run: Arrivals):
        self.launched = 0
        self.tickets: dict[str, Flight] = {}
        self.next_time = float("inf")
        """nothing is known in advance, so that whoever is to start starts at once"""
        self._run = run
        self._clock = Clock()
        self._heard = time.monotonic()
        self._busy: set[int] = set()
        self._asleep: list[int] = []
        """those who are to start when they are there"""

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock.now

    def __len__(self) -> int:
        return len(self.tickets) + len(self._asleep)

    def pick(self) -> int | None:
        """A site that is idle and there, each as likely as the others; None without one."""
        idle = [k for k in range(len(self._run.roster)) if self.is_available(k)]
        bits = generator(self._run.seed, "arrivals", self.launched).random()
        return idle[int(bits * len(idle))] if idle else None

    def is_available(self, k: int) -> bool:
        """Whether a site is there and idle."""
        return k not in self._busy and self._run.roster.ids[k] in self._run.engine.post.sites()

    def launch(self, k: int, units: float) -> Flight:
        """A site is about to be asked."""
        now, number = self.now, self.launched
        self.launched += 1
        self._busy.add(k)
        return Flight(now, number, number, k, now, now, now, ARRIVES)

    def wake(self, k: int = ANYBODY) -> None:
        """See again in a while whether a site is there."""
        self._asleep.append(k)

    def free(self, k: int) -> None:
        """A site is idle again."""
        self._busy.discard(k)

    def land(self) -> Flight:
        """Wait for the next answer, or for a moment at which a site may be there again."""
        engine, method = self._run.engine, self._run.method
        while True:
            arrival = engine.next(LOOK)
            if arrival is not None:
                self._heard = time.monotonic()
                engine.waiting([])
                flight = self.tickets.pop(arrival.ticket, None)
                client, reply, why = engine.take(method, arrival)
                if flight is not None and client is not None:
                    now = self.now
                    outcome = ARRIVES if reply is not None else why
                    ended = flight._replace(end=now, sending=now, outcome=outcome)
                    self._run.landed(ended, reply)
                    return ended
            if not self.tickets:
                there = engine.post.sites()
                engine.waiting([str(id) for id in self._run.roster.ids if id not in there])
                if time.monotonic() - self._heard > PATIENCE:
                    raise UndriftError(
                        f"No site has been there for {PATIENCE / 60:.0f} minutes; undrift resume "
                        f"goes on when they are back."
                    )
            if arrival is None and self._asleep:
                k = self._asleep.pop(0)
                return Flight(self.now, -1, -1, k, 0.0, 0.0, 0.0, WAKES)

    def saved(self) -> dict[str, Any]:
        """What a run that goes on later needs."""
        return {"launched": self.launched, "now": self.now}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `saved` gave."""
        self.launched = saved["launched"]
        self._clock = Clock(saved["now"])
