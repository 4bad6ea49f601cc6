"""The pool of Ray's workers: starts them, gives them calls, and replaces those that die.

The Ray engine describes what is to be done as `RemoteCall`s, and `WorkerPool.results` returns
their results in order. A call changes no state, so that any worker may do it, twice if need be:
that is what makes dying and straggling workers harmless.
"""

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
from undrift.engines.ray.cluster import session_id
from undrift.engines.ray.serialization import SerializedObject, deserialize, serialize
from undrift.engines.ray.worker import RemoteError, SharedObject, Worker
from undrift.utils.errors import UndriftError, first_line

CALLS_PER_WORKER = 2
"""How many calls a worker holds: one that it computes, and one to continue with at once."""
MAX_DEATHS = 6
"""A worker that dies this many times in a row without a result is not started again."""
MAX_DEATHS_PER_CALL = 5
"""If this many workers die at the same call, the run ends with an error."""
STRAGGLER_RATIO = 3.0
"""A call that takes this many times as long as others of its cost is given to a second worker."""
STRAGGLER_MIN_SECONDS = 2.0
"""A call is not given to a second worker before this time."""
START_SECONDS = 120.0
"""If no worker has started within this time, the run ends with an error."""
POLL_SECONDS = 0.5
"""How often the pool looks for straggling calls while it waits for results."""


@dataclass(frozen=True)
class RemoteCall:
    """A method call that any worker can do."""

    method: str
    """the name of a method of `Worker`"""
    shared: Mapping[str, SharedObject]
    """the objects that it uses and that other calls use too"""
    arguments: Callable[[], tuple[Any, ...]]
    """makes its further arguments, when the call is sent: client states are read that late so
    that those of all blocks need not be in memory at once"""
    cost: float = 1.0
    """its expected duration, in any unit"""
    what: str = ""
    """its clients, for an error message"""


@dataclass
class _PendingCall:
    """A call that was sent to a worker and has not been answered."""

    ref: Any
    """Ray's reference of the result"""
    turn: int
    """the call of `results` that it belongs to"""
    number: int
    """its position among the calls of that turn"""
    began: float = 0.0
    """when the worker began to compute it, as far as is known, in seconds of the clock"""


@dataclass
class _WorkerSlot:
    """A place in the pool, with the process that fills it."""

    number: int
    actor: Any
    starting: Any
    """the reference of its first answer; None once it has started"""
    pending: list[_PendingCall] = field(default_factory=list)
    """in the order in which they were sent; the worker computes the first one"""
    deaths: int = 0
    """how often its process died since the last result"""
    about: dict[str, str] = field(default_factory=dict)
    """what `Worker.about` said"""


class WorkerPool:
    """A fixed number of workers, on whatever machines Ray has.

    Parameters
    ----------
    workers
        how many workers there are
    threads
        how many threads, and cores, each worker has
    gpus
        how many GPUs, or which share of one, each worker has
    """

    def __init__(self, workers: int, threads: int = 1, gpus: float = 0.0):
        self.workers = workers
        self.threads = threads
        self.gpus = gpus
        self.device = "cuda" if gpus else "cpu"
        self._session = session_id()
        # Ray would restart a dead actor without our knowledge; the pool does it itself, so that
        # it can count deaths and send lost calls again.
        self._actor = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(Worker)
        self._turn = 0
        self._slots = [self._started_slot(number) for number in range(workers)]
        self._empty_since: float | None = None
        """since when no worker has been ready, in seconds of the clock"""
        self._wait_for_one()

    def results(
        self, calls: Sequence[RemoteCall], device: torch.device | str = "cpu", shared: bool = False
    ) -> Iterator[Any]:
        """The results of calls, in the order of the calls.

        Calls are also sent in that order, so the longest should come first. With `shared`, the
        tensors in results are Ray's memory: they must not be written to or kept.
        """
        # Answers to an earlier turn may still arrive, e.g. from a straggler. They are ignored.
        self._turn += 1
        queue = _CallQueue(calls, self._turn)
        for number in range(len(calls)):
            while number not in queue.results:
                self._send_calls(queue)
                self._receive(queue)
            found = deserialize(queue.results.pop(number), device, shared)
            if isinstance(found, RemoteError):
                raise found.kind(found.message)
            yield found

    def serves(self, workers: int, threads: int, gpus: float) -> bool:
        """Whether the pool has this shape, has workers, and Ray is still connected."""
        asked = (self.workers, self.threads, self.gpus) == (workers, threads, gpus)
        return asked and bool(self._slots) and self._connected()

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers that have started, each on its own machine."""
        return [int(slot.about["process"]) for slot in self._slots if slot.starting is None]

    def stop(self) -> None:
        """End all workers."""
        for slot in self._slots if self._connected() else ():
            ray.kill(slot.actor)
        self._slots = []

    def _connected(self) -> bool:
        return ray.is_initialized() and session_id() == self._session

    # Sending calls

    def _send_calls(self, queue: _CallQueue) -> None:
        """Give every started worker enough to do, idle ones first."""
        started = [slot for slot in self._slots if slot.starting is None]
        # Breadth first: no worker gets a second call while another has none.
        for depth in range(CALLS_PER_WORKER):
            for slot in started:
                if queue.waiting and len(slot.pending) == depth:
                    self._send(slot, queue, queue.waiting.popleft())
        # When nothing waits, idle workers take over calls from busy ones.
        for slot in started:
            if not slot.pending and not queue.waiting:
                number = self._call_to_steal(queue)
                if number is None:
                    break
                self._send(slot, queue, number)

    def _send(self, slot: _WorkerSlot, queue: _CallQueue, number: int) -> None:
        call = queue.calls[number]
        ref = slot.actor.call.remote(call.method, call.shared, serialize(call.arguments()))
        slot.pending.append(_PendingCall(ref, queue.turn, number, time.monotonic()))

    def _call_to_steal(self, queue: _CallQueue) -> int | None:
        """A call for an idle worker: one that waits behind another, else one that straggles."""
        candidates = self._held_by_one_worker(queue)
        for slot in self._slots:
            for pending in slot.pending[1:]:
                if pending.turn == queue.turn and pending.number in candidates:
                    slot.pending.remove(pending)
                    ray.cancel(pending.ref)
                    return pending.number
        # A straggling call is not cancelled: whichever worker answers first is used.
        now = time.monotonic()
        for slot in self._slots:
            for pending in slot.pending[:1]:
                straggles = now - pending.began > queue.patience_seconds(pending.number)
                ours = pending.turn == queue.turn and pending.number in candidates
                if ours and straggles:
                    return pending.number
        return None

    def _held_by_one_worker(self, queue: _CallQueue) -> set[int]:
        """The unanswered calls that exactly one worker has, so that no call is stolen twice."""
        pending = [p for slot in self._slots for p in slot.pending if p.turn == queue.turn]
        numbers = [each.number for each in pending]
        return {n for n in numbers if numbers.count(n) == 1 and n not in queue.done}

    # Receiving results

    def _receive(self, queue: _CallQueue) -> None:
        """Wait until something happens, at most `POLL_SECONDS`, and handle it."""
        starting = {slot.starting: slot for slot in self._slots if slot.starting is not None}
        calls = {pending.ref: (slot, pending) for slot in self._slots for pending in slot.pending}
        self._require_workers()
        ready, _ = ray.wait([*calls, *starting], timeout=POLL_SECONDS)
        for ref in ready:
            if ref in starting:
                self._finish_start(starting[ref])
                continue
            slot, pending = calls[ref]
            if pending not in slot.pending:
                continue  # an earlier item of this loop removed it with its dead worker
            try:
                found = ray.get(ref)
            except ray.exceptions.TaskCancelledError:
                slot.pending.remove(pending)
            except ray.exceptions.RayTaskError as error:  # the worker lives, its code failed
                slot.pending.remove(pending)
                if pending.turn == queue.turn:
                    raise UndriftError(f"A worker failed: {_cause(error)}.") from error
            except ray.exceptions.RayError as error:  # the worker or its machine died
                self._recover(slot, queue, first_line(error))
            else:
                self._accept(slot, pending, queue, found)

    def _accept(
        self, slot: _WorkerSlot, pending: _PendingCall, queue: _CallQueue, found: SerializedObject
    ) -> None:
        """Take a result, unless it belongs to an earlier turn or another worker gave it first."""
        slot.deaths = 0
        slot.pending.remove(pending)
        now = time.monotonic()
        for following in slot.pending[:1]:
            following.began = now
        if pending.turn == queue.turn and pending.number not in queue.done:
            queue.finish(pending.number, found, now - pending.began)

    def _recover(self, slot: _WorkerSlot, queue: _CallQueue, why: str) -> None:
        """Replace a worker that died, and send its unanswered calls again."""
        lost = [pending.number for pending in slot.pending if pending.turn == queue.turn]
        if lost:
            queue.count_death(lost[0])  # the one it was computing
        others = [pending for each in self._slots if each is not slot for pending in each.pending]
        held = queue.done | {pending.number for pending in others if pending.turn == queue.turn}
        # In front of the queue and in their old order: results are needed in that order.
        queue.waiting.extendleft(n for n in reversed(lost) if n not in held)
        self._replace(slot, why)

    def _replace(self, slot: _WorkerSlot, why: str) -> None:
        """Start a worker in the place of one that died, unless it died too often."""
        ray.kill(slot.actor)
        place = self._slots.index(slot)
        deaths = slot.deaths + 1
        if deaths < MAX_DEATHS:
            self._slots[place] = self._started_slot(slot.number)
            self._slots[place].deaths = deaths
            return
        del self._slots[place]
        left = len(self._slots)
        if not left:
            raise UndriftError(
                f"All {self.workers} workers died {MAX_DEATHS} times in a row without a result "
                f"(the last one: {why})."
            )
        warnings.warn(
            f"Worker {slot.number + 1} of {self.workers} died {MAX_DEATHS} times in a row without "
            f"a result ({why}); the run continues with {left} worker{'s' * (left > 1)}.",
            stacklevel=2,
        )

    # Starting workers

    def _started_slot(self, number: int) -> _WorkerSlot:
        actor: Any = self._actor.remote(ray.get, self.threads, self.device)
        return _WorkerSlot(number, actor, actor.about.remote())

    def _finish_start(self, slot: _WorkerSlot) -> None:
        """Check the versions of a worker that has started; results may depend on them."""
        try:
            about = ray.get(slot.starting)
        except ray.exceptions.RayTaskError as error:
            raise UndriftError(f"A worker does not start: {_cause(error)}.") from error
        except ray.exceptions.RayError as error:
            self._replace(slot, first_line(error))
            return
        slot.starting, slot.about = None, about
        here = {"undrift": undrift.__version__, "torch": torch.__version__}
        for name, version in here.items():
            if about[name] != version:
                raise UndriftError(
                    f"The worker on {about['host']} has {name} {about[name]}, but here it is "
                    f"{version}: install the same version on all machines of the cluster."
                )

    def _wait_for_one(self) -> None:
        """Wait until one worker has started; the others may start while it works."""
        no_calls = _CallQueue([], 0)
        while all(slot.starting is not None for slot in self._slots):
            self._receive(no_calls)

    def _require_workers(self) -> None:
        """Raise an error if no worker has been ready for `START_SECONDS`."""
        if any(slot.starting is None for slot in self._slots):
            self._empty_since = None
            return
        now = time.monotonic()
        self._empty_since = self._empty_since or now
        if now - self._empty_since > START_SECONDS:
            has = {name: ray.available_resources().get(name, 0) for name in ("CPU", "GPU")}
            wanted = f"{self.threads} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
            raise UndriftError(
                f"No worker could start within {START_SECONDS:.0f} seconds: each of the "
                f"{self.workers} needs {wanted}, and Ray has {has['CPU']:g} CPU and "
                f"{has['GPU']:g} GPU left."
            )


class _CallQueue:
    """The calls of one turn of `WorkerPool.results`, and what is known of them."""

    def __init__(self, calls: Sequence[RemoteCall], turn: int):
        self.calls = calls
        self.turn = turn
        self.waiting = deque(range(len(calls)))
        """numbers of calls that no worker has"""
        self.results: dict[int, SerializedObject] = {}
        """results that were not returned yet, by number"""
        self.done: set[int] = set()
        """numbers of calls that were answered"""
        self._seconds_per_cost: list[float] = []
        self._deaths: dict[int, int] = {}
        """how many workers died at a call, by number"""

    def finish(self, number: int, found: SerializedObject, seconds: float) -> None:
        """Store the result of a call that took some seconds."""
        self.results[number] = found
        self.done.add(number)
        # Only deaths without any result in between count: a machine that fails now and then is
        # no reason to blame a call.
        self._deaths.clear()
        self._seconds_per_cost.append(seconds / max(self.calls[number].cost, 1e-9))

    def patience_seconds(self, number: int) -> float:
        """How long a call may take before a second worker gets it too."""
        if not self._seconds_per_cost:
            return float("inf")
        expected = median(self._seconds_per_cost) * self.calls[number].cost
        return max(STRAGGLER_MIN_SECONDS, STRAGGLER_RATIO * expected)

    def count_death(self, number: int) -> None:
        """Count that a worker died while it computed a call."""
        self._deaths[number] = self._deaths.get(number, 0) + 1
        if self._deaths[number] >= MAX_DEATHS_PER_CALL:
            raise UndriftError(
                f"{MAX_DEATHS_PER_CALL} workers died one after another at the same work"
                f"{self.calls[number].what}: the model may need more memory than there is, or end "
                f"its process."
            )


def _cause(error: ray.exceptions.RayTaskError) -> str:
    return first_line(error.cause) if isinstance(error.cause, BaseException) else first_line(error)


_pool: WorkerPool | None = None


def worker_pool(workers: int, threads: int, gpus: float) -> WorkerPool:
    """The worker pool of this process; runs that follow each other share it.

    Starting workers takes seconds, so the pool is kept as long as its shape is what is asked for.
    """
    global _pool
    wanted = workers, threads, gpus
    if _pool is not None and not _pool.serves(*wanted):
        _pool.stop()
        _pool = None
    if _pool is None:
        _pool = WorkerPool(*wanted)
    return _pool
