"""What a run will do, before anyone trains: its first rounds, drawn as the run draws them.

All draws are functions of the seed, so the rounds that are looked at are those of the run. Not
foreseen are asynchronous replies that wait for older ones or are too old.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from undrift.amounts import RandomAmount
from undrift.devices import ARRIVES, Fleet
from undrift.engines.base import Job
from undrift.loops.flights import ANYBODY, WAKES, Flights
from undrift.loops.outings import Load, on_the_clock, units, without_clock
from undrift.methods.base import Method
from undrift.paces import AsTheyArrive, RoundPace
from undrift.problem import Client
from undrift.runs.pacing import concurrency
from undrift.sampling import All, Cohort, Sampler
from undrift.solvers import Work

DRAWN = 200
"""So many rounds are drawn; more rounds are as these on average."""
LOOKED_AT, TIMED = 2_000_000, 100_000
"""… but no more than so many clients are looked at in all, without and with a clock."""


@dataclass
class Foreseen:
    """What some rounds come to."""

    rounds: int = 0
    asked: int = 0
    """clients that were sent to work"""
    gradients: int = 0
    """of single samples, of those whose replies are used"""
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    """on the virtual clock"""
    seen: set[Hashable] = field(default_factory=set)
    """clients whose reply was used"""
    replies: int = 0

    def take(self, job: Job, client: Client, work: Work, load: Load, used: bool = True) -> None:
        """A client's reply arrives, to be used unless there are too few."""
        self.bytes_down += sum(load.down.values())
        self.bytes_up += load.up
        if not used:
            return
        samples = int(client.samples)
        first = samples if load.first_gradient else 0
        self.gradients += job.local.of(client.id).evaluations(work.steps, samples) + first
        self.seen.add(client.id)
        self.replies += 1

    def seen_after(self, rounds: int, clients: int) -> float:
        """How many clients will have replied after so many rounds."""
        if rounds <= self.rounds or len(self.seen) == clients:
            return float(len(self.seen))
        share = self.replies / self.rounds / clients
        return clients * (1 - (1 - min(share, 1)) ** rounds)


def in_rounds(
    method: Method,
    job: Job,
    sampler: Sampler,
    rounds: int,
    load: Load,
    pace: RoundPace,
    fleet: Fleet | None,
) -> Foreseen:
    """The first rounds of a synchronous run."""
    roster, found = job.roster, Foreseen()
    most = (LOOKED_AT if fleet is None else TIMED) // len(roster)
    drawn = 1 if _all_alike(job, sampler, fleet) else max(1, min(rounds, DRAWN, most))
    now = 0.0
    for t in range(drawn):
        who = All() if t == 0 and method.starts_with_all else sampler
        if fleet is None:
            cohort = who.draw(roster, job.seed, t)
            outing = without_clock(job, method, cohort, t)
        else:
            now, cohort = _present(who, job, fleet, t, now)
            if math.isinf(now):
                break
            outing = on_the_clock(job, method, cohort, t, fleet, pace, now, load)
            now = _over(fleet, outing.over, now)
            found.seconds = now
        found.rounds += 1
        found.asked += len(cohort)
        found.bytes_down += sum(outing.wasted_down.values())
        for client, work in outing.used.items():
            found.take(job, client, work, load, used=len(outing.used) >= pace.min_replies)
    return found


def as_they_arrive(
    method: Method,
    job: Job,
    sampler: Sampler,
    rounds: int,
    load: Load,
    pace: AsTheyArrive,
    fleet: Fleet,
) -> Foreseen:
    """The first replies of an asynchronous run."""
    roster, found = job.roster, Foreseen()
    at_once = concurrency(pace, sampler, len(roster)) or len(roster)
    per_round = at_once if pace.replies is None else pace.replies
    down = sum(load.down.values())
    flights = Flights(fleet, fleet.reading(down), fleet.sending(load.up))
    under_way: dict[int, tuple[Client, Work]] = {}

    def go_on(k: int) -> None:
        who: int | None = k
        if k == ANYBODY:
            who = flights.pick()
        elif not flights.is_available(k):
            who = None
        if who is None:
            flights.wake(k)
            return
        cohort: Cohort = {roster.ids[who]: 1}
        turn = flights.launched
        ((client, work),) = job.work(method, cohort, found.rounds, turn=turn).items()
        solver = job.local.of(client.id)
        flights.launch(who, units(fleet, client, solver, work.steps, load))
        under_way[turn] = client, work

    everyone = at_once == len(roster)
    for k in range(at_once):
        go_on(k if everyone else ANYBODY)
    while found.rounds < max(1, min(rounds, DRAWN, TIMED // per_round)) and len(flights):
        flight = flights.land()
        if flight.outcome == WAKES:
            go_on(flight.k)
            continue
        client, work = under_way.pop(flight.number)
        if flight.outcome == ARRIVES:
            found.take(job, client, work, load)
        elif flight.end >= flight.computing:
            found.bytes_down += down
        found.asked += 1
        found.rounds, found.seconds = found.asked // per_round, flights.now
        flights.free(flight.k)
        go_on(flight.k if everyone else ANYBODY)
    return found


def _all_alike(job: Job, sampler: Sampler, fleet: Fleet | None) -> bool:
    """Whether every round is as the first."""
    solvers = [job.local.of(id) for id in job.roster.ids[:1]]
    amounts = [getattr(each, unit, None) for each in solvers for unit in ("epochs", "steps")]
    steady = fleet is None or (fleet.reliable and not fleet.jitter.any())
    drawn = job.limit is not None or any(isinstance(each, RandomAmount) for each in amounts)
    return isinstance(sampler, All) and steady and not drawn


def _present(
    sampler: Sampler, job: Job, fleet: Fleet, round: int, now: float
) -> tuple[float, Cohort]:
    """Who is asked, and when: the server waits while nobody is there, for ever if need be."""
    if fleet.steady:
        return now, sampler.draw(job.roster, job.seed, round)
    there = fleet.available(now)
    if not there.any():
        now = float(fleet.next_available(now).min())
        there = fleet.available(now)
    return now, sampler.draw(job.roster, job.seed, round, there)


def _over(fleet: Fleet, over: float, now: float) -> float:
    """When the next round begins: if nobody worked, when someone else comes."""
    if over != now or fleet.steady:
        return over
    soon = float(fleet.next_available(now)[~fleet.available(now)].min(initial=math.inf))
    return soon if math.isfinite(soon) else over
