"""What a run will do, before anyone trains: its own loop, with an engine that does not train.

All draws are functions of the seed, so the rounds that are looked at are those of the run.
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

DRAWN = 200
"""So many rounds are drawn; more rounds are as these on average."""
LOOKED_AT = 200_000
"""… but no more than so many clients are looked at in all, a tenth of it one by one."""


@dataclass
class Foreseen:
    """What some rounds come to."""

    rounds: int = 0
    asked: int = 0
    """clients that were sent to work"""
    gradients: int = 0
    """of single samples, of those whose replies arrive"""
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    """on the virtual clock"""
    replies: int = 0
    seen: set[Hashable] = field(default_factory=set)
    """clients whose reply was used"""
    visits: Counter[Hashable] = field(default_factory=Counter)
    """how often each of them was"""
    steps: dict[Hashable, list[int]] = field(default_factory=dict)
    """how many steps each client did, every time it worked"""
    staleness: Counter[int] = field(default_factory=Counter)
    """how many replies were so many updates old, where they are taken in as they arrive"""
    busy: float = 0.0
    idle: float = 0.0
    """virtual seconds of clients at work, and waiting for others, added up"""

    def seen_after(self, rounds: int, clients: int) -> float:
        """How many clients will have replied after so many rounds."""
        if rounds <= self.rounds or len(self.seen) == clients:
            return float(len(self.seen))
        share = self.replies / self.rounds / clients
        return clients * (1 - (1 - min(share, 1)) ** rounds)


def foresee(
    method: Method,
    ids: list[Hashable],
    sizes: Tensor,
    parameters: Tensor,
    buffers: Mapping[str, Tensor],
    traffic: Traffic,
    rounds: int,
    drawn: int = DRAWN,
    **options: Any,
) -> tuple[Foreseen, Loop]:
    """The first rounds of a method's run, and the loop that did them.

    `parameters` and `buffers` are those of the model, whatever their values; so many rounds are
    `drawn` at most; `options` are those of a loop.
    """
    still = copy(method)
    still.fold = lambda server, replies: server  # type: ignore[method-assign]
    losses = _KnownClients(ids, sizes, parameters, buffers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself will warn
        spec = RunSpec(
            still,
            losses,
            rounds=rounds + 1,
            evaluation=Evaluation(every=rounds + 2),
            **options,
        )
        run = loop(spec, lambda losses, job: Idle(job, traffic, parameters))
    found = Foreseen()
    assert isinstance(run.engine, Idle)
    asked = run.per_round * 10 if isinstance(run, Asynchronous) else len(ids)
    most = 1 if all_alike(run) else max(1, min(rounds, drawn, LOOKED_AT // asked))
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
    """The clients and the model of a run that nobody trains."""

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


class Idle(SimulationEngine):
    """Says what work comes to without doing it."""

    def __init__(self, job: Job, traffic: Traffic, parameters: Tensor):
        self.job = job
        self._up = traffic.bytes_up(parameters.numel(), parameters.element_size())
        self._first_gradient = traffic.first_gradient
        self.steps: defaultdict[Hashable, list[int]] = defaultdict(list)

    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        for assignment in assignments:
            client, work = assignment.client, assignment.work
            samples, travels = int(client.samples), buffer_bytes(assignment.buffers)
            solver = self.job.local.of(client.id)
            first = samples if self._first_gradient else 0
            self.steps[client.id].append(work.steps)
            yield Reply(
                client=client,
                upload=Upload(),
                keep=Keep(),
                buffers={},
                steps=work.steps,
                evaluations=solver.evaluations(work.steps, samples) + first,
                complete=work.steps >= work.expected,
                down=bytes_of(assignment.download) | travels,
                up=self._up | travels,
                wrong="damaged" if work.damaged else None,
            )


def shape_of(model: torch.nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Vectors that are as large as a model's parameters and buffers."""
    own = [each for each in model.parameters() if each.requires_grad]
    like = own[0].dtype if own else torch.float32
    parameters = torch.zeros(sum(each.numel() for each in own), dtype=like)
    return parameters, {name: torch.zeros_like(each) for name, each in model.named_buffers()}


def all_alike(run: Loop) -> bool:
    """Whether every round is as the first."""
    in_rounds = not run.conditions().asynchronous
    return isinstance(run.sampler, All) and in_rounds and same_work(run)


def same_work(run: Loop) -> bool:
    """Whether a client does the same work whenever it takes part."""
    solver, fleet = run.local.of(run.roster.ids[0]), run.fleet
    amounts = [getattr(solver, unit, None) for unit in ("epochs", "steps")]
    drawn = any(isinstance(each, RandomAmount) or callable(each) for each in amounts)
    steady = fleet is None or (fleet.reliable and not fleet.jitter.any())
    return steady and run.planner.limit is None and not drawn
