"""A site's share of the noise of differential privacy, which it adds before it masks its upload.

The server then never sees a sum without noise. Each share has 1/(t − c) of the variance, so that
the fewest honest survivors of a round, t − c, add as much as the guarantee needs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from undrift.core.replies import Weight
from undrift.core.sampling import All
from undrift.deploy.policy.agreed_run import AgreedRun
from undrift.privacy.mechanism import Mechanism, guarantee_of
from undrift.privacy.noise_sources import SystemNoise
from undrift.privacy.sampling import law_of
from undrift.privacy.scales import upload_scales


class NoiseShare:
    """The noise of one site in one round, from the operating system's generator.

    Parameters
    ----------
    run
        the private run as the site derives it
    round
        the round, which decides the learning rate
    shares
        t − c, the number of shares that suffice
    """

    def __init__(self, run: AgreedRun, round: int, shares: int):
        privacy = run.privacy
        assert privacy is not None
        # Against the server no cohort is secret, so that every site counts as taking part.
        law = law_of(All(), len(run.roster), stateful=True)
        scales = upload_scales(run.method, run.job.local, privacy.steps)
        mechanism = Mechanism(
            privacy,
            guarantee_of(privacy, law, run.rounds),
            run.method,
            run.roster,
            scales,
            SystemNoise(),
        )
        self._source = mechanism.source
        self._round = round
        self._deviation = mechanism.deviation(run.job.local.rate(round))
        self._shares = shares
        self._mechanism = mechanism

    def vector(self, name: str, size: int) -> NDArray[np.float64]:
        """The noise of an uploaded vector, for the weight 1."""
        normal = self._source.normal(name, self._round, size).numpy()
        found: NDArray[np.float64] = self._deviation(name) / math.sqrt(self._shares) * normal
        return found

    def largest(self, weight: Weight) -> float:
        """The largest weight of a site, by which the noise of a sum is multiplied."""
        return self._mechanism.largest(weight)
