"""The devices of a run's clients, and what becomes of those that are sent to work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from undrift.devices.laws import normal_scores
from undrift.devices.windows import Times, Windows
from undrift.utils.errors import require
from undrift.utils.keys import uniforms

ARRIVES, FAILED, LEFT = "arrives", "failed", "left"
"""What becomes of a client: its reply arrives, it drops out, or its availability ends."""

FOR_EVER = (
    "A device takes longer than the clock can count: its speed, down and up must be larger, or its "
    "latency smaller."
)


@dataclass(frozen=True, eq=False)
class Trips:
    """What becomes of clients that set out together, an array entry for each.

    Parameters
    ----------
    who
        the clients, as places in the roster
    start
        when they set out
    computing, sending
        when they begin to compute and to send, or would have
    end
        when the reply arrives, or when the client fails or leaves
    outcome
        "arrives", "failed" or "left"
    done
        the share of the computing that was finished by the end
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
    """The devices of all clients; every array has an entry per client, in the roster's order.

    Parameters
    ----------
    speed
        `unit`s of work per second
    down, up
        bytes per second, ∞ where transfers take no time
    latency
        seconds, each way
    jitter
        σ of the lognormal factor on what a device does in a round
    dropout, damage
        the probabilities to fail in mid-round, and to return a damaged reply
    gone_at
        when it is gone for good, or ∞
    unit
        "steps" or "samples"
    windows
        when each is available, until it is gone
    hashes
        a number per client, for keyed draws
    seed
        the run's, of which the draws of the rounds are made
    classes
        the name of each client's class of devices, if there are classes
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
        """Whether everyone is available at all times."""
        return self.windows.always and bool(np.isinf(self.gone_at).all())

    @cached_property
    def reliable(self) -> bool:
        """Whether everyone is always available and every reply arrives undamaged."""
        return self.steady and not self.dropout.any() and not self.damage.any()

    def reading(self, bytes: float) -> np.ndarray:
        """How long each client takes to receive so many bytes, in seconds before jitter."""
        # A time that is too long is refused by the clock.
        with np.errstate(over="ignore", divide="ignore"):
            return self.latency + bytes / self.down

    def sending(self, bytes: float) -> np.ndarray:
        """How long each client takes to send so many bytes, in seconds before jitter."""
        with np.errstate(over="ignore", divide="ignore"):
            return self.latency + bytes / self.up

    def factor(self, round: int, who: np.ndarray) -> np.ndarray:
        """By how much clients are slower than usual in a round: exp(σz − σ²/2), of mean one."""
        sigma = self.jitter[who]
        z = normal_scores(uniforms(self.seed, "jitter", round, self.hashes[who]))
        return np.exp(sigma * z - sigma**2 / 2)

    def damaged(self, round: int, who: np.ndarray) -> np.ndarray:
        """Which of the clients' replies are damaged in a round, a mask."""
        return uniforms(self.seed, "damage", round, self.hashes[who]) < self.damage[who]

    def available(self, t: float) -> np.ndarray:
        """Who is available at time t, a mask over all clients."""
        return self.windows.available(t) & (t < self.gone_at)

    def next_available(self, t: float) -> np.ndarray:
        """For every client the first time from t on at which it is available, or ∞."""
        following = self.windows.next(t)
        return np.where(following < self.gone_at, following, math.inf)

    def is_available(self, k: int, t: float) -> bool:
        """Whether client k is available at time t."""
        return bool(t < self.gone_at[k]) and self.windows.is_available(k, t)

    def next_of(self, k: int, t: float) -> float:
        """The first time from t on at which client k is available, or ∞."""
        following = self.windows.next_of(k, t)
        return following if following < self.gone_at[k] else math.inf

    @overload
    def leaves(self, who: int, t: float) -> float: ...

    @overload
    def leaves(self, who: np.ndarray, t: float) -> np.ndarray: ...

    def leaves(self, who: int | np.ndarray, t: float) -> float | np.ndarray:
        """When clients that are available at time t stop being so, or ∞."""
        return np.minimum(self.windows.until(who, t), self.gone_at[who])

    def leaves_of(self, k: int, t: float) -> float:
        """When client k, which is available at time t, stops being so, or ∞."""
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
        """Send clients out to receive, compute and reply, and see what becomes of each.

        A client drops out with its probability, at a moment uniformly distributed over its trip,
        or leaves when its availability ends before it is done, whichever is first.

        Parameters
        ----------
        who
            places in the roster of clients that are available at the start
        units
            how much each is to compute, in the fleet's unit
        start
            when they set out
        reading, sending
            how long each takes to receive and to send, before jitter
        round
            the round, of which the draws are made
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
    """When a client begins to compute, begins to send, and has arrived, for one or several."""
    computing_from = start + reading * factor
    sending_from = computing_from + computing * factor
    return computing_from, sending_from, sending_from + sending * factor


def share_done(begin: np.ndarray, end: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The share of the time from `begin` to `end` that is over at t."""
    share = (t >= end).astype(float)
    under_way = (begin < t) & (t < end)
    begin, end, t = begin[under_way], end[under_way], t[under_way]
    share[under_way] = (t - begin) / (end - begin)
    return share
