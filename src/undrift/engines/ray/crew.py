"""The workers: started, given tasks, and started again where they die."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import ray
import torch

import undrift
from undrift.engines.ray.cluster import session
from undrift.engines.ray.parcels import Parcel, pack, unpack
from undrift.engines.ray.worker import Refusal, Shared, Worker
from undrift.utils.errors import UndriftError, first_line

DEPTH = 2
"""A worker is given so many tasks: one to do, and one to go on with."""
DEATHS = 6
"""A worker that dies so often without getting anything done is left out."""
BLAMED = 5
"""A task at which so many workers died is given up."""
STRAGGLING = 3.0
"""A task that takes so many times as long as others of its size is done by somebody else too."""
PATIENCE = 2.0
"""… but not before so many seconds."""
START = 120.0
"""Seconds in which a worker must have started, if there is no other."""
TICK = 0.5
"""Every so many seconds it is looked whether somebody straggles."""


@dataclass(frozen=True)
class Task:
    """Something for any worker to do."""

    name: str
    """which of the tasks of `Worker`"""
    shared: Mapping[str, Shared]
    given: Callable[[], tuple[Any, ...]]
    """what it is given besides, put together when it is sent"""
    cost: float = 1.0
    """how long it takes, in any unit"""
    what: str = ""
    """its clients, for an error"""


@dataclass
class _Flight:
    """A task that a worker was given."""

    ref: Any
    turn: int
    """the call of `results` that it belongs to"""
    number: int
    began: float = 0.0


@dataclass
class _Member:
    """A worker's place, with the process that has it now."""

    number: int
    actor: Any
    starting: Any
    """its first answer, until that is there"""
    flights: list[_Flight] = field(default_factory=list)
    """the first one is being done"""
    deaths: int = 0
    """since it last got something done"""
    about: dict[str, str] = field(default_factory=dict)
    """with which versions it computes, and where"""


class Crew:
    """So many workers, on whatever machines Ray has.

    Parameters
    ----------
    workers
        how many
    threads
        how many threads, and cores, each has
    gpus
        which share of a GPU each has, or how many
    """

    def __init__(self, workers: int, threads: int = 1, gpus: float = 0.0):
        self.workers = workers
        self.threads = threads
        self.gpus = gpus
        self.device = "cuda" if gpus else "cpu"
        self._session = session()
        self._actor = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(Worker)
        self._turn = 0
        self._members = [self._hired(number) for number in range(workers)]
        self._lone_since: float | None = None
        """since when nobody has been there who could work"""
        self._await_one()

    def results(
        self, tasks: Sequence[Task], device: torch.device | str = "cpu", shared: bool = False
    ) -> Iterator[Any]:
        """The results of tasks, in their order, whoever does them.

        Tasks are begun in that order too: the longest should come first. The tensors of results
        that are `shared` must not be written to, nor kept.
        """
        self._turn += 1
        going = _Going(tasks, self._turn)
        for number in range(len(tasks)):
            while number not in going.found:
                self._hand_out(going)
                self._take_in(going)
            found = unpack(going.found.pop(number), device, shared)
            if isinstance(found, Refusal):
                raise found.kind(found.sentence)
            yield found

    def serves(self, workers: int, threads: int, gpus: float) -> bool:
        """Whether it is what somebody asks for, and still there."""
        asked = (self.workers, self.threads, self.gpus) == (workers, threads, gpus)
        return asked and bool(self._members) and self._connected()

    @property
    def processes(self) -> list[int]:
        """The processes of the workers that are at work, on their machines."""
        return [int(m.about["process"]) for m in self._members if m.starting is None]

    def stop(self) -> None:
        """End all workers."""
        for member in self._members if self._connected() else ():
            ray.kill(member.actor)
        self._members = []

    def _connected(self) -> bool:
        return ray.is_initialized() and session() == self._session

    # Handing out

    def _hand_out(self, going: _Going) -> None:
        """Give everybody enough to do, those first who have nothing."""
        there = [member for member in self._members if member.starting is None]
        for depth in range(DEPTH):
            for member in there:
                if going.waiting and len(member.flights) == depth:
                    self._send(member, going, going.waiting.popleft())
        for member in there:
            if not member.flights and not going.waiting:
                number = self._to_steal(going)
                if number is None:
                    break
                self._send(member, going, number)

    def _send(self, member: _Member, going: _Going, number: int) -> None:
        task = going.tasks[number]
        ref = member.actor.do.remote(task.name, task.shared, pack(task.given()))
        member.flights.append(_Flight(ref, going.turn, number, time.monotonic()))

    def _to_steal(self, going: _Going) -> int | None:
        """A task for somebody idle: one that waits behind another, or one that takes too long."""
        alone = self._done_by_one(going)
        for member in self._members:
            for flight in member.flights[1:]:
                if flight.turn == going.turn and flight.number in alone:
                    member.flights.remove(flight)
                    ray.cancel(flight.ref)
                    return flight.number
        now = time.monotonic()
        for member in self._members:
            for flight in member.flights[:1]:
                late = now - flight.began > going.seconds(flight.number)
                if flight.turn == going.turn and flight.number in alone and late:
                    return flight.number
        return None

    def _done_by_one(self, going: _Going) -> set[int]:
        """The unfinished tasks that only one worker has."""
        flights = [f for m in self._members for f in m.flights if f.turn == going.turn]
        numbers = [flight.number for flight in flights]
        return {n for n in numbers if numbers.count(n) == 1 and n not in going.done}

    # Taking in

    def _take_in(self, going: _Going) -> None:
        """Wait until something happens, and see what it is."""
        starting = {m.starting: m for m in self._members if m.starting is not None}
        flights = {f.ref: (m, f) for m in self._members for f in m.flights}
        self._require_somebody()
        ready, _ = ray.wait([*flights, *starting], timeout=TICK)
        for ref in ready:
            if ref in starting:
                self._begin(starting[ref])
                continue
            member, flight = flights[ref]
            if flight not in member.flights:
                continue  # it was lost with its worker a moment ago
            try:
                found = ray.get(ref)
            except ray.exceptions.TaskCancelledError:
                member.flights.remove(flight)
            except ray.exceptions.RayTaskError as error:
                member.flights.remove(flight)
                if flight.turn == going.turn:
                    raise UndriftError(f"A worker failed: {_cause(error)}.") from error
            except ray.exceptions.RayError as error:
                self._lose(member, going, first_line(error))
            else:
                self._finish(member, flight, going, found)

    def _finish(self, member: _Member, flight: _Flight, going: _Going, found: Parcel) -> None:
        member.deaths = 0
        member.flights.remove(flight)
        now = time.monotonic()
        for following in member.flights[:1]:
            following.began = now
        if flight.turn == going.turn and flight.number not in going.done:
            going.finish(flight.number, found, now - flight.began)

    def _lose(self, member: _Member, going: _Going, why: str) -> None:
        """Do without a worker that died: what it had not finished is done again."""
        lost = [f.number for f in member.flights if f.turn == going.turn]
        if lost:
            going.blame(lost[0])
        others = [f for m in self._members if m is not member for f in m.flights]
        held = going.done | {f.number for f in others if f.turn == going.turn}
        going.waiting.extendleft(n for n in reversed(lost) if n not in held)
        self._replace(member, why)

    def _replace(self, member: _Member, why: str) -> None:
        """Start a worker in the place of one that died, unless it died too often."""
        ray.kill(member.actor)
        place = self._members.index(member)
        deaths = member.deaths + 1
        if deaths < DEATHS:
            self._members[place] = self._hired(member.number)
            self._members[place].deaths = deaths
            return
        del self._members[place]
        left = len(self._members)
        if not left:
            raise UndriftError(
                f"All {self.workers} workers have died {DEATHS} times in a row without getting "
                f"anything done (the last one: {why})."
            )
        warnings.warn(
            f"Worker {member.number + 1} of {self.workers} died {DEATHS} times in a row without "
            f"getting anything done ({why}): it is left out, and {left} "
            f"{'go' if left > 1 else 'goes'} on.",
            stacklevel=2,
        )

    # Starting

    def _hired(self, number: int) -> _Member:
        actor: Any = self._actor.remote(ray.get, self.threads, self.device)
        return _Member(number, actor, actor.about.remote())

    def _begin(self, member: _Member) -> None:
        """See who started."""
        try:
            about = ray.get(member.starting)
        except ray.exceptions.RayTaskError as error:
            raise UndriftError(f"A worker does not start: {_cause(error)}.") from error
        except ray.exceptions.RayError as error:
            self._replace(member, first_line(error))
            return
        member.starting, member.about = None, about
        mine = {"undrift": undrift.__version__, "torch": torch.__version__}
        for name, version in mine.items():
            if about[name] != version:
                raise UndriftError(
                    f"The worker on {about['host']} has {name} {about[name]}, but here it is "
                    f"{version}: install the same on all machines of the cluster."
                )

    def _await_one(self) -> None:
        nothing = _Going([], 0)
        while all(member.starting is not None for member in self._members):
            self._take_in(nothing)

    def _require_somebody(self) -> None:
        """Do not wait for ever for workers that cannot start."""
        if any(member.starting is None for member in self._members):
            self._lone_since = None
            return
        now = time.monotonic()
        self._lone_since = self._lone_since or now
        if now - self._lone_since > START:
            has = {name: ray.available_resources().get(name, 0) for name in ("CPU", "GPU")}
            wanted = f"{self.threads} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
            raise UndriftError(
                f"No worker could start within {START:.0f} seconds: each of the {self.workers} "
                f"needs {wanted}, and Ray has {has['CPU']:g} CPU and {has['GPU']:g} GPU left."
            )


class _Going:
    """Tasks on their way."""

    def __init__(self, tasks: Sequence[Task], turn: int):
        self.tasks = tasks
        self.turn = turn
        self.waiting = deque(range(len(tasks)))
        self.found: dict[int, Parcel] = {}
        """results that were not taken yet"""
        self.done: set[int] = set()
        self._paces: list[float] = []
        """seconds per unit of cost"""
        self._blamed: dict[int, int] = {}

    def finish(self, number: int, found: Parcel, seconds: float) -> None:
        self.found[number] = found
        self.done.add(number)
        self._blamed.clear()  # where others get something done, workers died of something else
        self._paces.append(seconds / max(self.tasks[number].cost, 1e-9))

    def seconds(self, number: int) -> float:
        """How long a task may take before somebody else does it too."""
        if not self._paces:
            return float("inf")
        return max(PATIENCE, STRAGGLING * median(self._paces) * self.tasks[number].cost)

    def blame(self, number: int) -> None:
        """Count that a worker died while it was at a task."""
        self._blamed[number] = self._blamed.get(number, 0) + 1
        if self._blamed[number] >= BLAMED:
            raise UndriftError(
                f"{BLAMED} workers died one after another at the same task"
                f"{self.tasks[number].what}: the model may need more memory than there is, or end "
                f"its process."
            )


def _cause(error: ray.exceptions.RayTaskError) -> str:
    return first_line(error.cause) if isinstance(error.cause, BaseException) else first_line(error)


_crew: Crew | None = None


def crew(workers: int, threads: int, gpus: float) -> Crew:
    """The workers of this program, which serve one run after another."""
    global _crew
    wanted = workers, threads, gpus
    if _crew is not None and not _crew.serves(*wanted):
        _crew.stop()
        _crew = None
    if _crew is None:
        _crew = Crew(*wanted)
    return _crew
