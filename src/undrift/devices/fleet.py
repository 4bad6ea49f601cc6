"""The fleet: the devices of all clients of a run, and how their trips end.

A trip is a client's way from reading the model to its reply, on the virtual clock. Synchronous
rounds and the event queue compute trips with the functions of this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from undrift.devices.availability_mask import AvailabilityMask
from undrift.devices.laws import normal_scores
from undrift.devices.windows import Times, Windows
from undrift.utils.errors import require
from undrift.utils.keys import uniforms

ARRIVES, FAILED, LEFT = "arrives", "failed", "left"
"""How a trip ends: the reply arrives, the client drops out, or its availability ends."""

EVERYBODY = slice(None)
"""All clients, in the place of their indices."""

FOR_EVER = (
    "A device takes longer than the virtual clock can count: increase its speed, down or up, or "
    "decrease its latency."
)


@dataclass(frozen=True, eq=False)
class Trips:
    """The trips of clients that start together; arrays have an entry per client.

    Parameters
    ----------
    who
        indices of the clients in the roster
    start
        time at which all trips start; times are virtual seconds
    computing, sending
        times at which the clients begin to compute and to send, or would have begun
    end
        time at which the reply arrives, or at which the client fails or leaves
    outcome
        "arrives", "failed" or "left"
    done
        share of the computation that was finished at the end, from 0 to 1
    """

    who: np.ndarray
    start: float
    computing: np.ndarray
    sending: np.ndarray
    end: np.ndarray
    outcome: np.ndarray
    done: np.ndarray


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices of all clients; arrays have an entry per client, in the roster's order.

    Parameters
    ----------
    speed
        work per second, in `unit`
    down, up
        bytes per second from and to the server; ∞ if transfers take no time
    latency
        seconds that a message takes each way, besides the transfer
    jitter
        σ of the lognormal factor on all durations of a round
    dropout, damage
        probability to fail during a round, and to return a damaged reply
    gone_at
        time at which the device leaves for good, or ∞
    unit
        what speed counts: "steps" or "samples"
    windows
        when each client is available, before `gone_at`
    hashes
        hash of each client's id, for keyed random numbers
    seed
        seed of the run, from which the random numbers of the rounds are made
    classes
        name of each client's device class, if there are classes
    """

    speed: np.ndarray
    down: np.ndarray
    up: np.ndarray
    latency: np.ndarray
    jitter: np.ndarray
    dropout: np.ndarray
    damage: np.ndarray
    gone_at: np.ndarray
    unit: str
    windows: Windows
    hashes: np.ndarray
    seed: int
    classes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.speed)

    @cached_property
    def steady(self) -> bool:
        """Whether all clients are always available."""
        return self.windows.always and bool(np.isinf(self.gone_at).all())

    @cached_property
    def reliable(self) -> bool:
        """Whether all clients are always available and every reply arrives undamaged."""
        return self.steady and not self.dropout.any() and not self.damage.any()

    def reading(self, bytes: float | np.ndarray, who: np.ndarray | slice = EVERYBODY) -> np.ndarray:
        """Seconds that clients take to receive `bytes`, before jitter; `bytes` may differ."""
        # The clock rejects times that overflow.
        with np.errstate(over="ignore", divide="ignore"):
            return self.latency[who] + bytes / self.down[who]

    def sending(self, bytes: float, who: np.ndarray | slice = EVERYBODY) -> np.ndarray:
        """Seconds that clients take to send `bytes`, before jitter."""
        with np.errstate(over="ignore", divide="ignore"):
            return self.latency[who] + bytes / self.up[who]

    def factor(self, round: int, who: np.ndarray) -> np.ndarray:
        """The jitter factor of clients in a round: exp(σz − σ²/2), with mean one."""
        sigma = self.jitter[who]
        z = normal_scores(uniforms(self.seed, "jitter", round, self.hashes[who]))
        return np.exp(sigma * z - sigma**2 / 2)

    def damaged(self, round: int, who: np.ndarray) -> np.ndarray:
        """A mask of the clients whose replies are damaged in a round."""
        return uniforms(self.seed, "damage", round, self.hashes[who]) < self.damage[who]

    def available(self, t: float) -> np.ndarray:
        """A mask of the clients that are available at time t.

        It costs the least if times do not decrease from call to call.
        """
        return self._mask.at(t)

    @cached_property
    def _mask(self) -> AvailabilityMask:
        return AvailabilityMask(self.windows, self.gone_at)

    def next_available(self, t: float) -> np.ndarray:
        """For every client the first time ≥ t at which it is available, or ∞."""
        following = self.windows.next(t)
        return np.where(following < self.gone_at, following, math.inf)

    def is_available(self, k: int, t: float) -> bool:
        """Whether client k is available at time t."""
        return bool(t < self.gone_at[k]) and self.windows.is_available(k, t)

    def next_of(self, k: int, t: float) -> float:
        """The first time ≥ t at which client k is available, or ∞."""
        following = self.windows.next_of(k, t)
        return following if following < self.gone_at[k] else math.inf

    @overload
    def leaves(self, who: int, t: float) -> float: ...

    @overload
    def leaves(self, who: np.ndarray, t: float) -> np.ndarray: ...

    def leaves(self, who: int | np.ndarray, t: float) -> float | np.ndarray:
        """The end of availability of clients that are available at time t, or ∞."""
        return np.minimum(self.windows.until(who, t), self.gone_at[who])

    def leaves_of(self, k: int, t: float) -> float:
        """The end of availability of client k, which is available at time t, or ∞."""
        return min(self.windows.until_of(k, t), float(self.gone_at[k]))

    def trips(
        self,
        who: np.ndarray,
        units: float | np.ndarray,
        start: float,
        reading: np.ndarray,
        sending: np.ndarray,
        round: int,
    ) -> Trips:
        """The trips of clients that read the model, compute and reply.

        A client drops out with probability `dropout`, at a time uniformly distributed over its
        trip, or leaves if its availability ends during the trip; the earlier of the two counts.

        Parameters
        ----------
        who
            indices in the roster of clients that are available at the start
        units
            work of each client, in the fleet's unit
        start
            time at which the trips start
        reading, sending
            seconds that each client takes to receive and to send, before jitter
        round
            number of the round, from which the random numbers are made
        """
        factor = self.factor(round, who)
        with np.errstate(over="ignore", divide="ignore"):
            computing, sends, arrival = journey(
                start, reading, units / self.speed[who], sending, factor
            )
        require(bool(np.isfinite(arrival).all()), FOR_EVER)
        p = self.dropout[who]
        u = uniforms(self.seed, "dropout", round, self.hashes[who])
        drops = u < p
        # Given u < p, u/p is uniform in [0, 1): one random number decides whether and when.
        fails = np.full(len(who), math.inf)
        fails[drops] = start + u[drops] / p[drops] * (arrival[drops] - start)
        leaves = self.leaves(who, start)
        failed = drops & (fails <= leaves)
        left = ~failed & (leaves < arrival)
        end = np.where(failed, fails, np.where(left, leaves, arrival))
        return Trips(
            who=who,
            start=start,
            computing=computing,
            sending=sends,
            end=end,
            outcome=np.where(failed, FAILED, np.where(left, LEFT, ARRIVES)),
            done=share_done(computing, sends, end),
        )


def journey(
    start: float, reading: Times, computing: Times, sending: Times, factor: Times
) -> tuple[Times, Times, Times]:
    """The times at which clients begin to compute, begin to send, and their replies arrive.

    The durations are given before jitter; `factor` multiplies them. Numbers give the times of one
    client, arrays those of several.
    """
    computing_from = start + reading * factor
    sending_from = computing_from + computing * factor
    return computing_from, sending_from, sending_from + sending * factor


def share_done(begin: np.ndarray, end: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The share of the time from `begin` to `end` that has passed at time t, from 0 to 1."""
    share = (t >= end).astype(float)
    under_way = (begin < t) & (t < end)
    begin, end, t = begin[under_way], end[under_way], t[under_way]
    share[under_way] = (t - begin) / (end - begin)
    return share
