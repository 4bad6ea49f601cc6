"""How much the clients really do, who replies, and how long it takes: the run without training."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from undrift.advice.federation import Federation
from undrift.core.clients import Roster
from undrift.core.method import Conditions
from undrift.core.sampling import All, Fixed, Sampler, Weighted
from undrift.experiments.foreseen import DRAWN as FORESEEN
from undrift.experiments.foreseen import Foreseen, all_alike, foresee, same_work
from undrift.local.schedules import as_schedule
from undrift.local.solvers import SGD, ANorm, Local
from undrift.loops import Asynchronous, Loop
from undrift.loops.paces import AsTheyArrive, FirstToRespond, Pace, WaitForAll
from undrift.methods import FedAsync, FedAvg, Method
from undrift.methods.traffic import traffic_of
from undrift.theory.consistency import chi_square, effective_weights, tau_effective

LOOKED_AT = 20_000
"""The work of so many clients is looked at, a sample of larger federations."""
TRIED = 2_000
"""… and of so many for the time of each method."""
DRAWN = 20
"""Rounds in which everybody's work is drawn, where it is not the same in all of them."""
TOLD = 8
"""A client that the sampling would ask so often, and that replies rarely, is rarely there."""
RARELY = 0.25
"""Rarely: less than this share of what is usual."""


@dataclass(frozen=True)
class LocalWork:
    """The steps τ_k that clients really do, and the weights that plain averaging then uses."""

    clients: int
    """of how many clients this is: a sample of large federations"""
    steps_least: float
    steps_mean: float
    steps_most: float
    """τ_k, on average over rounds"""
    progress_mean: float
    """the mean of ‖a_k‖₁ over clients: τ_k for plain SGD, more with momentum"""
    varies: bool
    """whether a client's τ_k changes from round to round"""
    chi_square: float
    """χ²(q‖w) = Σ (q_k − w_k)²/w_k, with w_k ∝ q_k‖a_k‖₁ (FedNova, Theorem 2)"""
    tau_eff: float
    """τ_eff = Σ q_k‖a_k‖₁ (FedNova, eq. 6)"""
    unfinished: float
    """the share of replies with less work than was asked for"""
    never: int
    """clients that manage no work at all"""
    over: tuple[Hashable, float]
    under: tuple[Hashable, float]
    """the client whose weight grows most, and the one whose weight shrinks most: w_k/q_k"""
    ids: Sequence[Hashable] = field(repr=False)
    q: np.ndarray = field(repr=False)
    w: np.ndarray = field(repr=False)
    """the wanted weights, and those that plain averaging uses"""


@dataclass(frozen=True)
class Participation:
    """Who takes part, and what becomes of those who are asked."""

    clients: int
    kind: str
    """"all", "uniform", "weighted", "bernoulli", "fixed" or "responding" """
    asked: float
    """clients per round"""
    replies: float
    """replies per round that are used"""
    share: float
    """the share of the clients whose reply a round uses"""
    rounds: int
    visits: float
    """how often a client replies in the whole run, on average"""
    never: int
    rarely: int
    """clients that did not reply in the rounds that were looked at, or rarely did"""
    told: bool
    """whether enough rounds were looked at to tell these"""
    most_often: float
    """how many times as often as the mean the most frequent client replies"""


@dataclass(frozen=True)
class Clock:
    """How the virtual time goes by."""

    seconds: float
    """of a round"""
    idle: float
    """the share of the clients' time that is spent waiting for others"""


@dataclass(frozen=True)
class Delays:
    """How old replies are where they are taken in as they arrive, counted in updates."""

    concurrency: int
    mean: float
    most: int


@dataclass(frozen=True)
class Foreseeing:
    """What the run without training shows."""

    work: LocalWork | None
    """None where clients solve their problem exactly, so that there are no steps"""
    participation: Participation
    clock: Clock | None
    delays: Delays | None
    setting: Conditions
    gradients: float
    """of single samples, per reply"""


def foresee_federation(federation: Federation) -> Foreseeing:
    """Look at a run's cohorts, work and clock, with an engine that does not train."""
    stand_in = _stand_in(federation)
    rounds = _rounds(federation, LOOKED_AT)
    found, run = _foreseen(federation, stand_in, federation.sampler, federation.pace, drawn=rounds)
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
        clock = Clock(found.seconds / found.rounds, found.idle / spent if spent else 0.0)
    return Foreseeing(
        work=_work(federation) if federation.solver.takes_steps else None,
        participation=_participation(federation, found, run),
        clock=clock,
        delays=delays,
        setting=run.conditions(),
        gradients=gradients,
    )


def trial(federation: Federation, method: Method, gradients: float) -> tuple[float, float | None]:
    """Gradients per reply and virtual seconds per round of a method, where they are its own.

    Without a clock, and with the usual work, they are those that are given.
    """
    extra = traffic_of(method).first_gradient or type(method).steps is not Method.steps
    clock = federation.devices is not None
    if not (extra or clock) or len(federation.roster) > LOOKED_AT:
        return gradients, None
    rounds = min(DRAWN, _rounds(federation, TRIED))
    found, _ = _foreseen(federation, method, federation.sampler, federation.pace, drawn=rounds)
    seconds = found.seconds / found.rounds if clock and found.rounds else None
    return found.gradients / max(1, found.replies), seconds


def _rounds(federation: Federation, clients: int) -> int:
    """How many rounds may be drawn to look at so many clients at work."""
    asked = federation.sampler.most(federation.roster)
    if isinstance(federation.pace, AsTheyArrive):
        asked = federation.pace.replies or federation.pace.at_once(asked, len(federation.roster))
    return max(1, min(FORESEEN, clients // asked))


def _stand_in(federation: Federation) -> Method:
    """A method that takes part as any other, to see what a run is like."""
    if federation.asynchronous:
        return FedAsync()
    by_weight = isinstance(federation.sampler, Weighted)
    return FedAvg("I" if by_weight else "II-delta")


def _foreseen(
    federation: Federation,
    method: Method,
    sampler: Sampler,
    pace: Pace | None,
    **options: Any,
) -> tuple[Foreseen, Loop]:
    return foresee(
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


def _work(federation: Federation) -> LocalWork:
    """Everybody is asked, for some rounds: the steps of each client, whoever is drawn in a run."""
    roster = federation.roster
    pace = federation.pace
    if federation.asynchronous or isinstance(pace, FirstToRespond):
        pace = WaitForAll()  # who comes first is a matter of presence, not of work
    ids = _some(roster.ids, LOOKED_AT)
    found, run = _foreseen(federation, PLAIN, _these(ids, roster), pace, drawn=1)
    if not same_work(run):
        ids = _some(roster.ids, LOOKED_AT // DRAWN)
        found, run = _foreseen(federation, PLAIN, _these(ids, roster), pace, drawn=DRAWN)
    looked_at = len(ids)
    done = {id: own for id, own in found.steps.items() if own}
    counted = _Accumulated(federation.solver)
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
    # The mean of a few draws differs from client to client by chance, which favours nobody.
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
        never=looked_at - len(ids),
        over=(ids[most], float(gain[most])),
        under=(ids[least], float(gain[least])),
        ids=ids,
        q=wanted.numpy(),
        w=used.numpy(),
    )


PLAIN = FedAvg("original")
"""Averages whoever is there, so that everybody's work can be looked at."""


def _some(ids: Sequence[Hashable], most: int) -> list[Hashable]:
    """So many clients at most, spread evenly."""
    if len(ids) <= most:
        return list(ids)
    return [ids[k] for k in np.linspace(0, len(ids) - 1, most).astype(np.int64)]


def _these(ids: Sequence[Hashable], roster: Roster) -> Sampler:
    return All() if len(ids) == len(roster) else Fixed(list(ids))


def _asked(federation: Federation, run: Loop, id: Hashable) -> int:
    """The steps that a client is asked for in the first round, whatever it manages."""
    solver = federation.solver.of(id)
    samples = int(run.roster.client(id).samples)
    return solver.steps_of(solver.amount(id, 0, federation.seed), samples)


class _Accumulated:
    """‖a_k‖₁ after so many steps of a client's solver, in units of the nominal rate."""

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


def _participation(federation: Federation, found: Foreseen, run: Loop) -> Participation:
    number = len(federation.roster)
    rounds = max(1, found.rounds)
    asked, replies = found.asked / rounds, found.replies / rounds
    share = min(1.0, replies / number)
    setting = run.conditions()
    expected = _expected(federation, rounds, replies, number)
    told = all_alike(run) or float(np.median(list(expected.values()))) >= TOLD
    visits: Mapping[Hashable, int] = found.visits
    never = rarely = 0
    if told:
        for id, usual in expected.items():
            seen = visits.get(id, 0)
            never += seen == 0 and usual > 0
            rarely += 0 < seen < RARELY * usual
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
    federation: Federation, rounds: int, replies: float, number: int
) -> dict[Hashable, float]:
    """How often each client would reply if all devices were alike."""
    roster = federation.roster
    total = rounds * replies
    if isinstance(federation.sampler, Weighted):
        return {id: total * q for id, q in zip(roster.ids, roster.weights.tolist(), strict=True)}
    return dict.fromkeys(roster.ids, total / number)
