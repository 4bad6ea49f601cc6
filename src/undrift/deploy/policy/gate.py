"""The gate of a site: accepts each order of the experiment once and in order, refuses the rest.

The rules, for each method and seed of a run:

- Within an attempt of the server, rounds (launches in asynchronous training) only go forward.
- An order that was accepted before is answered again only if it would give the same answer: the
  same model with the same state of the client. A server that was killed sends such orders.
- A later attempt may have a round done again with another model: a server that goes back, or an
  asynchronous one that is resumed, needs this. The site's own limits say how often.
- Evaluations are orders too: a metric of a chosen model reveals something of the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from undrift.core.problem import Client, Keep, Work
from undrift.deploy.orders import (
    EvaluationOrder,
    RunTerms,
    StatisticsTerms,
    WorkOrder,
    add_prefix,
    split,
)
from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.deploy.policy.ledger import History, Ledger
from undrift.deploy.policy.limits import LIMITS_FILE, Limits
from undrift.deploy.policy.privacy_demands import clip_fault, privacy_fault
from undrift.deploy.state_files import checksum
from undrift.deploy.wire_format import InvalidMessage
from undrift.experiments.experiment import Experiment
from undrift.local.base import Solver
from undrift.local.minibatches import MinibatchSolver
from undrift.privacy.clipping import CLIP

WEIGHT_TOLERANCE = 1e-6
"""How far the sum of the weights of all sites may be from one."""

Approve = Callable[[RunTerms | StatisticsTerms], bool]
"""Asks a person whether the site takes part in a run, or gives statistics before it."""


class Admission(NamedTuple):
    """An accepted order to train."""

    digest: str
    """a hash of everything that decides the answer"""
    repeated: bool
    """whether it was accepted before, and has the same answer now"""
    steps: int | None
    """the steps that were done then, if a deadline cut them"""


class Gate:
    """Decides which orders a site carries out.

    Parameters
    ----------
    experiment
        the site's copy of the experiment
    name
        the name of the site
    samples
        the number of its training samples
    limits, ledger
        the site's own settings, and its memory of accepted orders
    approve
        asks a person before the first order of a run; None to ask nobody
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        samples: int,
        limits: Limits,
        ledger: Ledger,
        approve: Approve | None = None,
    ):
        self._experiment = experiment
        self._name = name
        self._samples = samples
        self._limits = limits
        self._ledger = ledger
        self._approve = approve
        self._agreed: dict[str, AgreedRun] = {}

    # Runs

    def admit_run(self, terms: RunTerms) -> AgreedRun:
        """The run that an order belongs to, as this site's experiment describes it."""
        experiment, limits = self._experiment, self._limits
        if terms.label not in experiment.labels:
            raise InvalidMessage(
                f"The experiment of site {self._name!r} has no method {terms.label[:60]!r}."
            )
        allowed = limits.methods is None or terms.label in limits.methods
        _require(allowed, f"does not take part in {terms.label!r}: see methods in {LIMITS_FILE}")
        _require(terms.seed in experiment.seeds, f"has an experiment without the seed {terms.seed}")
        _require(
            terms.rounds == experiment.rounds,
            f"has an experiment of {experiment.rounds} rounds, but the server's has "
            f"{terms.rounds}: set rounds = {terms.rounds} in the site's own experiment file and "
            f"restart the site",
        )
        fault = privacy_fault(limits, experiment, terms.label, len(terms.roster))
        if fault is not None:
            raise InvalidMessage(f"The site {fault}.")
        self._admit_roster(terms)
        if terms.key not in self._agreed:
            run = AgreedRun(experiment, terms.label, terms.seed, self._name, terms.roster)
            self._agreed = {terms.key: run}
        return self._agreed[terms.key]

    def _admit_roster(self, terms: RunTerms) -> None:
        """Accept a new run, or compare the roster of an order with that of its run."""
        known = self._ledger.runs.get(terms.run)
        if known is None:
            sites = {str(site) for site in self._experiment.data.parameters.get("sites", [])}
            _require(terms.roster.keys() == sites, "received a roster of other sites")
            self._require_place(terms)
            _require(
                len(self._ledger.runs) < self._limits.max_runs,
                f"has taken part in {self._limits.max_runs} runs, the limit max_runs in "
                f"{LIMITS_FILE}",
            )
            approved = self._approve is None or self._approve(terms)
            self._ledger.add_run(terms, approved)
            known = self._ledger.runs[terms.run]
        _require(known.approved, "does not take part in this run: a person there declined it")
        _require(
            known.roster == terms.roster,
            "received another roster of sites than at the start of this run",
        )

    def _require_place(self, terms: RunTerms) -> None:
        """Refuse a roster in which the site itself has another size, or a weight out of bounds.

        The size decides the number of steps: a server that caps what a site counts changes its
        weight only. The scale multiplies the local objective of some methods.
        """
        samples, weight = terms.roster[self._name]
        _require(
            samples == self._samples,
            f"has {self._samples} training samples, but the server's roster says {samples:g}",
        )
        total = sum(row[1] for row in terms.roster.values())
        _require(abs(total - 1) < WEIGHT_TOLERANCE, f"received weights with the sum {total:g}")
        scale, most = 1 / (len(terms.roster) * weight), self._limits.max_scale
        _require(
            scale <= most,
            f"would scale its objective by 1/(N·q) = {scale:.4g}, above the limit {most:g} "
            f"(max_scale in {LIMITS_FILE})",
        )

    # Orders

    def admit_work(
        self, order: WorkOrder, run: AgreedRun, client: Client, work: Work, state: Keep
    ) -> Admission:
        """Accept an order that starts from a client's `state`; it is on disk when this returns."""
        self._require_work(run, work)
        fault = clip_fault(
            self._limits, getattr(order.download, CLIP) if CLIP in order.download else None
        )
        _require(fault is None, str(fault))
        digest = _digest_of_work(order, client, work, state)
        history = self._ledger.history(order.terms)
        known = history.turns.get(order.turn, {})
        self._require_rate()
        if digest in known:
            self._ledger.count_repetition()
            return Admission(digest, repeated=True, steps=known[digest])
        again = order.terms.attempt == history.attempt and order.turn <= history.turn
        _require(
            order.terms.attempt >= history.attempt and not again,
            f"has been asked for round {order.round + 1} or a later one already",
        )
        _require(
            order.terms.attempt > history.attempt or order.round >= history.round,
            f"has been asked for a later round than {order.round + 1} already",
        )
        _require(
            bool(known) or len(history.turns) < run.max_orders + self._limits.max_repeats,
            f"has answered the {run.max_orders} orders that the experiment has",
        )
        self._require_new(order.terms, history, repeated=bool(known))
        self._ledger.add_work(order.terms, order.round, order.turn, digest)
        return Admission(digest, repeated=False, steps=None)

    def admit_evaluation(self, order: EvaluationOrder) -> None:
        """Accept an order to evaluate; it is on disk when this returns."""
        _require(self._limits.evaluations, f"evaluates nothing: see evaluations in {LIMITS_FILE}")
        terms = order.terms
        digest = checksum({"x": order.x} | add_prefix("buffers ", order.buffers))
        digest += f" {order.base}" if order.base else ""
        history = self._ledger.history(terms)
        known = history.evaluations.get((order.round, order.model), set())
        self._require_rate()
        if digest in known:
            self._ledger.count_repetition()
            return
        place = history.evaluation_attempt, history.evaluation_round
        again = place == (terms.attempt, order.round) and order.model in history.evaluated_models
        _require(
            (terms.attempt, order.round) >= place and not again,
            f"has evaluated the model {order.model!r} after round {order.round} or a later one "
            f"already",
        )
        self._require_new(terms, history, repeated=bool(known))
        self._ledger.add_evaluation(terms, order.round, order.model, digest)

    # Limits

    def smallest_steps(self, run: AgreedRun) -> int:
        """The fewest steps that work may be cut to: those of `min_samples` different samples."""
        solver = run.job.local.of(self._name)
        return -(-min(self._limits.min_samples, self._samples) // _batch(solver, self._samples))

    def _require_work(self, run: AgreedRun, work: Work) -> None:
        """Refuse work that is too small or too long for the site's limits."""
        limits, samples = self._limits, self._samples
        solver = run.job.local.of(self._name)
        batch = _batch(solver, samples)
        different = _different_samples(solver, samples, work.steps)
        for value, word, limit, what, name in (
            (batch, "below", limits.min_batch, "samples in a batch", "min_batch"),
            (different, "below", limits.min_samples, "different samples", "min_samples"),
            (work.steps, "above", limits.max_steps, "steps", "max_steps"),
        ):
            allowed = value >= limit if word == "below" else value <= limit
            _require(
                allowed,
                f"refuses the work of round {work.round + 1}: it has {value} {what}, {word} the "
                f"limit {limit} ({name} in {LIMITS_FILE})",
            )

    def _require_rate(self) -> None:
        most = self._limits.max_orders_per_hour
        _require(
            self._ledger.orders_within_hour() < most,
            f"has had {most} orders within an hour, the limit max_orders_per_hour in {LIMITS_FILE}",
        )

    def _require_new(self, terms: RunTerms, history: History, repeated: bool) -> None:
        """Refuse an order beyond the limits on orders of a run and on repeated rounds."""
        limits = self._limits
        most = limits.max_orders_per_run
        _require(
            most is None or self._ledger.runs[terms.run].orders < most,
            f"has had {most} orders of this run, the limit max_orders_per_run in {LIMITS_FILE}",
        )
        if not repeated:
            return
        _require(
            history.repeats < limits.max_repeats,
            f"has done {limits.max_repeats} rounds or evaluations again with another model, the "
            f"limit max_repeats in {LIMITS_FILE}",
        )
        attempts = history.repeating_attempts | {terms.attempt}
        _require(
            len(attempts) <= limits.max_attempts,
            f"has seen its server go back {limits.max_attempts} times, the limit max_attempts in "
            f"{LIMITS_FILE}",
        )


def _batch(solver: Solver, samples: int) -> int:
    return solver.batch_of(samples) if isinstance(solver, MinibatchSolver) else samples


def _different_samples(solver: Solver, samples: int, steps: int) -> int:
    """The least number of different samples that the steps of a client's work go through."""
    if not isinstance(solver, MinibatchSolver):
        return samples
    batch = solver.batch_of(samples)
    if solver.fresh_batches:
        return batch
    # With drop_last an epoch leaves samples out, and further epochs need not bring them.
    return min(batch * solver.per_epoch(samples), samples, batch * steps)


def _digest_of_work(order: WorkOrder, client: Client, work: Work, state: Keep) -> str:
    """A hash of everything that decides the answer to an order, besides data and code."""
    numbers, vectors = split(order.download)
    tensors = add_prefix("down ", vectors) | add_prefix("buffers ", order.buffers)
    tensors |= add_prefix("state ", dict(state.items()))
    own = repr((client, work, order.base, sorted(numbers.items()), checksum(tensors)))
    return hashlib.sha256(own.encode()).hexdigest()


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise InvalidMessage(f"The site {why}.")
