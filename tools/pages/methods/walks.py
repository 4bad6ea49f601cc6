"""The runs behind the figures: method, local work, and the point where theory predicts the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tools.pages.methods import theory_points
from tools.pages.methods.two_clients import EQUAL_STEPS, LR, STEPS, two_clients
from undrift.core.clients import Roster
from undrift.core.evaluation import Evaluation
from undrift.core.regularizers import L1
from undrift.core.sampling import All, Uniform
from undrift.devices import Devices, Ladder
from undrift.local.solvers import GD
from undrift.loops import Loop, RunSpec, loop
from undrift.loops.paces import AsTheyArrive
from undrift.methods import (
    MIFA,
    SCAFFOLD,
    VRLSGD,
    AsyncFedDR,
    DistributedSGD,
    Ditto,
    FedACG,
    FedADMM,
    FedAsync,
    FedAvg,
    FedAvgMin,
    FedBuff,
    FedCM,
    FedDR,
    FedDyn,
    FedExP,
    FedLGA,
    FedNova,
    FedPD,
    FedProx,
    FedSAM,
    FedSpeed,
    FedSplit,
    FedVARP,
    Method,
    MimeLite,
    PFedMe,
    Scaffnew,
)
from undrift.methods.common.server_optimizers import Adagrad, Adam, Momentum, Yogi
from undrift.theory import Quadratics, fixed_points
from undrift.utils.keys import draw_of_round
from undrift.verify.limits import goal_of

PERIOD = 12
"""Replies after which the order of arrivals repeats, with one client twice as fast as the other and
a buffer of one, two or three."""
ASYNCHRONOUS_STEPS = 4
"""Steps of both clients in asynchronous runs: only their speeds differ."""


@dataclass(frozen=True)
class Walk:
    """A run to draw."""

    label: str
    method: Method
    steps: int | Mapping[Hashable, int] = field(default_factory=lambda: STEPS)
    rounds: int = 60
    objective: str = "samples"
    limit: Mapping[Hashable, int] | None = None
    cohort: int | None = None
    """clients in a round; None for both"""
    goal: Callable[[Walk, Walked], Tensor] | None = None
    """the predicted end; None for the limit that `undrift verify` checks"""
    within: float = 1e-3
    """largest distance of the end from that point"""
    settles: bool = True
    """whether the run comes to rest"""

    @property
    def planned(self) -> list[int]:
        """The steps that each client is asked for."""
        return [self.steps if isinstance(self.steps, int) else self.steps[k] for k in (0, 1)]

    @property
    def done(self) -> list[int]:
        """The steps that each client does."""
        own = list(self.method.steps(self.planned, draw_of_round(0, 0)))
        return [min(own[k], (self.limit or {}).get(k, own[k])) for k in (0, 1)]


@dataclass(frozen=True)
class Walked:
    """The path of a run."""

    walk: Walk
    problem: Quadratics
    q: Tensor
    path: Tensor
    """the server's models from the initial one on, `[rounds + 1, 2]`"""
    arrivals: list[tuple[int, int]]
    """replies of an asynchronous run: (client, staleness in updates)"""
    drift: list[Tensor]
    """the local path of each client from the last model in one round, `[steps + 1, 2]` each"""
    own: list[Tensor]
    """the last own model of each client, for methods that have them"""

    @property
    def end(self) -> Tensor:
        """The last model; of an asynchronous run, the mean over the last period."""
        return self.path[-PERIOD:].mean(0) if self.arrivals else self.path[-1]

    @property
    def optimum(self) -> Tensor:
        """The optimum of F, with the method's g."""
        return self.problem.optimum(self.q, self.walk.method.g)

    @property
    def goal(self) -> Tensor:
        """The end that theory predicts."""
        if self.walk.goal is not None:
            return self.walk.goal(self.walk, self)
        local = GD(lr=LR, steps=self.walk.steps)
        found = goal_of(self.walk.method, self.problem, self.q, local)
        assert found is not None
        return found


def walked(walk: Walk) -> Walked:
    """Execute a run and return its path."""
    problem, run = two_clients(), run_of(walk)
    path = [problem.initial()]
    arrivals: list[tuple[int, int]] = []  # empty for synchronous rounds
    for _ in range(walk.rounds):
        record = run.step()
        path.append(run.server.x.clone())
        arrivals += [(int(str(k)), late) for k in record.cohort for late in record.staleness]
    q = Roster(problem.ids, problem.sizes, walk.objective).weights
    asynchronous = walk.method.meant_asynchronous
    drift = [] if asynchronous else [_local_path(walk, run, k) for k in range(len(problem))]
    personal = walk.method.own_model is not None
    own = [run.last_of(k) for k in range(len(problem))] if personal else []
    return Walked(walk, problem, q, torch.stack(path), arrivals, drift, own)


def run_of(walk: Walk) -> Loop:
    """Return the loop of a run, to be stepped by hand."""
    speeds = Devices(speed=Ladder(1, 2), seed=3)  # this seed makes client 2 the faster one
    arriving: dict[str, Any] = {"devices": speeds, "pace": AsTheyArrive(replies=1)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some step sizes are outside a theorem's bound on purpose
        spec = RunSpec(
            walk.method,
            two_clients(),
            GD(lr=LR, steps=walk.steps),
            All() if walk.cohort is None else Uniform(walk.cohort),
            10**9,
            walk.objective,
            seed=0,
            evaluation=Evaluation(every=10**9),
            limit=walk.limit,
            **(arriving if walk.method.meant_asynchronous else {}),
        )
        return loop(spec)


def _local_path(walk: Walk, run: Loop, k: int) -> Tensor:
    """Return where client k would go in the next round: gradient descent on its local problem."""
    method, losses = walk.method, two_clients()
    down = method.download(method.begin(run.server, lambda purpose: 0.0))
    problem = method.problem(down, run.states.get(k), run.roster.client(k))
    x = problem.start
    path = [x]
    for _ in range(walk.done[k]):
        gradient = losses.gradient(k, x)
        if problem.ascent is not None:
            shifted = x + problem.ascent.radius * gradient / gradient.norm()
            gradient = gradient.lerp(losses.gradient(k, shifted), problem.ascent.share)
        gradient = problem.scale * gradient
        if problem.linear is not None:
            gradient = gradient + problem.linear
        if problem.center is not None:
            gradient = gradient + problem.weight * (x - problem.center)
        x = x - LR * gradient
        path.append(x)
    return torch.stack(path)


def _by_steps(walk: Walk, found: Walked) -> Tensor:
    return theory_points.weighted_by_steps(found.problem, found.q, walk.done)


def _by_arrivals(walk: Walk, found: Walked) -> Tensor:
    staleness = walk.method.staleness  # type: ignore[attr-defined]
    counts = torch.zeros_like(found.q)
    for k, late in found.arrivals[-PERIOD:]:
        counts[k] += found.q[k] * staleness(late)
    return theory_points.weighted_by_arrivals(found.problem, counts, walk.done)


def _averaged(walk: Walk, found: Walked) -> Tensor:
    return fixed_points.fedavg(found.problem.H, found.problem.b, found.q, LR, walk.done)


def _extrapolated(walk: Walk, found: Walked) -> Tensor:
    assert isinstance(walk.steps, int)
    return theory_points.extrapolated(found.problem, found.q, walk.done, walk.steps)


def _approximated(walk: Walk, found: Walked) -> Tensor:
    return theory_points.approximated(found.problem, walk.done, walk.method.damping)  # type: ignore[attr-defined]


def _complete_client(walk: Walk, found: Walked) -> Tensor:
    """With the cap, Δ̂_1 is the projection of Δ_2 on Δ_1, so only Δ_2 = 0 is at rest."""
    return found.problem.local_optimum(1)


def _unfinished(label: str, method: Method, **options: object) -> Walk:
    """Return a run with 12 planned steps, of which client 1 does 2, and equal client weights."""
    return Walk(label, method, 12, objective="clients", limit={0: 2}, **options)  # type: ignore[arg-type]


def _arriving(label: str, method: Method, **options: object) -> Walk:
    return Walk(label, method, ASYNCHRONOUS_STEPS, **options)  # type: ignore[arg-type]


WALKS: dict[str, list[Walk]] = {
    "DistributedSGD": [Walk("DistributedSGD", DistributedSGD(), rounds=200)],
    "FedAvg": [
        Walk("2 and 12 steps", FedAvg()),
        Walk("7 and 7 steps", FedAvg(), EQUAL_STEPS),
    ],
    "FedAvgMin": [Walk("FedAvgMin", FedAvgMin(), rounds=120)],
    "FedProx": [Walk("μ = 1", FedProx(1.0)), Walk("μ = 3", FedProx(3.0), rounds=120)],
    "SCAFFOLD": [Walk("SCAFFOLD", SCAFFOLD())],
    "VRLSGD": [
        Walk("2 and 12 steps", VRLSGD(), goal=_by_steps),
        Walk("7 and 7 steps", VRLSGD(), EQUAL_STEPS),
    ],
    "FedNova": [
        Walk("FedNova", FedNova()),
        Walk("with variance reduction", FedNova(variance_reduction=True)),
    ],
    "FedDyn": [Walk("α = 1", FedDyn(1.0)), Walk("α = 0.5", FedDyn(0.5), rounds=100)],
    "FedPD": [Walk("η = 1", FedPD(1.0)), Walk("η = 0.3", FedPD(0.3), rounds=100)],
    "FedSplit": [Walk("η = 1", FedSplit(1.0))],
    "FedDR": [
        Walk("g = 0", FedDR()),
        Walk("g = 0.3 |x|₁", FedDR(g=L1(0.3)), rounds=100),
    ],
    "FedADMM": [Walk("ρ = 1", FedADMM(1.0)), Walk("ρ = 0.5", FedADMM(0.5), rounds=100)],
    "FedVARP": [Walk("everyone", FedVARP()), Walk("one of two", FedVARP(), cohort=1, rounds=150)],
    "MIFA": [Walk("everyone", MIFA()), Walk("one of two", MIFA(), cohort=1, rounds=150)],
    "Scaffnew": [Walk("p = 0.2", Scaffnew(0.2)), Walk("p = 0.5", Scaffnew(0.5), rounds=150)],
    "FedCM": [
        Walk("2 and 12 steps", FedCM(0.3), rounds=100),
        Walk("7 and 7 steps", FedCM(0.3), EQUAL_STEPS, rounds=100),
    ],
    "FedACG": [
        Walk("λ = 0.5, β = 0", FedACG(0.5, 0.0)),
        Walk("λ = 0.5, β = 3", FedACG(0.5, 3.0), rounds=120),
    ],
    "FedExP": [Walk("FedExP", FedExP(), goal=_averaged, within=0.6, settles=False)],
    "MimeLite": [Walk("β = 0.5", MimeLite(0.5)), Walk("β = 0.9", MimeLite(0.9), rounds=250)],
    "FedSAM": [Walk("ρ = 0.1", FedSAM(0.1)), Walk("ρ = 0.5", FedSAM(0.5), rounds=120)],
    "FedSpeed": [
        Walk("ρ = 0", FedSpeed(1.0, 0.0), rounds=100),
        Walk("ρ = 0.5, α = 1", FedSpeed(1.0, 0.5), rounds=100),
    ],
    "FedLGA": [
        _unfinished("no correction", FedLGA("none"), goal=_averaged),
        _unfinished("literal, capped", FedLGA(cap=True), goal=_complete_client, rounds=100),
        _unfinished("literal, λ = −1", FedLGA(damping=-1.0), goal=_approximated),
        _unfinished("extrapolated", FedLGA("extrapolate"), goal=_extrapolated),
    ],
    "Ditto": [Walk("λ = 0.2", Ditto(0.2)), Walk("λ = 2", Ditto(2.0))],
    "PFedMe": [
        Walk("λ = 2, R = 3", PFedMe(2.0, 0.25, 3), rounds=200),
        Walk("λ = 0.5, R = 1", PFedMe(0.5, 1.0, 1), rounds=200),
    ],
    "AsyncFedDR": [
        _arriving("α = 1, η = 1", AsyncFedDR(1.0, 1.0), rounds=120),
        _arriving(
            "computed: α = 0.5, η = 0.38",
            AsyncFedDR(smoothness=1.4, clients=2, delay=1),
            rounds=200,
        ),
    ],
    "FedAsync": [
        _arriving("α = 0.6", FedAsync(), goal=_by_arrivals, within=0.08, rounds=120),
        _arriving("α = 0.1", FedAsync(0.1), goal=_by_arrivals, within=0.01, rounds=240),
    ],
    "FedBuff": [
        _arriving("M = 2", FedBuff(2), goal=_by_arrivals, within=0.03, rounds=120),
        _arriving("M = 3", FedBuff(3), goal=_by_arrivals, rounds=120),
    ],
    "servers": [
        Walk("Plain()", FedAvg()),
        Walk("Momentum(0.5)", FedAvg(server=Momentum(0.5))),
        Walk("Adam()", FedAvg(server=Adam()), rounds=150),
        Walk("Yogi()", FedAvg(server=Yogi()), rounds=150),
        Walk("Adagrad(0.5)", FedAvg(server=Adagrad(0.5)), rounds=150),
    ],
}
"""The runs that each page of the guide draws, by its title."""
