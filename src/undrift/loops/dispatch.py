"""A round before anyone has trained: who does how much, and whose replies come in time.

Only the clients whose replies will be used need to train.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
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


@dataclass
class Outing:
    """What becomes of a cohort that is sent to work."""

    used: dict[Client, Work]
    """those whose replies will be used"""
    absent: list[Hashable]
    """those that manage no work"""
    lost: dict[Hashable, str] = field(default_factory=dict)
    """those whose work comes to nothing, with the reason"""
    wasted_steps: int = 0
    wasted_gradients: int = 0
    wasted_down: Counter[str] = field(default_factory=Counter)
    """bytes that those received who are lost"""
    over: float = 0.0
    """when the round is over"""
    busy: float = 0.0
    idle: float = 0.0
    spans: list[Span] = field(default_factory=list)

    @property
    def damaged(self) -> set[Hashable]:
        """The clients whose devices damage their reply."""
        return {client.id for client, work in self.used.items() if work.damaged}


def without_clock(planner: WorkPlanner, method: Method, cohort: Cohort, round: int) -> Outing:
    """Everyone's reply comes, at no time."""
    work = planner.work(method, cohort, round)
    return Outing(work, _absent(cohort, work))


@dataclass(frozen=True)
class Load:
    """What a client receives, computes and sends, besides its steps."""

    down: Mapping[str, int]
    up: Mapping[str, int]
    """bytes received and sent, by tensor"""
    first_gradient: bool
    """whether it computes its full gradient first"""


def units(fleet: Fleet, client: Client, solver: Solver, steps: int, load: Load) -> float:
    """How much a device computes for so many steps, in the unit of its speed."""
    samples = int(client.samples)
    if fleet.unit == "samples":
        extra = samples if load.first_gradient else 0
        return solver.evaluations(steps, samples) + extra
    return steps + (solver.steps_within(samples, samples) if load.first_gradient else 0)


def spent(job: Job, client: Client, work: Work, load: Load, done: float) -> tuple[int, int]:
    """The steps and gradients of a client that did a share of its computing."""
    solver, samples = job.local.of(client.id), int(client.samples)
    first = samples if load.first_gradient else 0
    gradients = done * (solver.evaluations(work.steps, samples) + first)
    room = gradients * (1 + 1e-12) - first
    steps = min(work.steps, solver.steps_within(room, samples)) if room > 0 else 0
    return steps, int(gradients)


def on_the_clock(
    planner: WorkPlanner,
    method: Method,
    cohort: Cohort,
    round: int,
    fleet: Fleet,
    pace: RoundPace,
    now: float,
    load: Load,
) -> Outing:
    """What becomes of a cohort that sets out now, until the pace ends the round."""
    job = planner.job
    roster = job.roster
    reading = fleet.reading(sum(load.down.values()))
    sending = fleet.sending(sum(load.up.values()))
    places = np.array([roster.position[id] for id in cohort], dtype=np.int64)
    factor = dict(zip(cohort, fleet.factor(round, places).tolist(), strict=True))
    budget = pace.budget

    def within(client: Client, solver: Solver, steps: int) -> int:
        """How many steps a device manages by the deadline."""
        assert budget is not None
        k = roster.position[client.id]
        seconds = budget / factor[client.id] - float(reading[k]) - float(sending[k])
        # A rounding error must not cost a whole step.
        room = seconds * float(fleet.speed[k]) * (1 + 1e-12)
        room -= units(fleet, client, solver, 0, load)
        if room <= 0:
            return 0
        if fleet.unit == "samples":
            return solver.steps_within(min(room, 2.0**53), int(client.samples))
        return int(min(room, steps))

    work = planner.work(method, cohort, round, within=None if budget is None else within)
    who = np.array([roster.position[client.id] for client in work], dtype=np.int64)
    computed = np.array(
        [
            units(fleet, client, job.local.of(client.id), own.steps, load)
            for client, own in work.items()
        ],
        dtype=float,
    )
    trips = fleet.trips(who, computed, now, reading[who], sending[who], round)
    used, over = pace.closes(now, trips.end, trips.outcome == ARRIVES)
    absent = _absent(cohort, work)
    if absent and budget is not None:
        over = now + budget  # the server does not know that they will not reply
    end = np.minimum(trips.end, over)
    done = share_done(trips.computing, trips.sending, end)
    damaged = fleet.damaged(round, who)

    found = Outing({}, absent, over=over)
    found.busy = float((end - now).sum())
    found.idle = float((over - end[used]).sum())
    for place, (client, own) in enumerate(work.items()):
        outcome = "replied"
        if used[place]:
            found.used[client] = replace(own, damaged=bool(damaged[place]))
        else:
            late = trips.outcome[place] == ARRIVES or trips.end[place] > over
            outcome = found.lost[client.id] = "late" if late else str(trips.outcome[place])
            steps, gradients = spent(job, client, own, load, float(done[place]))
            found.wasted_steps += steps
            found.wasted_gradients += gradients
            if end[place] >= trips.computing[place]:
                found.wasted_down.update(load.down)
        moments = (float(at[place]) for at in (trips.computing, trips.sending, end))
        computes, sends, stops = moments
        found.spans.append(Span(client.id, now, computes, sends, stops, outcome).until(stops))
    return found


def _absent(cohort: Cohort, work: Mapping[Client, Work]) -> list[Hashable]:
    working = {client.id for client in work}
    return [id for id in cohort if id not in working]
