"""Asynchronous training: the server folds replies as they arrive, in the order of its event queue.

In a simulation the queue runs on a virtual clock; `undrift.deploy.loops` derives the loop whose
clients are real sites.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
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
from undrift.core.uploads.norm_bounds import OVER_BOUND, Norms
from undrift.devices import ARRIVES, Devices, Profiles, share_done
from undrift.engines.base import require_simulation
from undrift.engines.serial import SerialEngine
from undrift.loops.adversaries import attacked
from undrift.loops.base import Loop
from undrift.loops.dispatch import compute_units, work_done
from undrift.loops.event_queue import ANYBODY, WAKES, EventQueue, Trip, VirtualEventQueue
from undrift.loops.paces import AsTheyArrive
from undrift.loops.saved_replies import pack_reply, unpack_reply, with_prefix
from undrift.loops.spec import EngineFactory, RunSpec, StatesFactory
from undrift.utils.errors import Diverged, UndriftError, require


@dataclass
class Dispatched:
    """A client under way: its trip, its work, and the version of the model it works with."""

    trip: Trip
    client: Client
    work: Work
    version: int
    """how many updates the model had seen when the client read it"""


class Asynchronous(Loop):
    """A run in which every client works at its own speed.

    A record covers a fixed number of ended trips, `pace.replies`. The loop computes a client's work
    only when its reply is needed, with the model the client read; clients whose reply will never
    arrive are not computed at all.

    A deployment overrides three hooks: `_make_queue`, `_launch` and `_reply`.
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
            self.downloads is None,
            "Downloads can be compressed only in synchronous rounds: in asynchronous training "
            "every client reads another version, so leave out down.",
        )
        require(
            spec.attack is None or not spec.attack.together,
            f"{type(spec.attack).__name__} needs the uploads of all attackers of a round, which "
            f"asynchronous training does not have: choose SignFlip, Gaussian or LabelFlip.",
        )
        require(
            self.planner.limit is None,
            "limit is for synchronous rounds: in asynchronous training a client works at its own "
            "speed, so set its local work or its device instead.",
        )
        self.version = 0
        """the number of updates of the server's model so far"""
        # Invariant, for every version v: `_readers[v]` counts the clients in `_dispatched` that
        # read version v, and `_sent[v]` exists exactly while that count is positive. Both iterate
        # from the oldest version to the newest, since only the newest one can be added.
        self._dispatched: dict[int, Dispatched] = {}
        """clients under way or with a reply that waits, by the number of their trip"""
        self._sent: dict[int, tuple[Download, dict[str, Tensor]]] = {}
        """what was sent to clients, by version: the download and the model's buffers"""
        self._readers: Counter[int] = Counter()
        self._early_replies: dict[int, Reply] = {}
        """replies computed before they arrive, by the number of the trip"""
        self._arrived: list[int] = []
        """trips whose reply has arrived but must wait for an older one, in order of arrival"""
        self._buffer: list[Reply] = []
        """accepted replies that wait for the next fold"""
        self._to_start: list[int] = []
        """clients, or `ANYBODY`, to launch once every event of the present moment is handled"""
        self._trips_ended = 0
        self._rejected_in_a_row = 0
        self._norms: dict[Hashable, Norms] = {}
        self._norm_steps: dict[Hashable, int] = {}
        """the norms of the present round's uploads, and the steps of their clients"""
        self.queue = self._make_queue()
        self.reset()

    def _clients_per_round(self) -> float:
        return self.per_round

    def _devices(self) -> Profiles:
        return self.spec.devices or Devices()

    def _make_queue(self) -> EventQueue:
        """The event queue of this run; called once, at the end of the constructor."""
        assert self.fleet is not None
        down, up = sum(self.fixed_cost.down.values()), sum(self.fixed_cost.up.values())
        return VirtualEventQueue(self.fleet, self.fleet.reading(down), self.fleet.sending(up))

    def reset(self) -> None:
        """Drop all work under way: every client starts again, with the present model.

        The server's model, its version, the accepted replies in the buffer and the clock stay.
        """
        self.queue.reset()
        self._dispatched.clear()
        self._sent.clear()
        self._readers.clear()
        self._early_replies.clear()
        self._arrived.clear()
        self._to_start = [self._successor_of(k) for k in range(self.concurrency)]

    def _successor_of(self, k: int) -> int:
        """Who starts in the place of client k: itself if everyone is at work, else anybody."""
        return k if self.concurrency == len(self.roster) else ANYBODY

    def _most_replies(self) -> int:
        return self.buffer

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
        """How many ended trips make a round of the records."""
        return self.concurrency if self.pace.replies is None else self.pace.replies

    def conditions(self) -> Conditions:
        require(
            isinstance(self.sampler, All | Uniform),
            f"In asynchronous training the clients at work are drawn uniformly: give their number "
            f"as the cohort, not {self.sampler!r}.",
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
        while self._trips_ended < (self.round + 1) * self.per_round:
            if self._deliver(record):
                continue
            # Replies that arrive at the same moment are all taken in before anyone starts, so
            # that whoever starts reads the model that has all of them.
            if self._to_start and self.queue.next_time > self.queue.now:
                self._start()
            if not len(self.queue):
                self.stopped = "no client is available any more"
                break
            trip = self.queue.land()
            if trip.outcome == WAKES:
                self._to_start.append(trip.k)
                continue
            dispatched = self._dispatched[trip.number]
            dispatched.trip = trip  # a deployment learns the times of a trip when it ends
            if trip.outcome == ARRIVES:
                self._arrived.append(trip.number)
            else:
                self._lose(dispatched, trip.outcome, record)
        if self.norms is not None:
            self.norms.add(self._norms, self._norm_steps, self.local.rate(self.round))
            self._norms.clear()
            self._norm_steps.clear()
        self.round += 1
        self.now = record.virtual_seconds = self.queue.now
        record.seconds = time.perf_counter() - began
        return record

    def _start(self) -> None:
        """Launch the clients of `_to_start`, or have them woken when they are available."""
        to_start, self._to_start = self._to_start, []
        for k in to_start:
            who: int | None = k
            if k == ANYBODY:
                who = self.queue.pick()
            elif not self.queue.is_available(k):
                who = None
            if who is None:
                self.queue.wake(k)
            else:
                self._launch(who)

    def _launch(self, k: int) -> Dispatched:
        """Send client k the present model and its work."""
        assert self.fleet is not None
        round = self._trips_ended // self.per_round
        client, work = self._work(k, self.queue.launched, round)
        solver = self.local.of(client.id)
        trip = self.queue.launch(
            k, compute_units(self.fleet, client, solver, work.steps, self.fixed_cost)
        )
        dispatched = Dispatched(trip, client, work, self.version)
        self._dispatched[trip.number] = dispatched
        self._readers[self.version] += 1
        if self.version not in self._sent:
            self._sent[self.version] = (self.method.download(self.server), self.buffers)
        return dispatched

    def _work(self, k: int, number: int, round: int) -> tuple[Client, Work]:
        """The work of client k on a trip: a function of the trip's number and the round only.

        So a run store needs to keep neither clients nor work: `restore` calls this again.
        """
        assert self.fleet is not None
        id = self.roster.ids[k]
        ((client, work),) = self.planner.work(self.method, {id: 1}, round, turn=number).items()
        if self.fleet.damage[k] and self.fleet.damaged(number, np.array([k]))[0]:
            work = replace(work, damaged=True)
        return client, work

    def _assignment(self, dispatched: Dispatched) -> Assignment:
        return Assignment(dispatched.client, dispatched.work, *self._sent[dispatched.version])

    def _deliver(self, record: Record) -> bool:
        """Take in the first reply that has arrived and need not wait; False if there is none."""
        number = next((each for each in self._arrived if self._may_come(each)), None)
        if number is None:
            return False
        self._arrived.remove(number)
        dispatched = self._dispatched[number]
        staleness = self.version - dispatched.version
        most = self.pace.max_delay
        if self.pace.stale == "discard" and most is not None and staleness > most:
            self._lose(dispatched, "stale", record)
        else:
            self._take(dispatched, staleness, record)
        return True

    def _may_come(self, number: int) -> bool:
        """Whether taking in a reply now lets every other reply still be at most `max_delay` old.

        A client that read version v may see τ − (version − v) more updates before its reply is too
        old, where τ is `max_delay`. The buffer has room for `room` replies before the next update,
        and M replies make each later one. So the reply must be among the next

            capacity(v) = room + (τ − (version − v))·M

        accepted ones. All clients can be in time if and only if, for every v, at most capacity(v)
        clients read version v or an older one. This holds whenever a client starts, since `delay`
        of the pace refuses a τ that is too small for the number of clients at work.

        Taking in a reply lowers every capacity by one. Where a capacity is used up, the reply must
        therefore come from one of the clients counted against it; any other reply waits.
        """
        most = self.pace.max_delay
        if most is None or self.pace.stale == "discard":
            return True
        room, clients = self.buffer - len(self._buffer), 0
        for version, readers in self._readers.items():  # from the oldest version to the newest
            clients += readers
            if clients >= room + (most - (self.version - version)) * self.buffer:
                # Older than this version is also older than every newer one that is used up.
                return self._dispatched[number].version <= version
        return True

    def _take(self, dispatched: Dispatched, staleness: int, record: Record) -> None:
        """Accept or reject a reply, fold if the buffer is full, and end the client's trip."""
        sent = attacked(
            self.spec.attack,
            self.job,
            self.method,
            self._reply(dispatched),
            dispatched.work.turn,
            self.buffer,
        )
        reply = self._bounded(sent, dispatched)
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
            if self.job.tracked.last:
                # Together with the client's state, which already has its new last model, and not
                # with the fold: the client may start again before the buffer is full.
                change = getattr(reply.upload, CHANGE)
                self.last_mean = self.last_mean + float(reply.client.q) * change
            self._buffer.append(replace(reply, client=replace(reply.client, staleness=staleness)))
            if len(self._buffer) == self.buffer:
                self._fold(record)
        else:
            record.wasted_steps += reply.steps
            record.wasted_gradients += reply.evaluations
            record.rejected.append((id, reply.wrong))
            self._rejected_in_a_row += self._indicates_divergence(dispatched, reply)
            if self._rejected_in_a_row >= max(self.concurrency, self.buffer):
                raise Diverged(
                    f"In round {self.round + 1} the last {self._rejected_in_a_row} replies were "
                    f"unusable (client {id!r}: {reply.wrong}); a smaller learning rate may help."
                )
        self._end(dispatched, "replied" if reply.wrong is None else "rejected", record)

    def _bounded(self, reply: Reply, dispatched: Dispatched) -> Reply:
        """The reply, marked as wrong if a norm of its upload is over its bound."""
        download, buffers = self._sent[dispatched.version]
        x = download.x if "x" in download else self.server.x
        limits = self._norm_limits(x, buffers)
        if self.norms is None or limits is None or reply.wrong is not None:
            return reply
        norms = limits.norms(reply.upload, reply.buffers)
        # The latest reply counts of a client that replies several times in a round.
        self._norms[reply.client.id] = norms
        self._norm_steps[reply.client.id] = reply.steps
        limits = self.norms.tightened(limits, self._norms, self._norm_steps) or limits
        return replace(reply, wrong=limits.fault(norms, reply.steps))

    def _indicates_divergence(self, dispatched: Dispatched, reply: Reply) -> bool:
        """Whether an unusable reply is a sign that training diverges, and not of a bad device."""
        return not dispatched.work.damaged and not str(reply.wrong).startswith(OVER_BOUND)

    def _reply(self, dispatched: Dispatched) -> Reply:
        """The reply of a client whose trip has arrived; called once per trip.

        A simulation computes it here, together with those that arrive next if the engine computes
        several at once. A deployment overrides this: it returns what the site sent.
        """
        number = dispatched.trip.number
        if number not in self._early_replies:
            engine = require_simulation(self.engine, "Computing a reply in advance")
            several = [dispatched, *self._next_arrivals(engine.preferred_assignments - 1, number)]
            assignments = [self._assignment(each) for each in several]
            replies = engine.replies(self.method, assignments, self.states)
            for each, reply in zip(several, replies, strict=True):
                self._early_replies[each.trip.number] = reply
        return self._early_replies.pop(number)

    def _next_arrivals(self, most: int, besides: int) -> list[Dispatched]:
        """At most `most` clients whose replies arrive next and are not computed, except one."""
        # Computing ahead is safe: the state of a client under way cannot change before its reply.
        if not most:
            return []
        others = (
            each
            for number, each in self._dispatched.items()
            if each.trip.outcome == ARRIVES
            and number != besides
            and number not in self._early_replies
        )
        return nsmallest(most, others, key=lambda each: each.trip)

    def _fold(self, record: Record) -> None:
        """Update the server with the replies in the buffer."""
        honest = replace(self.job, attackers=frozenset())  # their replies were forged already
        result = honest.result(self.method, self.round, self.diagnoses)
        for reply in self._buffer:
            result.take(reply)
        before, last_mean = self.server, self.last_mean
        share = min(1.0, len(self._buffer) / self.concurrency)
        folded = self.method.fold(before, result.replies)
        fault = self._state_fault(folded)
        if fault is not None:
            self._drop_buffer(fault, record)
            return
        self._apply_update(folded, result, share)
        self.last_mean = last_mean  # `_take` has moved it already; `_apply_update` did so again
        self._buffer = []
        self.version += 1
        record.updates += 1
        if self.diagnoses and self._evaluated(self.round + 1):
            record.diagnostics = diagnose(self.method, before, self.server, result.replies)

    def _drop_buffer(self, fault: str, record: Record) -> None:
        """Handle an update that cannot be used."""
        raise self._diverged(fault)

    def _lose(self, dispatched: Dispatched, reason: str, record: Record) -> None:
        """Count the work of a client whose reply will not be used, and end its trip."""
        trip, id = dispatched.trip, dispatched.client.id
        record.lost.append((id, reason))
        times = (np.array([t]) for t in (trip.computing, trip.sending, trip.end))
        done = share_done(*times)[0]
        steps, gradients = work_done(
            self.job, dispatched.client, dispatched.work, self.fixed_cost, done
        )
        record.wasted_steps += steps
        record.wasted_gradients += gradients
        if trip.end >= trip.computing:
            record.bytes_down = dict(Counter(record.bytes_down) + Counter(self.fixed_cost.down))
        if trip.outcome == ARRIVES:
            record.bytes_up = dict(Counter(record.bytes_up) + Counter(self.fixed_cost.up))
        self._end(dispatched, reason, record)

    def _end(self, dispatched: Dispatched, outcome: str, record: Record) -> None:
        """Record that a trip is over, forget it, and have another client start."""
        trip = dispatched.trip
        record.cohort.append(dispatched.client.id)
        record.busy_seconds += trip.end - trip.start
        record.idle_seconds += self.queue.now - trip.end
        moments = trip.start, trip.computing, trip.sending, trip.end
        self._record_span(record, Span(dispatched.client.id, *moments, outcome).until(trip.end))
        del self._dispatched[trip.number]
        self._early_replies.pop(trip.number, None)  # still there if the reply was too old to use
        self._readers[dispatched.version] -= 1
        if not self._readers[dispatched.version]:
            del self._sent[dispatched.version], self._readers[dispatched.version]
        self.queue.free(trip.k)
        self._to_start.append(self._successor_of(trip.k))
        self._trips_ended += 1

    # The names in `saved` and `lasting` are the format of run folders. "flights" and "tasks" are
    # trips and dispatched clients: other words would break resuming older runs.

    def saved(self) -> dict[str, dict[str, Any]]:
        under_way: dict[str, Any] = {
            "flights": self.queue.saved(),
            "tasks": [
                [list(each.trip), each.work.round, each.version]
                for each in self._dispatched.values()
            ],
            "held": self._arrived,
            "starting": self._to_start,
            "ended": self._trips_ended,
            "version": self.version,
            "versions": list(self._sent),
            "rejected_in_a_row": self._rejected_in_a_row,
            "computed": list(self._early_replies),
            "buffer": len(self._buffer),
        }
        for number, reply in self._early_replies.items():
            under_way |= pack_reply(reply, f"computed {number} ")
        for place, reply in enumerate(self._buffer):
            under_way |= pack_reply(reply, f"buffer {place} ")
        return super().saved() | {"under way": under_way}

    def write_once_parts(self) -> dict[str, dict[str, Any]]:
        return {
            f"read {version}": {f"download {n}": value for n, value in download.items()}
            | {f"buffers {n}": value for n, value in buffers.items()}
            for version, (download, buffers) in self._sent.items()
        }

    def restore(self, part: Callable[[str], dict[str, Any]], records: Sequence[Record]) -> None:
        super().restore(part, records)
        self.reset()
        saved = part("under way")
        self.queue.restore(saved["flights"])
        self._arrived, self._to_start = saved["held"], saved["starting"]
        self._trips_ended = saved["ended"]
        self.version = saved["version"]
        self._rejected_in_a_row = saved["rejected_in_a_row"]
        for values, round, version in saved["tasks"]:
            trip = Trip(*values)
            client, work = self._work(trip.k, trip.number, round)
            self._dispatched[trip.number] = Dispatched(trip, client, work, version)
            self._readers[version] += 1
        for version in saved["versions"]:
            sent = part(f"read {version}")
            download = Download(**with_prefix("download ", sent))
            self._sent[version] = download, with_prefix("buffers ", sent)
        for number in saved["computed"]:
            self._early_replies[number] = unpack_reply(
                with_prefix(f"computed {number} ", saved), self._dispatched[number].client
            )
        for place in range(saved["buffer"]):
            values = with_prefix(f"buffer {place} ", saved)
            client = replace(self.roster.client(values["client"]), staleness=values["staleness"])
            self._buffer.append(unpack_reply(values, client))
