"""Private rounds: checks that a run's guarantee holds, and builds its mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undrift.core.evaluation import Evaluation
from undrift.core.losses import Federation
from undrift.core.method import Method
from undrift.core.sampling import All
from undrift.core.targets import PARTS
from undrift.local.amounts import Unfinished
from undrift.local.base import Local
from undrift.loops.paces import FirstToRespond, RoundPace
from undrift.privacy.gaussian import EXACT, Gaussian
from undrift.privacy.mechanism import Mechanism, guarantee_of
from undrift.privacy.noise_sources import NoiseSource
from undrift.privacy.refusals import check_privacy
from undrift.privacy.sampling import law_of
from undrift.privacy.scales import upload_scales
from undrift.utils.errors import require

if TYPE_CHECKING:
    from undrift.loops.base import Loop
    from undrift.loops.spec import RunSpec

DEPLOYED_PARTS = ("test",)
"""The parts that sites measure on for noisy metrics, unless the user names others."""


def counted_samples(losses: Federation, privacy: Gaussian | None) -> Tensor | None:
    """The numbers of samples in the weights: capped by a public constant, or as the losses say."""
    counted = losses.counted
    if privacy is None or privacy.max_samples is None:
        return counted
    numbers = losses.sizes if counted is None else counted
    return torch.as_tensor(numbers).clamp_max(privacy.max_samples)


def private_evaluation(
    evaluation: Evaluation,
    privacy: Gaussian | None,
    parts: Sequence[str] = PARTS,
    common: Sequence[str] = (),
) -> Evaluation:
    """What a private run measures: metrics of clients' data are outside its guarantee.

    `parts` are those of the data, and `common` those of them that belong to no client. In a
    deployment all data belong to sites. What the user asks for by name is refused, not left out.
    """
    if privacy is None or privacy.metrics == EXACT:
        return evaluation
    for what, asked in _outside(evaluation).items():
        require(
            not asked,
            f"evaluation {what} is measured on single clients' models or data, which privacy does "
            f'not protect: leave it out, or set privacy metrics to "exact".',
        )
    chosen = [part for part in evaluation.parts if part in parts]
    noisy = privacy.noisy_metrics
    if noisy is None:
        own = [part for part in chosen if part not in common]
        require(
            evaluation.parts == PARTS or not own,
            f"evaluation parts has {' and '.join(map(repr, own))}, whose data belong to clients, "
            f"and privacy does not protect metrics of them: leave it out, set privacy metrics to "
            f'ud.privacy.NoisyMetrics(…), or to "exact".',
        )
        return evaluation.restricted(part for part in chosen if part in common)
    require(
        evaluation.every in (None, noisy.every),
        f"evaluation every is {evaluation.every}, but the noisy metrics are accounted for every "
        f"{noisy.every} rounds: leave out one of them.",
    )
    return evaluation.restricted(chosen, noisy.every)


def _outside(evaluation: Evaluation) -> dict[str, bool]:
    """What an evaluation may ask for of single clients, and whether it does."""
    return {
        "models": evaluation.models != ("server",),
        "clients": evaluation.clients,
        "gradient_mapping": evaluation.gradient_mapping is not None,
        "train_clients": evaluation.train_clients is not None,
        "train_samples": evaluation.train_samples is not None,
    }


def deployed_evaluation(evaluation: Evaluation, privacy: Gaussian | None) -> Evaluation:
    """What a private deployment measures, whatever the parts of the sites' data."""
    named = evaluation.parts != PARTS
    return private_evaluation(evaluation, privacy, PARTS if named else DEPLOYED_PARTS)


def is_stateful(method: Method, local: Local, kept: Sequence[str] = ()) -> bool:
    """Whether clients keep anything from round to round: `kept` are the states of transforms."""
    return bool(method.kept()) or bool(local.keeps) or bool(kept)


def make_mechanism(
    loop: Loop, pace: RoundPace | None, source: NoiseSource, steady: bool = True
) -> Mechanism | None:
    """The mechanism of a loop, None without privacy; an error if its guarantee would not hold.

    `steady` says whether all clients are always available, as far as devices do not say it.
    """
    spec, privacy = loop.spec, loop.spec.privacy
    if privacy is None:
        return None
    check_privacy(privacy, spec.method, loop.roster, loop.conditions())
    _check_rounds(spec, pace)
    stateful = is_stateful(spec.method, spec.local, list(loop.job.uploads.init()))
    steady = steady and (loop.fleet is None or loop.fleet.steady)
    law = law_of(spec.sampler, len(loop.roster), stateful, steady)
    clipped = privacy.clip is not None
    return Mechanism(
        privacy,
        guarantee_of(privacy, law, spec.rounds),
        spec.method,
        loop.roster,
        upload_scales(spec.method, spec.local, privacy.steps) if clipped else lambda rate: {},
        source,
    )


def restore_mechanism(
    mechanism: Mechanism | None, saved: Mapping[str, Any] | None, label: str
) -> None:
    """Continue with what a run saved of its mechanism, None for nothing.

    An error if privacy was added or removed: the ε of the records would not cover all rounds.
    """
    elsewhere = "or run the experiment in another folder."
    require(
        mechanism is not None or saved is None,
        f"{label} was private so far, and its ε would not cover rounds without privacy: put the "
        f"privacy settings back, {elsewhere}",
    )
    require(
        mechanism is None or saved is not None,
        f"{label} was not private so far, and no ε covers those rounds: remove the privacy "
        f"settings, {elsewhere}",
    )
    if mechanism is not None and saved is not None:
        mechanism.restore(saved)


def _check_rounds(spec: RunSpec, pace: RoundPace | None) -> None:
    """Raise if one client could change what others send, or whether a round counts."""
    require(
        not isinstance(pace, FirstToRespond),
        "privacy is not defined with FirstToRespond: whether a reply counts depends on the other "
        "clients' speed. Use WaitForAll or Deadline.",
    )
    require(
        pace is None or pace.min_replies <= 1,
        "privacy releases a noisy sum in every round, so that nobody learns how many clients "
        "replied: leave out min_replies.",
    )
    require(
        spec.robust is None,
        "privacy cannot be combined with bounds on norms: which uploads they reject depends on the "
        "norms of other clients. Clipping bounds every upload already.",
    )
    require(
        not isinstance(spec.limit, Unfinished),
        "privacy is not defined with ud.Unfinished: which clients are slow depends on the other "
        "clients of the cohort. Give limit as a mapping or a function.",
    )
    require(
        not spec.method.starts_with_all or type(spec.sampler) is All,
        f"{spec.method.name} starts with a round of all clients, which is not a random cohort: use "
        f"start='lazy', or all clients in every round.",
    )
