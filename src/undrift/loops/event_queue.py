"""The event queue of asynchronous training: which clients are under way, and who arrives next.

`EventQueue` is what the asynchronous loop needs. `VirtualEventQueue` implements it on a virtual
clock, `undrift.deploy.loops` with real sites and the wall clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heappop, heappush, heapreplace
from math import exp, inf
from typing import Any, NamedTuple

import numpy as np

from undrift.devices import ARRIVES, FAILED, FOR_EVER, LEFT, Fleet, journey, normal_scores
from undrift.utils.errors import UndriftError
from undrift.utils.keys import uniforms

WAKES = "wakes"
"""The outcome of a wake-up: an event at which a client may have become available."""
ANYBODY = -1
"""In place of a client: any client that is idle."""
BLOCK_TRIPS = 4096
"""The random numbers of this many trips are generated at once."""
PICK_ATTEMPTS = 16
"""How many clients are tried at random before all idle clients are listed."""
GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴ divided by the golden ratio: spreads consecutive numbers over all 64 bits."""


class Trip(NamedTuple):
    """One client's way from reading the model to its reply, in seconds of the queue's clock.

    `end` and `sequence` come first because the heap orders trips by them. Run stores hold trips as
    lists of these fields in this order.
    """

    end: float
    """when it ends: the reply arrives, or the client fails or leaves"""
    sequence: int
    """breaks ties: of trips that end at the same time, the first to enter the queue comes first"""
    number: int
    """how many trips were launched before it; −1 for a wake-up"""
    k: int
    """the client's position in the roster, or `ANYBODY`"""
    start: float
    """when the client reads the model"""
    computing: float
    """when it has received the model and starts to compute"""
    sending: float
    """when it has computed and starts to send"""
    outcome: str
    """`ARRIVES`, `WAKES`, or why there will be no reply"""


class EventQueue(ABC):
    """The clients under way, as the asynchronous loop sees them.

    Clients are named by their position k in the roster. A client is busy from `launch` to `free`:
    `land` does not free it, since its reply may have to wait for an older one.
    """

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began, on this queue's clock."""

    @property
    @abstractmethod
    def launched(self) -> int:
        """How many trips were launched so far: the number of the next trip."""

    @property
    @abstractmethod
    def next_time(self) -> float:
        """When the next event happens; ∞ if there is none or if that cannot be known."""

    @abstractmethod
    def __len__(self) -> int:
        """How many events are to come, wake-ups included."""

    @abstractmethod
    def is_available(self, k: int) -> bool:
        """Whether client k could be launched now; the loop asks for idle clients only."""

    @abstractmethod
    def pick(self) -> int | None:
        """A client drawn uniformly from those idle and available; None if there is none."""

    @abstractmethod
    def launch(self, k: int, units: float) -> Trip:
        """Launch client k now, with `units` of computation in the unit of the fleet's speed."""

    @abstractmethod
    def wake(self, k: int = ANYBODY) -> None:
        """Add an event, of outcome `WAKES`, for when client k or any idle client is available."""

    @abstractmethod
    def land(self) -> Trip:
        """The next event, with the clock moved on to its end; requires that there is one."""

    @abstractmethod
    def free(self, k: int) -> None:
        """Make client k idle: its trip is over and its reply was used or dropped."""

    @abstractmethod
    def reset(self) -> None:
        """Drop all events and make every client idle; the clock and `launched` stay."""

    @abstractmethod
    def saved(self) -> dict[str, Any]:
        """The state of the queue in plain values, for the run store."""

    @abstractmethod
    def restore(self, saved: dict[str, Any]) -> None:
        """Continue from what `saved` returned."""


class VirtualEventQueue(EventQueue):
    """The event queue of a simulation: trips in a heap, ordered by virtual time.

    What happens on a trip is decided when it is launched, by random numbers that depend only on
    the seed and the number of the trip. So nothing depends on when or where its work is computed.

    Parameters
    ----------
    fleet
        the devices
    reading, sending
        the seconds each client takes to receive the model and to send its reply, before jitter
    """

    # Plain attributes instead of properties: they are read for every event.
    now: float = 0.0
    launched: int = 0

    def __init__(self, fleet: Fleet, reading: np.ndarray, sending: np.ndarray):
        self._fleet = fleet
        self._steady = fleet.steady
        self._reading = reading.tolist()
        self._sending = sending.tolist()
        with np.errstate(over="ignore"):
            self._seconds_per_unit = (1 / fleet.speed).tolist()
        # None where no device needs it, so that `launch` skips the computation.
        self._sigma = fleet.jitter.tolist() if fleet.jitter.any() else None
        self._dropout = fleet.dropout.tolist() if fleet.dropout.any() else None
        self._sequence = 0
        self.reset()
        self._generate_block(0)

    def __len__(self) -> int:
        return len(self._heap) - self._landed

    def pick(self) -> int | None:
        # Trying clients at random is much cheaper than listing the idle ones, as long as most
        # are idle. Every attempt rehashes the trip's one random number: the choice must depend
        # on the seed and the number of the trip only.
        busy = self._busy
        n = len(busy)
        bits = int(self._choices[self._index(self.launched)] * 2**53)
        for _ in range(PICK_ATTEMPTS):
            k = bits * n >> 53
            if not busy[k] and (self._steady or self._fleet.is_available(k, self.now)):
                return k
            bits = _rehash(bits) >> 11
        candidates = np.frombuffer(busy, dtype=np.uint8) == 0
        if not self._steady:
            candidates &= self._fleet.available(self.now)
        idle = np.flatnonzero(candidates)
        return int(idle[bits * len(idle) >> 53]) if len(idle) else None

    def launch(self, k: int, units: float) -> Trip:
        number, now = self.launched, self.now
        self.launched = number + 1
        index = number - self._first
        if index >= BLOCK_TRIPS:
            index = self._index(number)
        factor = 1.0
        if self._sigma is not None:
            sigma = self._sigma[k]
            factor = exp(sigma * self._jitters[index] - sigma * sigma / 2)
        computing, sending, end = journey(
            now, self._reading[k], units * self._seconds_per_unit[k], self._sending[k], factor
        )
        if not end < inf:
            raise UndriftError(FOR_EVER)
        outcome = ARRIVES
        if self._dropout is not None:
            p, u = self._dropout[k], self._dropouts[index]
            if u < p:
                # Given that it drops out, u/p is uniform: it does so anywhere on its way.
                outcome, end = FAILED, now + u / p * (end - now)
        if not self._steady:
            leaves = self._fleet.leaves_of(k, now)
            if leaves < end:
                outcome, end = LEFT, leaves
        self._busy[k] = 1
        trip = Trip(end, self._sequence, number, k, now, computing, sending, outcome)
        self._push(trip)
        return trip

    def wake(self, k: int = ANYBODY) -> None:
        if k == ANYBODY:
            idle = np.frombuffer(self._busy, dtype=np.uint8) == 0
            at = float(self._fleet.next_available(self.now)[idle].min(initial=inf))
        else:
            at = self._fleet.next_of(k, self.now)
        if at < inf:  # otherwise nobody comes back, and a wake-up would never end
            self._push(Trip(at, self._sequence, -1, k, at, at, at, WAKES))

    @property
    def next_time(self) -> float:
        self._remove_landed()
        return self._heap[0].end if self._heap else inf

    def land(self) -> Trip:
        self._remove_landed()
        trip = self._heap[0]
        self._landed = True
        self.now = trip.end
        return trip

    def free(self, k: int) -> None:
        self._busy[k] = 0

    def is_available(self, k: int) -> bool:
        return self._steady or self._fleet.is_available(k, self.now)

    def reset(self) -> None:
        self._heap: list[Trip] = []
        # Whether the trip at the top of the heap has landed. It stays there until the next event
        # enters, since replacing the top costs half of removing it and pushing another: almost
        # every landing is followed by a launch.
        self._landed = False
        self._busy = bytearray(len(self._fleet))

    def saved(self) -> dict[str, Any]:
        self._remove_landed()
        return {
            "now": self.now,
            "launched": self.launched,
            "tickets": self._sequence,
            "heap": [list(each) for each in self._heap],
            "busy": np.flatnonzero(np.frombuffer(self._busy, dtype=np.uint8)).tolist(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self.reset()
        self.now = saved["now"]
        self.launched = saved["launched"]
        self._sequence = saved["tickets"]
        self._heap = [Trip(*each) for each in saved["heap"]]  # saved in the order of a heap
        for k in saved["busy"]:
            self._busy[k] = 1
        self._generate_block(self.launched // BLOCK_TRIPS)

    def _push(self, trip: Trip) -> None:
        self._sequence += 1
        if self._landed:
            heapreplace(self._heap, trip)
            self._landed = False
        else:
            heappush(self._heap, trip)

    def _remove_landed(self) -> None:
        if self._landed:
            heappop(self._heap)
            self._landed = False

    def _index(self, number: int) -> int:
        """Where the random numbers of a trip are in its block, which is generated if needed."""
        if not 0 <= number - self._first < BLOCK_TRIPS:
            self._generate_block(number // BLOCK_TRIPS)
        return number - self._first

    def _generate_block(self, block: int) -> None:
        """Generate the random numbers of many trips at once, each from the trip's own number."""
        numbers = np.arange(1, BLOCK_TRIPS + 1, dtype=np.uint64) + np.uint64(block * BLOCK_TRIPS)
        with np.errstate(over="ignore"):
            hashed = numbers * np.uint64(GOLDEN)

        # The purposes are part of the random keys: with other words every result would change.
        def numbers_for(purpose: str) -> np.ndarray:
            return uniforms(self._fleet.seed, f"flight {purpose}", 0, hashed)

        self._choices: list[float] = numbers_for("choice").tolist()
        self._dropouts: list[float] = numbers_for("dropout").tolist()
        self._jitters: list[float] = normal_scores(numbers_for("jitter")).tolist()
        self._first = block * BLOCK_TRIPS


def _rehash(bits: int) -> int:
    """Another 64-bit number, as if random, from a number (SplitMix64)."""
    z = (bits + GOLDEN) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)
