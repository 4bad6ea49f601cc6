"""The accountant: the ε that a number of noisy sums spends, with the library `dp-accounting`.

ε is a function of the noise, the law of the cohorts, the number of releases and δ, and of nothing
else, so that a resumed run reports the same numbers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

from undrift.privacy.sampling import EVERYONE, FIXED, POISSON, CohortLaw
from undrift.utils.errors import UndriftError

PLD, RDP = "pld", "rdp"
GRID = 1e-4
"""The interval at which privacy losses are discretised, rounded up. Below a noise multiplier of 1
the losses grow like 1/z², and so does the interval."""
MOST_DELTA = 1e-5
CACHED = 4096
LEAST_NOISE = 0.01
"""ε counts as infinite with a smaller noise multiplier: it is above 5000, and protects nobody."""


class Measured(NamedTuple):
    """Noisy metrics that were released: every client takes part in every one of them."""

    noise: float
    """the noise multiplier of one"""
    times: int


NOTHING = Measured(0.0, 0)


def default_delta(clients: int) -> float:
    """min(1e-5, 1/(10N)): a δ near 1/N would allow to publish one client's data."""
    return min(MOST_DELTA, 1 / (10 * clients))


def accountant_used(law: CohortLaw, accountant: str) -> str:
    """The accountant that is used: only RDP knows amplified cohorts of a fixed size."""
    return RDP if law.kind == FIXED and law.amplified else accountant


@lru_cache(maxsize=CACHED)
def epsilon_spent(
    noise: float,
    law: CohortLaw,
    releases: int,
    delta: float,
    accountant: str = PLD,
    coarse: int = 1,
    metrics: Measured = NOTHING,
) -> float:
    """ε at δ of `releases` sums with noise multiplier z; ∞ without noise.

    Parameters
    ----------
    noise
        z, the standard deviation of the noise in units of the clipping norm
    law
        how cohorts are drawn
    releases
        the number of rounds
    delta, accountant
        δ, and "pld" or "rdp"
    coarse
        how many times larger the interval of discretisation is: less work, and a slightly larger ε
    metrics
        the noisy metrics that were released besides
    """
    if metrics.times == 0:
        metrics = NOTHING
    if releases == metrics.times == 0:
        return 0.0
    used = [z for z, number in ((noise, releases), (metrics.noise, metrics.times)) if number]
    if min(used) < LEAST_NOISE:
        return math.inf
    if law.kind == POISSON:
        return _poisson(noise, law.probability, releases, delta, accountant, coarse, metrics)
    if law.kind == EVERYONE:
        return _poisson(noise, 1.0, releases, delta, accountant, coarse, metrics)
    # Replacing a client moves a sum twice as far: the noise counts as half as large.
    halved = Measured(metrics.noise / 2, metrics.times)
    unamplified = _poisson(noise / 2, 1.0, releases, delta, accountant, coarse, halved)
    if not law.amplified:
        return unamplified
    events = _library().dp_event
    event = events.SampledWithoutReplacementDpEvent(
        law.clients, round(law.mean), events.GaussianDpEvent(noise / 2)
    )
    # The bound for cohorts of nearly everyone is larger than the one without amplification.
    return min(_rdp(event, releases, delta, "REPLACE_ONE", halved), unamplified)


def _poisson(
    noise: float,
    probability: float,
    releases: int,
    delta: float,
    accountant: str,
    coarse: int,
    metrics: Measured,
) -> float:
    if accountant == PLD:
        # Distributions are composed on one grid, which the smaller noise decides.
        used = [z for z, n in ((noise, releases), (metrics.noise, metrics.times)) if n]
        grid = coarse * GRID * max(1.0, min(used) ** -2)
        parts = []
        if releases:
            parts.append(_loss_distribution(noise, probability, grid).self_compose(releases))
        if metrics.times:
            everyone = _loss_distribution(metrics.noise, 1.0, grid)
            parts.append(everyone.self_compose(metrics.times))
        found = parts[0] if len(parts) == 1 else parts[0].compose(parts[1])
        return float(found.get_epsilon_for_delta(delta))
    events = _library().dp_event
    event: Any = events.GaussianDpEvent(noise)
    if probability < 1:
        event = events.PoissonSampledDpEvent(probability, event)
    return _rdp(event, releases, delta, "ADD_OR_REMOVE_ONE", metrics)


@lru_cache(maxsize=64)
def _loss_distribution(noise: float, probability: float, grid: float) -> Any:
    """The privacy loss distribution of one release."""
    _library()
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=probability,
        value_discretization_interval=grid,
        use_connect_dots=True,
    )


def _rdp(event: Any, releases: int, delta: float, relation: str, metrics: Measured) -> float:
    library = _library()
    relations = library.privacy_accountant.NeighboringRelation
    with _quiet():
        found = library.rdp.RdpAccountant(neighboring_relation=relations[relation])
        if releases:
            found.compose(event, releases)
        if metrics.times:
            found.compose(library.dp_event.GaussianDpEvent(metrics.noise), metrics.times)
        return float(found.get_epsilon(delta))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's notes on orders of RDP that it leaves out; the others decide."""
    log = logging.getLogger("absl")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _library() -> ModuleType:
    try:
        import dp_accounting
    except ImportError:
        raise UndriftError(
            "The accountant of differential privacy needs the package dp-accounting: pip install "
            "'undrift[privacy]'."
        ) from None
    found: ModuleType = dp_accounting
    return found
