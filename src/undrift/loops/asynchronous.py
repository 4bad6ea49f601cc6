"""Asynchronous training: replies are folded as they arrive, in the order of virtual time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import Any

import numpy as np
from torch import Tensor

from undrift.core.clients import ClientStates
from undrift.core.diagnostics import diagnose
from undrift.core.messages import CHANGE, Assignment, Reply
from undrift.core.method import Conditions
from undrift.core.problem import Client, Download, Work
from undrift.core.records import Record, Span
from undrift.core.sampling import All, Uniform
from undrift.devices import ARRIVES, Devices, Profiles, share_done
from undrift.engines.base import require_simulation
from undrift.engines.serial import SerialEngine
from undrift.loops.base import Loop
from undrift.loops.dispatch import compute_units, work_done
from undrift.loops.event_queue import ANYBODY, WAKES, Flight, Flights
from undrift.loops.paces import AsTheyArrive
from undrift.loops.pending import packed, under, unpacked
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.utils.errors import Diverged, UndriftError, require


@dataclass(frozen=True)
class Dispatched:
    """What a client under way does, and with which model."""

    flight: Flight
    client: Client
    work: Work
    version: int
    """how often the model it read had been updated"""


class Asynchronous(Loop):
    """A run in which every client works at its own speed.

    A round of the records is a fixed number of clients' work, `pace.replies`. Training is computed
    when a reply is needed, with the model that was read; clients whose work will come to nothing
    do not train at all.
    """

    def __init__(
        self,
        spec: RunSpec,
        engine: EngineFactory = SerialEngine,
        states: StatesFactory = ClientStates,
    ):
        pace = AsTheyArrive() if spec.pace is None else spec.pace
        if not isinstance(pace, AsTheyArrive):
            raise UndriftError(f"An asynchronous run needs the pace AsTheyArrive, not {pace!r}.")
        self.pace = pace
        super().__init__(spec, engine, states)
        require(
            self.planner.limit is None,
            "limit is for rounds: in asynchronous training a client works at its own speed, so "
            "give its local work or its device instead.",
        )
        assert self.fleet is not None
        self.version = 0
        """how often the server's model was updated"""
        down, up = sum(self.fixed_cost.down.values()), sum(self.fixed_cost.up.values())
        self.flights = Flights(self.fleet, self.fleet.reading(down), self.fleet.sending(up))
        self._tasks: dict[int, Dispatched] = {}
        """the work under way and held back, by the number of the launch"""
        self._read: dict[int, tuple[Download, dict[str, Tensor]]] = {}
        """what was sent, by version, as long as someone works with it"""
        self._readers: Counter[int] = Counter()
        self._computed: dict[int, Reply] = {}
        """replies that are computed, but not there yet"""
        self._held: list[int] = []
        """flights whose reply has arrived and waits for an older one"""
        self._buffer: list[Reply] = []
        """replies that are accepted, but not folded yet"""
        everyone = self.concurrency == len(self.roster)
        self._starting = [k if everyone else ANYBODY for k in range(self.concurrency)]
        """who starts, once all that arrives at the same moment is taken in"""
        self._ended = 0
        """how often a client's work was over"""
        self._rejected_in_a_row = 0

    def _devices(self) -> Profiles:
        return self.spec.devices or Devices()

    @property
    def concurrency(self) -> int:
        """How many clients are at work at once."""
        cohort = self.sampler.K if isinstance(self.sampler, Uniform) else None
        return self.pace.at_once(cohort, len(self.roster))

    @property
    def buffer(self) -> int:
        """M, how many replies make an update."""
        return self.method.buffer if self.pace.buffer is None else self.pace.buffer

    @property
    def per_round(self) -> int:
        """How many clients' work makes a round of the records."""
        return self.concurrency if self.pace.replies is None else self.pace.replies

    def conditions(self) -> Conditions:
        require(
            isinstance(self.sampler, All | Uniform),
            f"In asynchronous training a number of clients is at work at once, drawn uniformly: "
            f"give that number as the cohort, not {self.sampler!r}.",
        )
        return self._conditions(
            participation="uniform",
            asynchronous=True,
            delay=self.pace.delay(self.concurrency, self.buffer),
            bounded=self.pace.max_delay is not None,
        )

    def _step(self) -> Record:
        began = time.perf_counter()
        record = Record(round=self.round + 1, updates=0)
        while self._ended < (self.round + 1) * self.per_round:
            if self._deliver(record):
                continue
            if self._starting and self.flights.next_time > self.flights.now:
                self._start()
            if not len(self.flights):
                self.stopped = "no client is available any more"
                break
            flight = self.flights.land()
            if flight.outcome == WAKES:
                self._starting.append(flight.k)
            elif flight.outcome == ARRIVES:
                self._held.append(flight.number)
            else:
                self._lose(self._tasks[flight.number], flight.outcome, record)
        self.round += 1
        self.now = record.virtual_seconds = self.flights.now
        record.seconds = time.perf_counter() - began
        return record

    def _start(self) -> None:
        """Launch those that are to start, or see to it that they do when they are there."""
        starting, self._starting = self._starting, []
        for k in starting:
            who: int | None = k
            if k == ANYBODY:
                who = self.flights.pick()
            elif not self.flights.is_available(k):
                who = None
            if who is None:
                self.flights.wake(k)
            else:
                self._launch(who)

    def _launch(self, k: int) -> None:
        """Send client k the model as it is now."""
        assert self.fleet is not None
        round = self._ended // self.per_round
        client, work = self._work(k, self.flights.launched, round)
        solver = self.local.of(client.id)
        flight = self.flights.launch(
            k, compute_units(self.fleet, client, solver, work.steps, self.fixed_cost)
        )
        self._tasks[flight.number] = Dispatched(flight, client, work, self.version)
        self._readers[self.version] += 1
        if self.version not in self._read:
            self._read[self.version] = (self.method.download(self.server), self.buffers)

    def _work(self, k: int, number: int, round: int) -> tuple[Client, Work]:
        """A client's work on a flight: a function of the flight's number and of the round."""
        assert self.fleet is not None
        id = self.roster.ids[k]
        ((client, work),) = self.planner.work(self.method, {id: 1}, round, turn=number).items()
        if self.fleet.damage[k] and self.fleet.damaged(number, np.array([k]))[0]:
            work = replace(work, damaged=True)
        return client, work

    def _deliver(self, record: Record) -> bool:
        """Take in a reply that has arrived and for which no older one must come first.

        Gives whether there was one.
        """
        number = next((each for each in self._held if self._may_come(each)), None)
        if number is None:
            return False
        self._held.remove(number)
        task = self._tasks[number]
        staleness = self.version - task.version
        most = self.pace.max_delay
        if self.pace.stale == "discard" and most is not None and staleness > most:
            self._lose(task, "stale", record)
        else:
            self._take(task, staleness, record)
        return True

    def _may_come(self, number: int) -> bool:
        """Whether a reply can be taken in now without making another one too old.

        A reply that may be d more updates old must be among the next (d + 1)·M. Those under way
        can all be in time if no d has more of them; taking one in must leave it so: where they are
        as many as there may be, it must be one of them.
        """
        most = self.pace.max_delay
        if most is None or self.pace.stale == "discard":
            return True
        room, under_way = self.buffer - len(self._buffer), 0
        for version, readers in self._readers.items():  # the oldest first
            under_way += readers
            if under_way >= room + (most - (self.version - version)) * self.buffer:
                return self._tasks[number].version <= version
        return True

    def _take(self, task: Dispatched, staleness: int, record: Record) -> None:
        """Take in a reply: it is accepted or refused, and its client goes on."""
        reply = self._reply(task)
        record.bytes_down = dict(Counter(record.bytes_down) + Counter(reply.down))
        record.bytes_up = dict(Counter(record.bytes_up) + Counter(reply.up))
        id = reply.client.id
        if reply.wrong is None:
            record.steps += reply.steps
            record.gradients += reply.evaluations
            self._rejected_in_a_row = 0
            self.states.put(id, reply.keep)
            record.partial += not reply.complete
            record.staleness[staleness] = record.staleness.get(staleness, 0) + 1
            if self.job.tracked.last:  # with the state, which is new from now on
                change = getattr(reply.upload, CHANGE)
                self.last_mean = self.last_mean + float(reply.client.q) * change
            self._buffer.append(replace(reply, client=replace(reply.client, staleness=staleness)))
            if len(self._buffer) == self.buffer:
                self._fold(record)
        else:
            record.wasted_steps += reply.steps
            record.wasted_gradients += reply.evaluations
            record.rejected.append((id, reply.wrong))
            self._rejected_in_a_row += self._speaks_of_training(task, reply)
            if self._rejected_in_a_row >= max(self.concurrency, self.buffer):
                raise Diverged(
                    f"In round {self.round + 1} the last {self._rejected_in_a_row} replies were "
                    f"unusable (client {id!r}: {reply.wrong}); a smaller learning rate may help."
                )
        self._end(task, "replied" if reply.wrong is None else "rejected", record)

    def _speaks_of_training(self, task: Dispatched, reply: Reply) -> bool:
        """Whether a reply that cannot be used says that training goes wrong, and not a device."""
        return not task.work.damaged

    def _reply(self, task: Dispatched) -> Reply:
        """What a client sends back; the engine may compute others that will be needed soon, too."""
        number = task.flight.number
        if number not in self._computed:
            engine = require_simulation(self.engine, "Computing a reply in advance")
            tasks = [task, *self._soon(engine.preferred_assignments - 1, number)]
            assignments = [
                Assignment(each.client, each.work, *self._read[each.version]) for each in tasks
            ]
            replies = engine.replies(self.method, assignments, self.states)
            for each, reply in zip(tasks, replies, strict=True):
                self._computed[each.flight.number] = reply
        return self._computed.pop(number)

    def _soon(self, most: int, besides: int) -> list[Dispatched]:
        """The next tasks to arrive that are not computed yet, at most so many, besides one."""
        if not most:
            return []
        others = (
            task
            for number, task in self._tasks.items()
            if task.flight.outcome == ARRIVES and number != besides and number not in self._computed
        )
        return nsmallest(most, others, key=lambda task: task.flight)

    def _fold(self, record: Record) -> None:
        """Update the server with the replies in the buffer."""
        result = self.job.result(self.method, self.round, diagnose=True)
        for reply in self._buffer:
            result.take(reply)
        before, last_mean = self.server, self.last_mean  # which has moved with the states
        share = min(1.0, len(self._buffer) / self.concurrency)
        self._apply_update(self.method.fold(before, result.replies), result, share)
        self.last_mean = last_mean
        self._buffer = []
        self.version += 1
        record.updates += 1
        if self._evaluated(self.round + 1):
            record.diagnostics = diagnose(self.method, before, self.server, result.replies)

    def _lose(self, task: Dispatched, reason: str, record: Record) -> None:
        """A client's work comes to nothing."""
        flight, id = task.flight, task.client.id
        record.lost.append((id, reason))
        times = (np.array([t]) for t in (flight.computing, flight.sending, flight.end))
        steps, gradients = work_done(
            self.job, task.client, task.work, self.fixed_cost, share_done(*times)[0]
        )
        record.wasted_steps += steps
        record.wasted_gradients += gradients
        if flight.end >= flight.computing:
            record.bytes_down = dict(Counter(record.bytes_down) + Counter(self.fixed_cost.down))
        if flight.outcome == ARRIVES:
            record.bytes_up = dict(Counter(record.bytes_up) + Counter(self.fixed_cost.up))
        self._end(task, reason, record)

    def _end(self, task: Dispatched, outcome: str, record: Record) -> None:
        """A client's work is over, and another's is to begin."""
        flight = task.flight
        record.cohort.append(task.client.id)
        record.busy_seconds += flight.end - flight.start
        record.idle_seconds += self.flights.now - flight.end
        moments = flight.start, flight.computing, flight.sending, flight.end
        self._record_span(record, Span(task.client.id, *moments, outcome).until(flight.end))
        del self._tasks[flight.number]
        self._computed.pop(flight.number, None)  # computed in vain, if it was too old
        self._readers[task.version] -= 1
        if not self._readers[task.version]:
            del self._read[task.version], self._readers[task.version]
        self.flights.free(flight.k)
        self._starting.append(flight.k if self.concurrency == len(self.roster) else ANYBODY)
        self._ended += 1

    def saved(self) -> dict[str, dict[str, Any]]:
        tasks = [
            [list(task.flight), task.work.round, task.version] for task in self._tasks.values()
        ]
        under_way: dict[str, Any] = {
            "flights": self.flights.saved(),
            "tasks": tasks,
            "held": self._held,
            "starting": self._starting,
            "ended": self._ended,
            "version": self.version,
            "versions": list(self._read),
            "rejected_in_a_row": self._rejected_in_a_row,
            "computed": list(self._computed),
            "buffer": len(self._buffer),
        }
        for number, reply in self._computed.items():
            under_way |= packed(reply, f"computed {number} ")
        for place, reply in enumerate(self._buffer):
            under_way |= packed(reply, f"buffer {place} ")
        return super().saved() | {"under way": under_way}

    def write_once_parts(self) -> dict[str, dict[str, Any]]:
        return {
            f"read {version}": {f"download {n}": value for n, value in download.items()}
            | {f"buffers {n}": value for n, value in buffers.items()}
            for version, (download, buffers) in self._read.items()
        }

    def restore(self, part: Callable[[str], dict[str, Any]], records: Sequence[Record]) -> None:
        super().restore(part, records)
        saved = part("under way")
        self.flights.restore(saved["flights"])
        self._held, self._starting = saved["held"], saved["starting"]
        self._ended = saved["ended"]
        self.version = saved["version"]
        self._rejected_in_a_row = saved["rejected_in_a_row"]
        for values, round, version in saved["tasks"]:
            flight = Flight(*values)
            client, work = self._work(flight.k, flight.number, round)
            self._tasks[flight.number] = Dispatched(flight, client, work, version)
            self._readers[version] += 1
        for version in saved["versions"]:
            read = part(f"read {version}")
            self._read[version] = Download(**under("download ", read)), under("buffers ", read)
        for number in saved["computed"]:
            self._computed[number] = unpacked(
                under(f"computed {number} ", saved), self._tasks[number].client
            )
        for place in range(saved["buffer"]):
            values = under(f"buffer {place} ", saved)
            client = replace(self.roster.client(values["client"]), staleness=values["staleness"])
            self._buffer.append(unpacked(values, client))
