"""When a run is evaluated, and on how many training samples: what the user asked for, or a rule.

The rule counts work and never reads a clock, so that every engine, machine and resumed run has the
same schedule. It does not depend on the number of rounds, so that a run that is extended has the
evaluations of a run that was longer from the start, and one more: its former last round.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from undrift.core.clients import Roster
from undrift.core.evaluation import Evaluation
from undrift.core.losses import Federation
from undrift.local.solvers import Local

GRADIENT_PASSES = 3
"""A gradient of a sample counts as this many passes of evaluation: one forward, two backward."""
LARGEST_SHARE = 1 / 10
"""Evaluation may cost this share of the training work, besides the last one, on all samples."""
NEGLIGIBLE_PRODUCTS = 4_000_000
"""An evaluation with fewer multiplications than this takes no longer than the bookkeeping of a
round, about a millisecond, and is done after every round."""
LEAST_TRAIN_SAMPLES = 2000
"""A part of the training samples has at least this many, so that its metrics mean something."""
HELD_OUT_SHARE = 1 / 8
"""In a deployment, a held-out part counts as this share of the training part: nobody knows all."""
COUNTED_CLIENTS = 200
"""The work of a client is averaged over this many clients, evenly spaced in the roster."""


@dataclass(frozen=True)
class EvaluationSchedule:
    """When a run is evaluated, and on how many training samples.

    Parameters
    ----------
    every
        the number of rounds between evaluations; the last round is always evaluated
    train_samples
        the number of training samples; None for all
    last_whole
        whether the last round is evaluated on all training samples nevertheless
    """

    every: int
    train_samples: int | None = None
    last_whole: bool = False

    def due(self, round: int, total: int) -> bool:
        """Whether a run of `total` rounds is evaluated after a round."""
        return round == total or round % self.every == 0

    def samples_after(self, last: bool) -> int | None:
        """The number of training samples for an evaluation, which may be the run's last."""
        return None if last and self.last_whole else self.train_samples


def schedule_of(
    evaluation: Evaluation, federation: Federation, roster: Roster, local: Local, clients: float
) -> EvaluationSchedule:
    """The schedule of a run; `clients` is the mean number of clients that train in a round."""
    if evaluation.every is not None:
        return EvaluationSchedule(evaluation.every, evaluation.train_samples)
    costs = federation.evaluation_cost()
    samples = {part: n for part, n in costs.samples.items() if part in evaluation.parts}
    train = _asked(evaluation, samples.pop("train", 0), len(roster))
    others, models = sum(samples.values()), len(evaluation.models)
    whole = models * (train + others)
    if "tuned" in evaluation.models:
        # Every client trains on its own samples before it is evaluated.
        whole += GRADIENT_PASSES * train
    if evaluation.gradient_mapping is not None:
        whole += models * GRADIENT_PASSES * train
    if whole * costs.products <= NEGLIGIBLE_PRODUCTS:
        return EvaluationSchedule(1, evaluation.train_samples)
    allowed = LARGEST_SHARE * GRADIENT_PASSES * clients * gradients_of_a_client(roster, local)
    given = evaluation.train_samples is not None or evaluation.train_clients is not None
    divisible = costs.divisible and not given and _is_about_the_whole(evaluation)
    part = max(LEAST_TRAIN_SAMPLES, others // 2)
    if whole <= allowed or not divisible or train <= part:
        return EvaluationSchedule(spacing(whole / allowed), evaluation.train_samples)
    cost = models * (others + part)
    return EvaluationSchedule(spacing(cost / allowed), part, last_whole=True)


def deployed_schedule(
    evaluation: Evaluation, roster: Roster, local: Local, clients: float
) -> EvaluationSchedule:
    """The schedule of a deployment, in which every site evaluates on all its samples.

    It follows from what the server and every site know: the experiment and the numbers of training
    samples. Validation and test samples count as a further share of these.
    """
    if evaluation.every is not None:
        return EvaluationSchedule(evaluation.every)
    passes = sum(1 if part == "train" else HELD_OUT_SHARE for part in evaluation.parts)
    samples = float(roster.sizes.sum()) * passes * len(evaluation.models)
    allowed = LARGEST_SHARE * GRADIENT_PASSES * clients * gradients_of_a_client(roster, local)
    return EvaluationSchedule(spacing(samples / allowed))


def _asked(evaluation: Evaluation, samples: int, clients: int) -> int:
    """The number of training samples that the user's own sizes leave, on average."""
    if evaluation.train_clients is not None:
        samples = ceil(samples * min(1.0, evaluation.train_clients / clients))
    return samples if evaluation.train_samples is None else min(samples, evaluation.train_samples)


def _is_about_the_whole(evaluation: Evaluation) -> bool:
    """Whether every measured model is one for all clients, so that some samples represent all."""
    single = {"own", "tuned"}.isdisjoint(evaluation.models)
    return single and not evaluation.clients and evaluation.gradient_mapping is None


def spacing(rounds: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, … that is not below a number of rounds."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= rounds:
                return factor * power
        power *= 10


def gradients_of_a_client(roster: Roster, local: Local) -> float:
    """The mean number of gradients of a sample that a client's local work has in a round.

    It is that of the first round with the random amounts of seed 0, whatever the run's seed, and it
    leaves out what a method adds, so that runs with the same local work have the same schedule.
    """
    step = ceil(len(roster) / COUNTED_CLIENTS)
    total = 0
    chosen = range(0, len(roster), step)
    for k in chosen:
        client, samples = roster.ids[k], int(roster.sizes[k])
        solver = local.of(client)
        total += solver.evaluations(solver.steps_of(solver.amount(client, 0), samples), samples)
    return max(1.0, total / len(chosen))
