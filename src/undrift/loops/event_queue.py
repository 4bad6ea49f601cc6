"""Who is under way, in the order of virtual time: the clock of asynchronous training.

A flight is one client's work from reading the model to its reply. It is drawn when it is launched,
from the seed and its number, so that nothing depends on when or where it is computed.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from math import exp, inf
from typing import Any, NamedTuple

import numpy as np

from undrift.devices import ARRIVES, FAILED, FOR_EVER, LEFT, Fleet, journey, normal_scores
from undrift.utils.errors import UndriftError
from undrift.utils.keys import uniforms

WAKES = "wakes"
"""Not a flight, but a moment at which a client (or anybody) is available again."""
ANYBODY = -1
BLOCK = 4096
"""Draws are made for so many flights at once."""
TRIES = 16
GOLDEN = 0x9E3779B97F4A7C15


class Flight(NamedTuple):
    """A client's work: when it reads, computes and sends, and what becomes of it."""

    end: float
    ticket: int
    """tells apart those that end at the same time: the first to be launched comes first"""
    number: int
    """of the launch; −1 for a wake-up"""
    k: int
    """the client's place in the roster, or `ANYBODY`"""
    start: float
    computing: float
    sending: float
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
        with np.errstate(over="ignore"):
            self._pause = (1 / fleet.speed).tolist()
        self._sigma = fleet.jitter.tolist() if fleet.jitter.any() else None
        self._dropout = fleet.dropout.tolist() if fleet.dropout.any() else None
        self._heap: list[Flight] = []
        self._landed = False
        """whether the first of the heap has landed: the next to set out takes its place there"""
        self._tickets = 0
        self._busy = bytearray(len(fleet))
        self._draw_block(0)

    def __len__(self) -> int:
        """How many are under way, wake-ups included."""
        return len(self._heap) - self._landed

    def pick(self) -> int | None:
        """A client that is idle and available, each as likely as the others; None without one."""
        busy = self._busy
        n = len(busy)
        bits = int(self._choices[self._place(self.launched)] * 2**53)
        for _ in range(TRIES):
            k = bits * n >> 53
            if not busy[k] and (self._steady or self._fleet.is_available(k, self.now)):
                return k
            bits = _mixed(bits) >> 11
        there = np.frombuffer(busy, dtype=np.uint8) == 0
        if not self._steady:
            there &= self._fleet.available(self.now)
        idle = np.flatnonzero(there)
        return int(idle[bits * len(idle) >> 53]) if len(idle) else None

    def launch(self, k: int, units: float) -> Flight:
        """Client k sets out now, to compute so many units."""
        number, now = self.launched, self.now
        self.launched = number + 1
        place = number - self._first
        if place >= BLOCK:
            place = self._place(number)
        factor = 1.0
        if self._sigma is not None:
            sigma = self._sigma[k]
            factor = exp(sigma * self._jitters[place] - sigma * sigma / 2)
        computing, sending, end = journey(
            now, self._reading[k], units * self._pause[k], self._sending[k], factor
        )
        if not end < inf:
            raise UndriftError(FOR_EVER)
        outcome = ARRIVES
        if self._dropout is not None:
            p, u = self._dropout[k], self._dropouts[place]
            if u < p:
                outcome, end = FAILED, now + u / p * (end - now)
        if not self._steady:
            leaves = self._fleet.leaves_of(k, now)
            if leaves < end:
                outcome, end = LEFT, leaves
        self._busy[k] = 1
        flight = Flight(end, self._tickets, number, k, now, computing, sending, outcome)
        self._enter(flight)
        return flight

    def wake(self, k: int = ANYBODY) -> None:
        """See to it that client k, or anybody who is idle, is thought of when it is there again."""
        if k == ANYBODY:
            idle = np.frombuffer(self._busy, dtype=np.uint8) == 0
            soon = float(self._fleet.next_available(self.now)[idle].min(initial=inf))
        else:
            soon = self._fleet.next_of(k, self.now)
        if soon < inf:
            self._enter(Flight(soon, self._tickets, -1, k, soon, soon, soon, WAKES))

    @property
    def next_time(self) -> float:
        """When the next one lands, or ∞."""
        self._clear()
        return self._heap[0].end if self._heap else inf

    def land(self) -> Flight:
        """The next to land; the clock goes on to that moment."""
        self._clear()
        flight = self._heap[0]
        self._landed = True
        self.now = flight.end
        return flight

    def free(self, k: int) -> None:
        """Client k is idle again."""
        self._busy[k] = 0

    def is_available(self, k: int) -> bool:
        """Whether client k is there now."""
        return self._steady or self._fleet.is_available(k, self.now)

    def saved(self) -> dict[str, Any]:
        """All there is, as plain values."""
        self._clear()
        return {
            "now": self.now,
            "launched": self.launched,
            "tickets": self._tickets,
            "heap": [list(each) for each in self._heap],
            "busy": [k for k, busy in enumerate(self._busy) if busy],
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what `saved` gave."""
        self.now = saved["now"]
        self.launched = saved["launched"]
        self._tickets = saved["tickets"]
        self._heap = [Flight(*each) for each in saved["heap"]]  # a heap, as it was saved
        self._landed = False
        self._busy = bytearray(len(self._busy))
        for k in saved["busy"]:
            self._busy[k] = 1
        self._draw_block(self.launched // BLOCK)

    def _enter(self, flight: Flight) -> None:
        self._tickets += 1
        if self._landed:
            heapreplace(self._heap, flight)
            self._landed = False
        else:
            heappush(self._heap, flight)

    def _clear(self) -> None:
        """Take out the one that has landed."""
        if self._landed:
            heappop(self._heap)
            self._landed = False

    def _place(self, number: int) -> int:
        """Where the draws of a flight are in its block."""
        if not 0 <= number - self._first < BLOCK:
            self._draw_block(number // BLOCK)
        return number - self._first

    def _draw_block(self, block: int) -> None:
        """The keyed draws of many flights at once, each from its own number."""
        numbers = np.arange(1, BLOCK + 1, dtype=np.uint64) + np.uint64(block * BLOCK)
        with np.errstate(over="ignore"):
            hashed = numbers * np.uint64(GOLDEN)

        def drawn(purpose: str) -> np.ndarray:
            return uniforms(self._fleet.seed, f"flight {purpose}", 0, hashed)

        self._choices: list[float] = drawn("choice").tolist()
        self._dropouts: list[float] = drawn("dropout").tolist()
        self._jitters: list[float] = normal_scores(drawn("jitter")).tolist()
        self._first = block * BLOCK


def _mixed(bits: int) -> int:
    """Another 64-bit number for a number (SplitMix64), to draw again."""
    z = (bits + GOLDEN) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)
