"""What an experiment will cost, before it runs: gradients, bytes and the clients' states.

The cohorts are the run's own, since they are functions of the seed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text

from undrift.clients import Roster
from undrift.data.federated import FederatedData
from undrift.engines.base import Job
from undrift.losses import Losses
from undrift.methods.base import Method, Setting
from undrift.runs.building import build_local, build_methods, build_sampler
from undrift.sampling import All, Sampler
from undrift.solvers import SGD
from undrift.traffic import Traffic, traffic_of
from undrift.training import shared_sampler
from undrift.units import short, size

if TYPE_CHECKING:
    from undrift.runs.experiment import Experiment

DRAWN = 200
"""Cohorts of so many rounds are drawn; more rounds cost as much as these on average."""
LOOKED_AT = 2_000_000
"""… but no more than this many clients are looked at in all."""


@dataclass(frozen=True)
class MethodCost:
    """What one method costs with one seed; a round is the mean over its rounds."""

    label: str
    cohort: float
    """clients per round"""
    gradients: float
    """gradients of single samples per round"""
    bytes_down: float
    bytes_up: float
    """per round"""
    seen: float
    """how many clients will have taken part"""
    state: float
    """bytes of the states of those clients"""


@dataclass(frozen=True)
class Cost:
    """What an experiment costs; every seed costs about the same."""

    rounds: int
    seeds: int
    clients: int
    samples: int
    parameters: int
    methods: tuple[MethodCost, ...]
    at_most: bool = False
    """whether a target or a tolerance may end work early"""

    @property
    def gradients(self) -> float:
        """Gradients of single samples in all."""
        return self.seeds * self.rounds * sum(each.gradients for each in self.methods)

    @property
    def bytes(self) -> float:
        """Bytes down and up in all."""
        travel = sum(each.bytes_down + each.bytes_up for each in self.methods)
        return self.seeds * self.rounds * travel

    @property
    def state(self) -> float:
        """Bytes of client states in all stores."""
        return self.seeds * sum(each.state for each in self.methods)

    def as_dict(self) -> dict[str, Any]:
        """All numbers, with the totals."""
        return asdict(self) | {
            "gradients": self.gradients,
            "bytes": self.bytes,
            "state": self.state,
        }

    def __rich__(self) -> Group:
        return self.table()

    def table(self) -> Group:
        """For the terminal."""
        runs = "run" if self.seeds * len(self.methods) == 1 else "runs"
        head = (
            f"{len(self.methods)} × {self.seeds} {runs} of {self.rounds} rounds: {self.clients} "
            f"clients, {self.samples} samples, {self.parameters} parameters"
        )
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("method", overflow="fold")
        for name in ("cohort", "gradients", "down", "up", "gradients", "bytes", "state"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_row(
            "", "", *(Text(w, style="dim") for w in ("a round",) * 3 + ("in all",) * 2), ""
        )
        for each in self.methods:
            travel = each.bytes_down + each.bytes_up
            table.add_row(
                Text(each.label),
                f"{each.cohort:.3g}",
                short(each.gradients),
                size(each.bytes_down),
                size(each.bytes_up),
                short(self.seeds * self.rounds * each.gradients),
                size(self.seeds * self.rounds * travel),
                size(self.seeds * each.state),
            )
        most = "At most" if self.at_most else "In all"
        foot = (
            f"{most} {short(self.gradients)} gradients of a sample, {size(self.bytes)} down and "
            f"up, {size(self.state)} of client states on disk."
        )
        return Group(Text(head), Text(""), table, Text(""), Text(foot))


def estimate(
    experiment: Experiment, data: FederatedData | Losses, model: torch.nn.Module | Losses
) -> Cost:
    """What an experiment costs on its data, with a model or with the losses of a run."""
    if isinstance(model, Losses):
        parameters, itemsize = model.dimension, model.initial().element_size()
        buffers = sum(v.numel() * v.element_size() for v in model.initial_buffers().values())
    else:
        own = [p for p in model.parameters() if p.requires_grad]
        parameters, itemsize = sum(p.numel() for p in own), own[0].element_size() if own else 4
        buffers = sum(v.numel() * v.element_size() for v in model.buffers())
    sizes = data.sizes if isinstance(data, Losses) else data.train.sizes
    roster = Roster(data.ids, sizes, experiment.objective)
    methods = build_methods(experiment)
    shared = _shared_sampler(experiment, data, roster)
    local = {label: build_local(experiment, label) for label in methods}
    early = bool(experiment.target) or any(
        isinstance(each, SGD) and each.tolerance is not None for each in local.values()
    )
    last = bool({"all", "own"} & {*experiment.evaluation.models})
    found = []
    for label, method in methods.items():
        method.check(
            Setting(
                clients=len(roster),
                participation=shared.kind(roster),
                equal=roster.equal,
                takes_steps=local[label].takes_steps,
                buffers=buffers > 0,
            )
        )
        job = Job(roster, local[label], experiment.seeds[0])
        traffic = traffic_of(method)
        cohort, gradients, seen = _work(method, job, shared, experiment.rounds, traffic)
        down = sum(traffic.bytes_down(parameters, itemsize).values()) + buffers
        up = sum(traffic.bytes_up(parameters, itemsize).values()) + buffers
        vectors = traffic.kept_vectors + last
        kept = (vectors * parameters + traffic.kept_numbers) * itemsize
        found.append(
            MethodCost(label, cohort, gradients, cohort * down, cohort * up, seen, seen * kept)
        )
    return Cost(
        rounds=experiment.rounds,
        seeds=len(experiment.seeds),
        clients=len(roster),
        samples=int(sizes.sum()),
        parameters=parameters,
        methods=tuple(found),
        at_most=early,
    )


def _shared_sampler(experiment: Experiment, data: Any, roster: Roster) -> Sampler:
    """One sampler for all methods, checked against the clients there are."""
    methods = build_methods(experiment)
    cohort = build_sampler(experiment, methods)
    sizes = data.sizes if isinstance(data, Losses) else data.train.sizes
    clients: Any = SimpleNamespace(ids=data.ids, sizes=sizes)
    sampler = shared_sampler(cohort, methods.values(), clients, experiment.objective)
    sampler.check(roster)
    return sampler


def _work(
    method: Method, job: Job, sampler: Sampler, rounds: int, traffic: Traffic
) -> tuple[float, float, float]:
    """Clients and gradients per round, and how many clients will have taken part."""
    roster = job.roster
    if isinstance(sampler, All):
        drawn = 1
    else:
        drawn = max(1, min(rounds, DRAWN, LOOKED_AT // len(roster)))
    clients = gradients = 0
    seen: set[Any] = set()
    by_cohort: dict[Any, int] = {}
    for t in range(drawn):
        first = t == 0 and method.starts_with_all
        cohort = (All() if first else sampler).draw(roster, job.seed, t)
        seen.update(cohort)
        clients += len(cohort)
        known = tuple(cohort) if len(cohort) == len(roster) else t
        if known not in by_cohort:
            by_cohort[known] = sum(
                job.local.of(client.id).evaluations(work.steps, int(client.samples))
                + (int(client.samples) if traffic.first_gradient else 0)
                for client, work in job.work(method, cohort, t).items()
            )
        gradients += by_cohort[known]
    share = clients / drawn / len(roster)
    total = float(len(seen))
    if drawn < rounds and len(seen) < len(roster):
        total = len(roster) * (1 - (1 - share) ** rounds)
    return clients / drawn, gradients / drawn, total
