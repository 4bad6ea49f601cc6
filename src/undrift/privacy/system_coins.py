"""Cohorts of a private deployment, drawn with the operating system's generator.

Amplification by sampling holds only while nobody can predict or repeat the coins, so they are not
functions of the run's seed, which every site knows.
"""

from __future__ import annotations

from random import SystemRandom

import numpy as np

from undrift.core.clients import Roster
from undrift.core.sampling import Bernoulli, Cohort, Sampler, Uniform


def secret_cohort(sampler: Sampler, roster: Roster, among: np.ndarray | None = None) -> Cohort:
    """A cohort that nobody can predict, among the clients where `among` is True; None for all."""
    random = SystemRandom()
    places = range(len(roster)) if among is None else np.flatnonzero(among).tolist()
    if isinstance(sampler, Bernoulli):
        places = [k for k in places if random.random() < sampler.probability]
    elif isinstance(sampler, Uniform):
        places = sorted(random.sample(list(places), min(sampler.K, len(places))))
    return {roster.ids[k]: 1 for k in places}
