"""`CohortLaw`: how a run draws its cohorts, as far as its privacy depends on it.

The accountant reads from it whether sampling amplifies the guarantee, and the released sums read
their public denominators from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from undrift.core.sampling import All, Bernoulli, Sampler, Uniform
from undrift.utils.errors import UndriftError, require_range, require_whole

POISSON, FIXED, EVERYONE = "poisson", "fixed-size", "everyone"


@dataclass(frozen=True)
class CohortLaw:
    """How cohorts are drawn from N clients.

    Parameters
    ----------
    kind
        "poisson", each client independently with probability q; "fixed-size", K of N without
        replacement; "everyone", all clients in every round
    clients
        N
    probability
        q, the chance of a client to take part in a round: K/N for a fixed size, 1 for everyone
    amplified
        whether the secrecy of the cohort strengthens the guarantee
    """

    kind: str
    clients: int
    probability: float
    amplified: bool

    @property
    def mean(self) -> float:
        """qN, the mean size of a cohort, which takes the place of the number of replies."""
        return self.probability * self.clients

    @property
    def relation(self) -> str:
        """Which federations the guarantee calls neighbours."""
        return "replace one client" if self.kind == FIXED else "add or remove one client"

    @property
    def assumption(self) -> str:
        """What the guarantee assumes of the sampling."""
        if self.kind == POISSON:
            return f"Poisson sampling with q = {self.probability:g}: independent coins, kept secret"
        if self.kind == FIXED and self.amplified:
            return (
                f"fixed-size cohorts, {self.mean:g} of {self.clients} without replacement, kept "
                f"secret"
            )
        if self.kind == FIXED:
            return f"fixed-size cohorts of {self.mean:g}, without amplification by sampling"
        return "every client in every round, without amplification by sampling"


def poisson(probability: float, clients: int) -> CohortLaw:
    """Each of N clients takes part with a probability q, independently."""
    require_range("The sampling probability", probability, above=0, at_most=1)
    require_whole("The number of clients", clients, at_least=1)
    if probability == 1:
        return CohortLaw(EVERYONE, clients, 1.0, amplified=False)
    return CohortLaw(POISSON, clients, probability, amplified=True)


def fixed_size(cohort: int, clients: int, amplified: bool) -> CohortLaw:
    """K of N clients without replacement; `amplified` only if clients keep no state."""
    require_whole("The number of clients", clients, at_least=1)
    require_whole("The cohort", cohort, at_least=1)
    if cohort > clients:
        raise UndriftError(f"The cohort has {cohort} clients, but there are only {clients}.")
    if cohort == clients:
        return CohortLaw(EVERYONE, clients, 1.0, amplified=False)
    return CohortLaw(FIXED, clients, cohort / clients, amplified)


def law_of(sampler: Sampler, clients: int, stateful: bool, steady: bool = True) -> CohortLaw:
    """The law of a run's cohorts; an error for samplers whose law is not known.

    `stateful` says whether clients keep state; `steady`, whether all clients are always available:
    otherwise a fixed-size cohort is drawn among fewer clients, each with a larger chance.
    """
    if type(sampler) is Bernoulli:
        return poisson(sampler.probability, clients)
    if type(sampler) is Uniform:
        return fixed_size(sampler.K, clients, amplified=not stateful and steady)
    if type(sampler) is All:
        return CohortLaw(EVERYONE, clients, 1.0, amplified=False)
    raise UndriftError(
        f"privacy has no accountant for the cohorts of {type(sampler).__name__}: use "
        f"ud.Bernoulli(q), a fixed number of clients (ud.Uniform), or all clients."
    )
