"""Forecast a run: execute its own loop with an engine that does not train.

Cohorts, work and devices are functions of the seed, so the forecast rounds are those of the real
run. Cost estimates and advice use it.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from undrift.core.clients import ClientStates
from undrift.core.evaluation import Evaluation
from undrift.core.losses import Federation
from undrift.core.messages import Assignment, Reply, buffer_bytes, bytes_of
from undrift.core.method import Method
from undrift.core.problem import Keep, Upload
from undrift.core.sampling import All
from undrift.core.targets import PARTS
from undrift.engines.base import Job, SimulationEngine
from undrift.local.amounts import RandomAmount
from undrift.loops import Asynchronous, Loop, RunSpec, loop
from undrift.methods.traffic import Traffic

FORECAST_ROUNDS = 200
"""Rounds that are forecast at most; later rounds are like these on average."""
FORECAST_CLIENTS = 200_000
"""Assignments that are forecast at most, so that large federations take seconds."""


@dataclass
class Forecast:
    """Totals over the forecast rounds."""

    rounds: int = 0
    asked: int = 0
    """assignments"""
    gradients: int = 0
    """gradients of single samples, of the clients whose replies arrive"""
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    """virtual time at the end of the last round"""
    replies: int = 0
    seen: set[Hashable] = field(default_factory=set)
    """clients of which a reply was used"""
    visits: Counter[Hashable] = field(default_factory=Counter)
    """the number of used replies of each client"""
    steps: dict[Hashable, list[int]] = field(default_factory=dict)
    """the steps of each client, one entry per assignment"""
    staleness: Counter[int] = field(default_factory=Counter)
    """the number of replies by their age in updates, for asynchronous runs"""
    busy: float = 0.0
    idle: float = 0.0
    """virtual seconds that clients work and that they wait for others, summed over clients"""

    def clients_after(self, rounds: int, clients: int) -> float:
        """The expected number of clients with at least one used reply after `rounds` rounds."""
        if rounds <= self.rounds or len(self.seen) == clients:
            return float(len(self.seen))
        share = self.replies / self.rounds / clients
        return clients * (1 - (1 - min(share, 1)) ** rounds)


def forecast_run(
    method: Method,
    ids: list[Hashable],
    sizes: Tensor,
    parameters: Tensor,
    buffers: Mapping[str, Tensor],
    traffic: Traffic,
    rounds: int,
    drawn: int = FORECAST_ROUNDS,
    **options: Any,
) -> tuple[Forecast, Loop]:
    """Forecast the first rounds of a method's run; returns the totals and the loop.

    Parameters
    ----------
    method
        the method
    ids, sizes
        the clients and their numbers of samples
    parameters, buffers
        tensors of the model's shapes; their values do not matter
    traffic
        what the method sends
    rounds
        the rounds of the run
    drawn
        the rounds to forecast at most
    options
        further fields of the run's `RunSpec`
    """
    frozen = copy(method)
    frozen.fold = lambda server, replies: server  # type: ignore[method-assign]
    losses = _KnownClients(ids, sizes, parameters, buffers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real run warns
        spec = RunSpec(
            frozen,
            losses,
            rounds=rounds + 1,
            evaluation=Evaluation(every=rounds + 2),
            **options,
        )
        run = loop(spec, lambda losses, job: IdleEngine(job, traffic, parameters))
    found = Forecast()
    assert isinstance(run.engine, IdleEngine)
    # Asynchronous trips are simulated one by one, about ten times as slowly as a round's cohort.
    asked = run.per_round * 10 if isinstance(run, Asynchronous) else len(ids)
    # A client's first download is sent whole, and later ones compressed.
    alike = rounds_alike(run) and run.downloads is None
    most = 1 if alike else max(1, min(rounds, drawn, FORECAST_CLIENTS // asked))
    while found.rounds < most and run.stopped is None:
        record = run.step()
        found.rounds += 1
        found.asked += len(record.cohort)
        found.gradients += record.gradients
        found.bytes_down += sum(record.bytes_down.values())
        found.bytes_up += sum(record.bytes_up.values())
        found.seconds = record.virtual_seconds
        replied = record.replied
        found.replies += len(replied)
        found.seen.update(replied)
        found.visits.update(replied)
        found.staleness.update(record.staleness)
        found.busy += record.busy_seconds
        found.idle += record.idle_seconds
    found.steps = dict(run.engine.steps)
    return found, run


class _KnownClients(Federation):
    """The clients and the model of a forecast run, which needs no losses."""

    def __init__(
        self,
        ids: Sequence[Hashable],
        sizes: Tensor,
        parameters: Tensor,
        buffers: Mapping[str, Tensor],
    ):
        self.ids = ids
        self.sizes = sizes
        self.dimension = parameters.numel()
        self._parameters = parameters
        self._buffers = buffers

    def initial(self) -> Tensor:
        return self._parameters

    def initial_buffers(self) -> dict[str, Tensor]:
        return dict(self._buffers)

    def fingerprint(self) -> str:
        return "none: nothing of a forecast is kept"

    @property
    def parts(self) -> tuple[str, ...]:
        return PARTS


class IdleEngine(SimulationEngine):
    """An engine that returns empty replies with the counts of the work, without doing it."""

    def __init__(self, job: Job, traffic: Traffic, parameters: Tensor):
        self.job = job
        self._up = traffic.bytes_up(parameters.numel(), parameters.element_size())
        self._vector = job.uploads.vector_bytes(parameters.numel(), parameters.dtype)
        self._first_gradient = traffic.first_gradient
        self._gradients_per_step = traffic.gradients_per_step
        self.steps: defaultdict[Hashable, list[int]] = defaultdict(list)

    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        vectors = {name: self._vector for name in method.sums() if name in self._up}
        for assignment in assignments:
            client, work = assignment.client, assignment.work
            samples, travels = int(client.samples), buffer_bytes(assignment.buffers)
            solver = self.job.local.of(client.id)
            first = samples if self._first_gradient else 0
            gradients = self._gradients_per_step * solver.evaluations(work.steps, samples)
            self.steps[client.id].append(work.steps)
            yield Reply(
                client=client,
                upload=Upload(),
                keep=Keep(),
                buffers={},
                steps=work.steps,
                evaluations=gradients + first,
                complete=work.steps >= work.expected,
                down=bytes_of(assignment.download) | travels,
                up=self._up | vectors | travels,
                wrong="damaged" if work.damaged else None,
            )


def shape_of(model: torch.nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Zero tensors of the shapes of a model's flat parameters and of its buffers."""
    own = [each for each in model.parameters() if each.requires_grad]
    like = own[0].dtype if own else torch.float32
    parameters = torch.zeros(sum(each.numel() for each in own), dtype=like)
    return parameters, {name: torch.zeros_like(each) for name, each in model.named_buffers()}


def rounds_alike(run: Loop) -> bool:
    """Whether every round is like the first: same cohort, same work, same time."""
    in_rounds = not run.conditions().asynchronous
    return isinstance(run.sampler, All) and in_rounds and work_is_constant(run)


def work_is_constant(run: Loop) -> bool:
    """Whether a client does the same work in every round in which it takes part."""
    solver, fleet = run.local.of(run.roster.ids[0]), run.fleet
    amounts = [getattr(solver, unit, None) for unit in ("epochs", "steps")]
    drawn = any(isinstance(each, RandomAmount) or callable(each) for each in amounts)
    steady = fleet is None or (fleet.reliable and not fleet.jitter.any())
    drawn = drawn or run.method.draws_steps
    return steady and run.planner.limit is None and not drawn
