"""`WorkPlanner` plans the work of a round: how many steps each client of a cohort does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from undrift.core.method import Method
from undrift.core.problem import Client, Work
from undrift.core.sampling import Cohort
from undrift.engines.base import Job
from undrift.local.amounts import Unfinished
from undrift.local.solvers import Solver, call, require_known
from undrift.utils.errors import require_whole
from undrift.utils.keys import draw_of_round, keys

Limit = Unfinished | Mapping[Hashable, int | None] | Callable[[Hashable, int], int | None]
"""The most work a client can do in a round, in the unit of its local work (None: all of it): a
share of the cohort that does not finish, a mapping from client ids, or a function of (client id,
round), with rounds counted from 0."""
Within = Callable[[Client, Solver, int], int]
"""A function (client, solver, steps) → how many of the steps the client's device can do in time."""


@dataclass
class WorkPlanner:
    """Decides how many steps each client of a cohort does in a round.

    `limit` says which clients do less than their local work asks for.
    """

    job: Job
    limit: Limit | None = None

    def __post_init__(self) -> None:
        if isinstance(self.limit, Mapping):
            require_known("limit", self.limit, self.job.roster.position)

    def work(
        self,
        method: Method,
        cohort: Cohort,
        round: int,
        turn: int | None = None,
        within: Within | None = None,
    ) -> dict[Client, Work]:
        """The work of each client of a cohort; clients that can do no step are left out.

        The number of steps is what the local work asks for, cut by `limit` and by `within`, and
        then changed by the method. `turn` keys the random numbers; it is the round by default.
        """
        turn = round if turn is None else turn
        solvers = {id: self.job.local.of(id) for id in cohort}
        asked = {id: s.amount(id, round, self.job.seed, turn) for id, s in solvers.items()}
        limits = self._limits(asked, round)
        clients, full, managed = [], [], []
        for id, draws in cohort.items():
            client, solver = self.job.roster.client(id, draws), solvers[id]
            samples = int(client.samples)
            whole = steps = solver.steps_of(asked[id], samples)
            amount = limits.get(id)
            if amount is not None:
                steps = min(steps, solver.steps_of(amount, samples)) if amount else 0
            if within is not None and steps:
                steps = min(steps, within(client, solver, steps))
            if steps:
                clients.append(client)
                full.append(whole)
                managed.append(steps)
        if not clients:
            return {}
        rate, positions = self.job.local.rate(round), self.job.roster.position
        hashed = self.job.roster.hashes[[positions[client.id] for client in clients]]
        own = keys(self.job.seed, "batches", turn, hashed).tolist()
        draw = draw_of_round(self.job.seed, round)
        return {
            client: Work(
                client=client.id,
                round=round,
                turn=turn,
                steps=steps,
                # If the method sets its own number of steps, that number is expected.
                expected=whole if steps == could else steps,
                rate=rate,
                key=key,
            )
            for client, steps, could, whole, key in zip(
                clients, method.steps(managed, draw), managed, full, own, strict=True
            )
        }

    def _limits(self, asked: Mapping[Hashable, int], round: int) -> Mapping[Hashable, int | None]:
        """The limits of the clients in a round, in the unit of their work; None for no limit."""
        limit = self.limit
        if limit is None or isinstance(limit, Mapping):
            return limit or {}
        if isinstance(limit, Unfinished):
            return limit.managed(asked, round, self.job.seed)
        found = {id: call("limit", limit, id, round) for id in asked}
        for id, amount in found.items():
            if amount is not None:
                require_whole(f"The limit of client {id!r} in round {round + 1}", amount, 0)
        return found
