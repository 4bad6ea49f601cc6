"""What an experiment will cost, before it runs: gradients, bytes and the clients' states.

The cohorts are the run's own, since they are functions of the seed. What travels is found by
letting a method work once on a model of two parameters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text

from undrift.clients import ClientStates, Roster
from undrift.data.federated import FederatedData
from undrift.engines.base import LAST, Job, bytes_of
from undrift.losses import Losses
from undrift.methods.base import INITIAL, NUMBER, Method, Setting
from undrift.problem import Client, LocalResult, Named
from undrift.runs.building import build_local, build_methods, build_sampler
from undrift.sampling import All, Sampler
from undrift.solvers import SGD, Solver
from undrift.training import shared_sampler
from undrift.units import short, size

if TYPE_CHECKING:
    from undrift.runs.experiment import Experiment

DRAWN = 200
"""Cohorts of so many rounds are drawn; more rounds cost as much as these on average."""
LOOKED_AT = 2_000_000
"""… but no more than this many clients are looked at in all."""
PROBE = 2


@dataclass(frozen=True)
class Traffic:
    """What travels between the server and one client in a round, and what the client keeps.

    Vectors count in units of P parameters; `numbers` are single numbers.
    """

    down_vectors: int
    down_numbers: int
    up_vectors: int
    up_numbers: int
    kept_vectors: int
    kept_numbers: int
    first_gradient: bool = False
    """whether a client computes its full gradient at the start"""


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
        traffic = traffic_of(method, last)
        cohort, gradients, seen = _work(method, job, shared, experiment.rounds, traffic)
        down = traffic.down_vectors * parameters * itemsize + 8 * traffic.down_numbers + buffers
        up = traffic.up_vectors * parameters * itemsize + 8 * traffic.up_numbers + buffers
        kept = (traffic.kept_vectors * parameters + traffic.kept_numbers) * itemsize
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


def traffic_of(method: Method, last: bool = False) -> Traffic:
    """What a method sends, uploads and keeps, by trying it on a model of two parameters."""
    kinds = method.kept() | ({LAST: INITIAL} if last else {})
    kept_vectors = sum(kind != NUMBER for kind in kinds.values())
    kept_numbers = len(kinds) - kept_vectors
    x = torch.zeros(PROBE)
    try:
        server = method.begin(method.init(x.clone()), lambda purpose: 0.0)
        down = method.download(server)
        client = Client(id=0, samples=1.0, q=1.0, scale=1.0, draws=1)
        mine = ClientStates(method.kept(), x).first()
        problem = method.problem(down, mine, client)
        asked: Any = {each: torch.zeros(PROBE) for each in problem.ask}
        result = LocalResult(
            x=torch.ones(PROBE), steps=1, expected=1, progress=1.0, rate=1.0, **asked
        )
        upload, _ = method.finish(down, mine, result, client)
        sent, back = bytes_of(down), bytes_of(upload)
        sent_vectors, back_vectors = (_vectors(each) for each in (down, upload))
        return Traffic(
            sent_vectors,
            len(sent) - sent_vectors,
            back_vectors,
            len(back) - back_vectors,
            kept_vectors,
            kept_numbers,
            "first_gradient" in problem.ask,
        )
    except Exception:  # a user's method that cannot do without a real model: what it declares
        return Traffic(
            len(method.sends), 0, len(method.sums()), 0, kept_vectors, kept_numbers, False
        )


def _vectors(values: Named) -> int:
    return sum(isinstance(value, torch.Tensor) and value.numel() > 1 for _, value in values.items())


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
                evaluations(job.local.of(client.id), int(client.samples), work.steps)
                + (int(client.samples) if traffic.first_gradient else 0)
                for client, work in job.work(method, cohort, t).items()
            )
        gradients += by_cohort[known]
    share = clients / drawn / len(roster)
    total = float(len(seen))
    if drawn < rounds and len(seen) < len(roster):
        total = len(roster) * (1 - (1 - share) ** rounds)
    return clients / drawn, gradients / drawn, total


def evaluations(solver: Solver, samples: int, steps: int) -> int:
    """How many gradients of single samples so many steps need, if nothing ends them early."""
    size = getattr(solver, "batch_size", None)
    if size is None or size >= samples:
        return steps * samples
    if getattr(solver, "fresh_batches", False):
        return steps * size
    epochs, rest = divmod(steps, -(-samples // size))
    return epochs * samples + rest * size
