"""Dispatching a cohort: who does how many steps, whose replies the server uses, and what is lost.

All of this is known before any client trains, because times on the virtual clock do not depend on
what clients compute. Only the clients whose replies will be used need to be trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from undrift.core.method import Method
from undrift.core.problem import Client, Work
from undrift.core.records import Span
from undrift.core.sampling import Cohort
from undrift.devices import ARRIVES, Fleet, share_done
from undrift.engines.base import Job
from undrift.local.solvers import Solver
from undrift.loops.paces import RoundPace
from undrift.loops.planning import WorkPlanner

SLACK = 1 + 1e-12
"""Factor on times and amounts that are turned into steps: a rounding error must not cost a step."""
LARGEST_EXACT = 2.0**53
"""Floats represent all integers up to here; an infinite speed would give more."""


@dataclass
class Dispatch:
    """What becomes of a cohort that is sent to work; times are in virtual seconds."""

    used: dict[Client, Work]
    """the clients whose replies the server uses, with their work"""
    absent: list[Hashable]
    """clients that do no step at all"""
    lost: dict[Hashable, str] = field(default_factory=dict)
    """clients that work, but whose replies are not used, with the reason"""
    wasted_steps: int = 0
    wasted_gradients: int = 0
    wasted_down: Counter[str] = field(default_factory=Counter)
    """bytes that lost clients received, by tensor"""
    over: float = 0.0
    """when the round is over"""
    busy: float = 0.0
    """seconds that all clients worked, from the start of the round until they replied or stopped"""
    idle: float = 0.0
    """seconds that clients whose replies are used waited for the end of the round"""
    spans: list[Span] = field(default_factory=list)

    @property
    def damaged(self) -> set[Hashable]:
        """The clients whose devices damage their replies."""
        return {client.id for client, work in self.used.items() if work.damaged}


def dispatch_without_clock(
    planner: WorkPlanner, method: Method, cohort: Cohort, round: int
) -> Dispatch:
    """The dispatch of a run without devices: every reply is used, and no time passes."""
    work = planner.work(method, cohort, round)
    return Dispatch(work, _absent(cohort, work))


@dataclass(frozen=True)
class FixedCost:
    """The part of a client's cost in a round that does not depend on its number of steps."""

    down: Mapping[str, int]
    up: Mapping[str, int]
    """bytes received and sent, by tensor"""
    first_gradient: bool
    """whether the client computes its full gradient before the first step"""
    gradients_per_step: int = 1
    """how many gradients a step of the local work stands for"""
    down_by: Mapping[Hashable, Mapping[str, int]] = field(default_factory=dict)
    """by client, the bytes received, if they differ from `down`"""

    def down_for(self, client: Hashable) -> Mapping[str, int]:
        """The bytes that a client receives, by tensor."""
        return self.down_by.get(client, self.down)


def compute_units(
    fleet: Fleet, client: Client, solver: Solver, steps: int, cost: FixedCost
) -> float:
    """How much a device computes for a number of steps, in samples or steps as its speed is."""
    samples = int(client.samples)
    if fleet.unit == "samples":
        extra = samples if cost.first_gradient else 0
        return cost.gradients_per_step * solver.evaluations(steps, samples) + extra
    return cost.gradients_per_step * steps + (
        solver.steps_within(samples, samples) if cost.first_gradient else 0
    )


def work_done(
    job: Job, client: Client, work: Work, cost: FixedCost, share: float
) -> tuple[int, int]:
    """The steps and the gradients of single samples of a client that stopped early.

    `share` is the part of its computing that it did, in [0, 1].
    """
    solver, samples = job.local.of(client.id), int(client.samples)
    first = samples if cost.first_gradient else 0
    gradients = share * (cost.gradients_per_step * solver.evaluations(work.steps, samples) + first)
    for_steps = (gradients * SLACK - first) / cost.gradients_per_step
    steps = min(work.steps, solver.steps_within(for_steps, samples)) if for_steps > 0 else 0
    return steps, int(gradients)


def dispatch_with_clock(
    planner: WorkPlanner,
    method: Method,
    cohort: Cohort,
    round: int,
    fleet: Fleet,
    pace: RoundPace,
    now: float,
    cost: FixedCost,
) -> Dispatch:
    """The dispatch of a cohort that starts at time `now`; the pace decides when the round ends."""
    job = planner.job
    roster = job.roster
    up = sum(cost.up.values())

    def received(clients: Iterable[Hashable]) -> np.ndarray:
        """The bytes that each of these clients receives."""
        return np.array([sum(cost.down_for(id).values()) for id in clients], dtype=float)

    places = np.array([roster.position[id] for id in cohort], dtype=np.int64)
    factor, reading, sending = (
        dict(zip(cohort, values.tolist(), strict=True))
        for values in (
            fleet.factor(round, places),
            fleet.reading(received(cohort), places),
            fleet.sending(up, places),
        )
    )
    budget = pace.budget

    def within(client: Client, solver: Solver, steps: int) -> int:
        """How many steps a device can do by the deadline, with time left to send its upload."""
        assert budget is not None
        k = roster.position[client.id]
        # The round's factor slows down all parts of a trip: scale the budget once instead.
        seconds = budget / factor[client.id] - reading[client.id] - sending[client.id]
        units = seconds * float(fleet.speed[k]) * SLACK
        units -= compute_units(fleet, client, solver, 0, cost)
        if units <= 0:
            return 0
        units /= cost.gradients_per_step
        if fleet.unit == "samples":
            return solver.steps_within(min(units, LARGEST_EXACT), int(client.samples))
        return int(min(units, steps))

    work = planner.work(method, cohort, round, within=None if budget is None else within)
    who = np.array([roster.position[client.id] for client in work], dtype=np.int64)
    computed = np.array(
        [
            compute_units(fleet, client, job.local.of(client.id), own.steps, cost)
            for client, own in work.items()
        ],
        dtype=float,
    )
    down = received(client.id for client in work)
    transfers = fleet.reading(down, who), fleet.sending(up, who)
    trips = fleet.trips(who, computed, now, *transfers, round)
    used, over = pace.closes(now, trips.end, trips.outcome == ARRIVES)
    absent = _absent(cohort, work)
    if absent and budget is not None:
        # The server does not know that absent clients will not reply, so it waits until the
        # deadline even if all others have replied.
        over = now + budget
    # Clients that are still at work stop when the round is over.
    end = np.minimum(trips.end, over)
    share = share_done(trips.computing, trips.sending, end)
    damaged = fleet.damaged(round, who)

    found = Dispatch({}, absent, over=over)
    found.busy = float((end - now).sum())
    found.idle = float((over - end[used]).sum())
    for place, (client, own) in enumerate(work.items()):
        outcome = "replied"
        if used[place]:
            found.used[client] = replace(own, damaged=bool(damaged[place]))
        else:
            # A client that fails after the end of the round is late: nobody saw it fail.
            late = trips.outcome[place] == ARRIVES or trips.end[place] > over
            outcome = found.lost[client.id] = "late" if late else str(trips.outcome[place])
            steps, gradients = work_done(job, client, own, cost, float(share[place]))
            found.wasted_steps += steps
            found.wasted_gradients += gradients
            if end[place] >= trips.computing[place]:  # it had received everything
                found.wasted_down.update(cost.down_for(client.id))
        computes, sends, stops = (float(at[place]) for at in (trips.computing, trips.sending, end))
        found.spans.append(Span(client.id, now, computes, sends, stops, outcome).until(stops))
    return found


def _absent(cohort: Cohort, work: Mapping[Client, Work]) -> list[Hashable]:
    """The clients of a cohort that have no work."""
    working = {client.id for client in work}
    return [id for id in cohort if id not in working]
