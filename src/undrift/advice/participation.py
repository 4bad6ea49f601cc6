"""Forecast participation, local work and virtual time of a run, without training."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from undrift.advice.federation import FederationSetup
from undrift.core.clients import Roster
from undrift.core.method import Conditions
from undrift.core.sampling import All, Fixed, Sampler, Weighted
from undrift.experiments.forecast import (
    FORECAST_ROUNDS,
    Forecast,
    forecast_run,
    rounds_alike,
    work_is_constant,
)
from undrift.local.schedules import as_schedule
from undrift.local.solvers import SGD, ANorm, Local
from undrift.loops import Asynchronous, Loop
from undrift.loops.paces import AsTheyArrive, FirstToRespond, Pace, WaitForAll
from undrift.methods import FedAsync, FedAvg, Method
from undrift.methods.traffic import traffic_of
from undrift.theory.consistency import chi_square, effective_weights, tau_effective

EXAMINED_CLIENTS = 20_000
"""Clients whose work is examined; larger federations are sampled."""
TRIAL_CLIENTS = 2_000
"""Clients that are examined for the time of each method."""
EXAMINED_ROUNDS = 20
"""Rounds that are examined if the clients' work changes from round to round."""
ENOUGH_REPLIES = 8
"""Expected replies of a client from which on a lack of replies is not chance."""
RARE_SHARE = 0.25
"""A client replies rarely if it gives less than this share of the expected replies."""


@dataclass(frozen=True)
class LocalWork:
    """The steps τ_k that clients do, and the weights that plain averaging then has."""

    clients: int
    """number of examined clients"""
    steps_least: float
    steps_mean: float
    steps_most: float
    """τ_k, averaged over rounds"""
    progress_mean: float
    """the mean of ‖a_k‖₁ over clients: τ_k for plain SGD, more with momentum"""
    varies: bool
    """whether a client's τ_k changes from round to round"""
    chi_square: float
    """χ²(q‖w) = Σ (q_k − w_k)²/w_k, with w_k ∝ q_k‖a_k‖₁ (FedNova, Theorem 2)"""
    tau_eff: float
    """τ_eff = Σ q_k‖a_k‖₁ (FedNova, eq. 6)"""
    unfinished: float
    """share of replies with less work than the client was asked for"""
    never: int
    """number of clients that never do any work"""
    over: tuple[Hashable, float]
    under: tuple[Hashable, float]
    """the clients with the largest and the smallest w_k/q_k, with that ratio"""
    ids: Sequence[Hashable] = field(repr=False)
    q: np.ndarray = field(repr=False)
    w: np.ndarray = field(repr=False)
    """the weights of the objective, and those of plain averaging"""


@dataclass(frozen=True)
class Participation:
    """Which clients take part, and how often they reply."""

    clients: int
    kind: str
    """"all", "uniform", "weighted", "bernoulli", "fixed" or "responding" """
    asked: float
    """clients that are asked per round"""
    replies: float
    """used replies per round"""
    share: float
    """the share of the clients whose reply a round uses"""
    rounds: int
    visits: float
    """mean number of replies of a client in the whole run"""
    never: int
    rarely: int
    """numbers of clients that never or rarely replied in the examined rounds"""
    told: bool
    """whether enough rounds were examined for these two numbers"""
    most_often: float
    """replies of the most frequent client relative to the mean"""


@dataclass(frozen=True)
class ClockFacts:
    """The virtual time of a round, and how clients spend it."""

    seconds: float
    """virtual seconds per round"""
    idle: float
    """share of the clients' time that they wait for others"""


@dataclass(frozen=True)
class Delays:
    """The age of replies in asynchronous training, in updates of the server."""

    concurrency: int
    mean: float
    most: int


@dataclass(frozen=True)
class FederationForecast:
    """The forecast of a run."""

    work: LocalWork | None
    """None for exact local solutions, which have no steps"""
    participation: Participation
    clock: ClockFacts | None
    delays: Delays | None
    setting: Conditions
    gradients: float
    """gradients of single samples per reply"""


def forecast_federation(federation: FederationSetup) -> FederationForecast:
    """Forecast cohorts, work and virtual time of a federation's run."""
    method = _representative_method(federation)
    rounds = _rounds(federation, EXAMINED_CLIENTS)
    found, run = _forecast(federation, method, federation.sampler, federation.pace, drawn=rounds)
    gradients = found.gradients / max(1, found.replies)
    delays = None
    if isinstance(run, Asynchronous):
        old = found.staleness
        total = max(1, sum(old.values()))
        mean = sum(age * count for age, count in old.items()) / total
        delays = Delays(run.concurrency, mean, max(old, default=0))
    clock = None
    if run.fleet is not None and found.rounds:
        spent = found.busy + found.idle
        clock = ClockFacts(found.seconds / found.rounds, found.idle / spent if spent else 0.0)
    return FederationForecast(
        work=_work(federation) if federation.solver.takes_steps else None,
        participation=_participation(federation, found, run),
        clock=clock,
        delays=delays,
        setting=run.conditions(),
        gradients=gradients,
    )


def trial(
    federation: FederationSetup, method: Method, gradients: float
) -> tuple[float, float | None]:
    """Gradients per reply and virtual seconds per round of a method.

    Without a virtual clock, a method that does the usual work needs the given number of gradients.
    """
    extra = traffic_of(method).first_gradient or type(method).steps is not Method.steps
    clock = federation.devices is not None
    if not (extra or clock) or len(federation.roster) > EXAMINED_CLIENTS:
        return method.problems * gradients, None
    rounds = min(EXAMINED_ROUNDS, _rounds(federation, TRIAL_CLIENTS))
    found, _ = _forecast(federation, method, federation.sampler, federation.pace, drawn=rounds)
    seconds = found.seconds / found.rounds if clock and found.rounds else None
    return found.gradients / max(1, found.replies), seconds


def _rounds(federation: FederationSetup, clients: int) -> int:
    """The number of rounds to forecast so that about `clients` assignments are examined."""
    asked = federation.sampler.most(federation.roster)
    if isinstance(federation.pace, AsTheyArrive):
        asked = federation.pace.replies or federation.pace.at_once(asked, len(federation.roster))
    return max(1, min(FORECAST_ROUNDS, clients // asked))


def _representative_method(federation: FederationSetup) -> Method:
    """A method whose run has the participation of all others: averaging, or FedAsync."""
    if federation.asynchronous:
        return FedAsync()
    by_weight = isinstance(federation.sampler, Weighted)
    return FedAvg("I" if by_weight else "II-delta")


def _forecast(
    federation: FederationSetup,
    method: Method,
    sampler: Sampler,
    pace: Pace | None,
    **options: Any,
) -> tuple[Forecast, Loop]:
    return forecast_run(
        method,
        list(federation.losses.ids),
        federation.losses.sizes,
        torch.zeros_like(federation.x0),
        federation.losses.initial_buffers(),
        traffic_of(method),
        federation.rounds,
        local=federation.solver,
        sampler=sampler,
        objective=federation.objective,
        seed=federation.seed,
        limit=federation.limit,
        devices=federation.devices,
        pace=pace,
        **options,
    )


def _work(federation: FederationSetup) -> LocalWork:
    """The steps of each client, from rounds in which all examined clients are asked."""
    roster = federation.roster
    pace = federation.pace
    if federation.asynchronous or isinstance(pace, FirstToRespond):
        pace = WaitForAll()  # the fastest clients would hide the work of the others
    ids = _spread_evenly(roster.ids, EXAMINED_CLIENTS)
    found, run = _forecast(federation, AVERAGING, _sampler_of(ids, roster), pace, drawn=1)
    if not work_is_constant(run):
        ids = _spread_evenly(roster.ids, EXAMINED_CLIENTS // EXAMINED_ROUNDS)
        sampler = _sampler_of(ids, roster)
        found, run = _forecast(federation, AVERAGING, sampler, pace, drawn=EXAMINED_ROUNDS)
    examined = len(ids)
    done = {id: own for id, own in found.steps.items() if own}
    counted = _ANorms(federation.solver)
    ids = [id for id in ids if id in done]
    tau = np.array([np.mean(done[id]) for id in ids])
    each = [np.array([counted(id, steps) for steps in done[id]]) for id in ids]
    a_norms = np.array([own.mean() for own in each])
    wanted = torch.tensor([roster.client(id).q for id in ids], dtype=torch.float64)
    wanted = wanted / wanted.sum()
    accumulated = torch.from_numpy(a_norms)
    used = effective_weights(wanted, accumulated)
    gain = (used / wanted).numpy()
    tau_eff = tau_effective(wanted, accumulated)
    # Means over few rounds differ between clients by chance, which must not count as unequal work.
    errors = np.array([own.var(ddof=1) / len(own) if len(own) > 1 else 0.0 for own in each])
    chance = float(wanted.numpy() @ errors) / tau_eff**2
    asked = {id: _asked(federation, run, id) for id in ids}
    replies = [(steps, asked[id]) for id in ids for steps in done[id]]
    most, least = int(gain.argmax()), int(gain.argmin())
    return LocalWork(
        clients=len(ids),
        steps_least=float(tau.min()),
        steps_mean=float(tau.mean()),
        steps_most=float(tau.max()),
        progress_mean=float(a_norms.mean()),
        varies=any(len({*own}) > 1 for own in done.values()),
        chi_square=max(0.0, chi_square(wanted, used) - chance),
        tau_eff=tau_eff,
        unfinished=float(np.mean([steps < whole for steps, whole in replies])),
        never=examined - len(ids),
        over=(ids[most], float(gain[most])),
        under=(ids[least], float(gain[least])),
        ids=ids,
        q=wanted.numpy(),
        w=used.numpy(),
    )


AVERAGING = FedAvg("original")
"""A method without conditions on participation, so that any set of clients can be examined."""


def _spread_evenly(ids: Sequence[Hashable], most: int) -> list[Hashable]:
    """At most `most` clients, spread evenly over all."""
    if len(ids) <= most:
        return list(ids)
    return [ids[k] for k in np.linspace(0, len(ids) - 1, most).astype(np.int64)]


def _sampler_of(ids: Sequence[Hashable], roster: Roster) -> Sampler:
    return All() if len(ids) == len(roster) else Fixed(list(ids))


def _asked(federation: FederationSetup, run: Loop, id: Hashable) -> int:
    """The steps that a client is asked for in the first round."""
    solver = federation.solver.of(id)
    samples = int(run.roster.client(id).samples)
    return solver.steps_of(solver.amount(id, 0, federation.seed), samples)


class _ANorms:
    """‖a_k‖₁ of a client's solver by its number of steps, in units of the nominal rate."""

    def __init__(self, local: Local):
        self._local = local
        self._known: dict[Hashable, tuple[ANorm, list[float]]] = {}

    def __call__(self, client: Hashable, steps: int) -> float:
        solver = self._local.of(client)
        assert isinstance(solver, SGD)
        rates = as_schedule(solver.lr)
        own = rates.at(0) / self._local.rate(0)
        plain = solver.step_schedule is None and isinstance(solver.lr, int | float)
        if plain and not solver.momentum:
            return own * steps
        alike = own, solver.momentum, solver.nesterov, repr(solver.lr), repr(solver.step_schedule)
        if alike not in self._known:
            self._known[alike] = ANorm(solver.momentum, solver.nesterov), [0.0]
        a_norm, totals = self._known[alike]
        while len(totals) <= steps:
            done = len(totals) - 1
            factor = own * rates.within(0, done)
            if solver.step_schedule is not None:
                factor *= as_schedule(solver.step_schedule).at(done)
            a_norm.step(factor)
            totals.append(a_norm.value)
        return totals[steps]


def _participation(federation: FederationSetup, found: Forecast, run: Loop) -> Participation:
    number = len(federation.roster)
    rounds = max(1, found.rounds)
    asked, replies = found.asked / rounds, found.replies / rounds
    share = min(1.0, replies / number)
    setting = run.conditions()
    expected = _expected(federation, rounds, replies, number)
    told = rounds_alike(run) or float(np.median(list(expected.values()))) >= ENOUGH_REPLIES
    visits: Mapping[Hashable, int] = found.visits
    never = rarely = 0
    if told:
        for id, usual in expected.items():
            seen = visits.get(id, 0)
            never += seen == 0 and usual > 0
            rarely += 0 < seen < RARE_SHARE * usual
    mean = found.replies / number
    return Participation(
        clients=number,
        kind="asynchronous" if setting.asynchronous else setting.participation,
        asked=asked,
        replies=replies,
        share=share,
        rounds=federation.rounds,
        visits=federation.rounds * replies / number,
        never=never,
        rarely=rarely,
        told=told,
        most_often=max(visits.values(), default=0) / mean if mean else 0.0,
    )


def _expected(
    federation: FederationSetup, rounds: int, replies: float, number: int
) -> dict[Hashable, float]:
    """The expected replies of each client if all devices were alike."""
    roster = federation.roster
    total = rounds * replies
    if isinstance(federation.sampler, Weighted):
        return {id: total * q for id, q in zip(roster.ids, roster.weights.tolist(), strict=True)}
    return dict.fromkeys(roster.ids, total / number)
