"""What a site demands of a run's privacy, from its own limits and its own copy of the experiment.

A site clips its uploads itself. That the server adds the agreed noise, it has to trust.
"""

from __future__ import annotations

from undrift.core.sampling import as_sampler
from undrift.deploy.policy.limits import LIMITS_FILE, Limits
from undrift.experiments.experiment import Experiment
from undrift.loops.private_rounds import is_stateful
from undrift.privacy.gaussian import Gaussian
from undrift.privacy.mechanism import Guarantee, guarantee_of
from undrift.privacy.sampling import law_of


def privacy_fault(limits: Limits, experiment: Experiment, label: str, sites: int) -> str | None:
    """Why a site does not take part in a run of the experiment, or None."""
    wanted = limits.max_clip, limits.min_noise, limits.max_epsilon
    if not limits.require_privacy and wanted == (None, None, None):
        return None
    privacy = experiment.privacy_settings()
    if privacy is None or privacy.clip is None or privacy.noise == 0:
        return (
            "takes part in runs with differential privacy only, but the experiment has no "
            f"[privacy] with clipping and noise: see require_privacy in {LIMITS_FILE}"
        )
    clip = privacy.first_clip
    if limits.max_clip is not None and clip is not None and clip > limits.max_clip:
        return _beyond("a clipping norm", clip, "above", "max_clip", limits.max_clip)
    if limits.min_noise is None and limits.max_epsilon is None:
        return None
    found = _guarantee(privacy, experiment, label, sites)
    if limits.min_noise is not None and found.noise < limits.min_noise:
        return _beyond("a noise multiplier", found.noise, "below", "min_noise", limits.min_noise)
    if limits.max_epsilon is not None:
        spent = found.epsilon(experiment.rounds)
        if privacy.epsilon is not None:
            spent = min(spent, privacy.epsilon)
        if spent > limits.max_epsilon:
            return _beyond("an ε", spent, "above", "max_epsilon", limits.max_epsilon)
    return None


def clip_fault(limits: Limits, clip: float | None) -> str | None:
    """Why a site refuses the clipping norm that an order asks for, or None."""
    if clip is None or limits.max_clip is None or clip <= limits.max_clip:
        return None
    return _beyond("a clipping norm", clip, "above", "max_clip", limits.max_clip)


def _guarantee(privacy: Gaussian, experiment: Experiment, label: str, sites: int) -> Guarantee:
    methods = experiment.methods()
    method, local = methods[label], experiment.local_of(label)
    by_weight = all(each.draws_by_weight for each in methods.values())
    sampler = as_sampler(experiment.cohort(), by_weight)
    law = law_of(sampler, sites, is_stateful(method, local), steady=False)
    return guarantee_of(privacy, law, experiment.rounds)


def _beyond(what: str, value: float, word: str, name: str, limit: float) -> str:
    return (
        f"is asked for {what} of {value:.4g}, {word} the limit {limit:g} ({name} in {LIMITS_FILE})"
    )
