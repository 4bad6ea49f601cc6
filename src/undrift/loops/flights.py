"""Who is under way, in the order of virtual time: the clock of asynchronous training.

A flight is one client's work from reading the model to its reply. It is drawn when it is launched,
from the seed and its number, so that nothing depends on when or where it is computed.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from undrift.devices import ARRIVES, FAILED, LEFT, Fleet, journey, normal_scores
from undrift.keys import uniforms

WAKES = "wakes"
"""Not a flight, but a moment at which a client (or anybody) is available again."""
ANYBODY = -1
BLOCK = 4096
"""Draws are made for so many flights at once."""
TRIES = 16
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class Flight:
    """A client's work: when it reads, computes and sends, and what becomes of it."""

    number: int
    """of the launch; −1 for a wake-up"""
    k: int
    """the client's place in the roster, or `ANYBODY`"""
    start: float
    computing: float
    sending: float
    end: float
    outcome: str


class Flights:
    """The clients under way.

    Parameters
    ----------
    fleet
        the devices
    reading, sending
        how long each client takes to receive the model and to send its reply, before jitter
    """

    def __init__(self, fleet: Fleet, reading: np.ndarray, sending: np.ndarray):
        self.now = 0.0
        self.launched = 0
        self._fleet = fleet
        self._steady = fleet.steady
        self._reading = reading.tolist()
        self._sending = sending.tolist()
        self._pause = (1 / fleet.speed).tolist()
        self._jitter = fleet.jitter.tolist() if fleet.jitter.any() else None
        self._dropout = fleet.dropout.tolist() if fleet.dropout.any() else None
        self._heap: list[tuple[float, int]] = []
        self._tickets = 0
        self._air: dict[int, Flight] = {}
        self._busy = bytearray(len(fleet))
        self._block = -1
        self._draws: dict[str, list[float]] = {}

    def __len__(self) -> int:
        """How many are under way, wake-ups included."""
        return len(self._heap)

    def under_way(self) -> list[Flight]:
        """The flights in the air, in the order in which they land."""
        flights = (self._air[ticket] for _, ticket in sorted(self._heap))
        return [flight for flight in flights if flight.outcome != WAKES]

    def pick(self) -> int | None:
        """A client that is idle and available, each as likely as the others; None without one."""
        n = len(self._busy)
        bits = int(self._drawn("choice", self.launched) * 2**53)
        for _ in range(TRIES):
            k = bits * n >> 53
            if not self._busy[k] and (self._steady or self._fleet.is_available(k, self.now)):
                return k
            bits = _mixed(bits) >> 11
        there = np.frombuffer(self._busy, dtype=np.uint8) == 0
        if not self._steady:
            there &= self._fleet.available(self.now)
        idle = np.flatnonzero(there)
        return int(idle[bits * len(idle) >> 53]) if len(idle) else None

    def launch(self, k: int, units: float) -> Flight:
        """Client k sets out now, to compute so many units."""
        number, now = self.launched, self.now
        self.launched += 1
        factor = 1.0
        if self._jitter is not None:
            sigma = self._jitter[k]
            factor = math.exp(sigma * self._drawn("jitter", number) - sigma * sigma / 2)
        computing, sending, end = journey(
            now, self._reading[k], units * self._pause[k], self._sending[k], factor
        )
        outcome = ARRIVES
        if self._dropout is not None:
            p, u = self._dropout[k], self._drawn("dropout", number)
            if u < p:
                outcome, end = FAILED, now + u / p * (end - now)
        if not self._steady:
            leaves = float(self._fleet.leaves(k, now))
            if leaves < end:
                outcome, end = LEFT, leaves
        flight = Flight(number, k, now, computing, sending, end, outcome)
        self._busy[k] = 1
        self._enter(flight)
        return flight

    def wake(self, k: int = ANYBODY) -> bool:
        """See to it that client k, or anybody who is idle, is thought of when it is there again.

        Gives whether that will ever be.
        """
        if k == ANYBODY:
            idle = np.frombuffer(self._busy, dtype=np.uint8) == 0
            soon = float(self._fleet.next_available(self.now)[idle].min(initial=math.inf))
        else:
            soon = self._fleet.next_of(k, self.now)
        if math.isinf(soon):
            return False
        self._enter(Flight(-1, k, soon, soon, soon, soon, WAKES))
        return True

    def land(self) -> Flight:
        """The next to land; the clock goes on to that moment."""
        end, ticket = heappop(self._heap)
        self.now = end
        return self._air.pop(ticket)

    def free(self, k: int) -> None:
        """Client k is idle again."""
        self._busy[k] = 0

    def is_available(self, k: int) -> bool:
        """Whether client k is there now."""
        return self._steady or self._fleet.is_available(k, self.now)

    def saved(self) -> dict[str, Any]:
        """All there is, as plain values."""
        return {
            "now": self.now,
            "launched": self.launched,
            "tickets": self._tickets,
            "air": [[ticket, *astuple(flight)] for ticket, flight in self._air.items()],
            "busy": [k for k, busy in enumerate(self._busy) if busy],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `saved` gave."""
        self.now = saved["now"]
        self.launched = saved["launched"]
        self._tickets = saved["tickets"]
        self._air = {ticket: Flight(*values) for ticket, *values in saved["air"]}
        self._heap = [(flight.end, ticket) for ticket, flight in self._air.items()]
        heapify(self._heap)
        self._busy = bytearray(len(self._busy))
        for k in saved["busy"]:
            self._busy[k] = 1

    def _enter(self, flight: Flight) -> None:
        self._air[self._tickets] = flight
        heappush(self._heap, (flight.end, self._tickets))
        self._tickets += 1

    def _drawn(self, purpose: str, number: int) -> float:
        """The keyed draw of a flight: uniform, or normal for jitter."""
        block, place = divmod(number, BLOCK)
        if block != self._block:
            self._draw_block(block)
        return self._draws[purpose][place]

    def _draw_block(self, block: int) -> None:
        numbers = np.arange(block * BLOCK + 1, (block + 1) * BLOCK + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            hashed = numbers * np.uint64(GOLDEN)
        for purpose in ("choice", "dropout", "jitter"):
            drawn = uniforms(self._fleet.seed, f"flight {purpose}", 0, hashed)
            drawn = normal_scores(drawn) if purpose == "jitter" else drawn
            self._draws[purpose] = drawn.tolist()
        self._block = block


def _mixed(bits: int) -> int:
    """Another 64-bit number for a number (SplitMix64), to draw again."""
    z = (bits + GOLDEN) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)
