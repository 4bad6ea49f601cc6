"""What happens to a site's upload before it leaves, in sentences for `deploy site --dry-run`."""

from __future__ import annotations

import math

from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.experiments.experiment import Experiment
from undrift.privacy.gaussian import AdaptiveClip, Gaussian
from undrift.privacy.mechanism import guarantee_of
from undrift.privacy.sampling import law_of
from undrift.privacy.secure.settings import SecureAggregation


def protections(experiment: Experiment, run: AgreedRun) -> list[str]:
    """What compresses, clips, noises and masks the upload, in this order, and what does not."""
    secure = experiment.secure_aggregation()
    return [
        _compressed(experiment),
        _clipped(run.privacy),
        _noised(experiment, run, secure),
        _masked(run, secure),
    ]


def _compressed(experiment: Experiment) -> str:
    found = experiment.compression_settings()
    if found is None or found.up is None:
        return "not compressed"
    feedback = "with" if found.feedback else "without"
    return f"compressed by {found.up!r}, {feedback} error feedback"


def _clipped(privacy: Gaussian | None) -> str:
    if privacy is None or privacy.clip is None:
        return "not clipped"
    if isinstance(privacy.clip, AdaptiveClip):
        return (
            f"clipped to the norm {privacy.clip.initial:g} in the first round and to the server's "
            f"norm in later ones; one number says whether its norm was within it"
        )
    return f"clipped to the norm {privacy.clip:g}"


def _noised(experiment: Experiment, run: AgreedRun, secure: SecureAggregation | None) -> str:
    privacy = run.privacy
    if privacy is None or privacy.noise == 0 or privacy.clip is None:
        return "without noise, here or at the server"
    law = law_of(run.sampler, len(run.roster), stateful=True, steady=False)
    noise = guarantee_of(privacy, law, experiment.rounds).noise
    of_sum = f"{noise:.4g} times the clipping norm"
    if secure is None or not secure.site_noise:
        return f"not noised here: the server adds noise of {of_sum} to the sum, if it is honest"
    shares = secure.noise_shares(len(run.roster))
    return (
        f"noised here, with {noise / math.sqrt(shares):.4g} times the clipping norm, a share of "
        f"the {of_sum} that {shares} sites add to the sum; the values here have no noise"
    )


def _masked(run: AgreedRun, secure: SecureAggregation | None) -> str:
    if secure is None:
        return "not masked: the server sees this upload"
    sites = len(run.roster)
    return (
        f"masked, in words of {secure.word_bits} bits: the server sees the sum of at least "
        f"{secure.least_sites(sites)} of {sites} sites, and not these values"
    )
