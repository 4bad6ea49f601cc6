"""Calibration: any one of ε, the noise multiplier and the number of rounds from the other two."""

from __future__ import annotations

from undrift.privacy.accountant import NOTHING, PLD, Measured, default_delta, epsilon_spent
from undrift.privacy.gaussian import ACCOUNTANTS, NoisyMetrics
from undrift.privacy.sampling import CohortLaw, fixed_size, poisson
from undrift.utils.errors import UndriftError, require, require_choice, require_range, require_whole

LARGEST_NOISE = 1e6
"""A budget that needs a larger noise multiplier is refused."""
SMALLEST_NOISE = 0.1
NOISE_PRECISION = 1e-4
"""Relative precision of the search for a noise multiplier; it is rounded up."""
COARSE = 10
"""The search for noise discretises ten times more coarsely: its ε is slightly too large, so that
its noise is sufficient."""
MOST_ROUNDS = 10_000_000


def epsilon(
    *,
    noise: float,
    rounds: int,
    clients: int,
    probability: float | None = None,
    cohort: int | None = None,
    stateful: bool = False,
    delta: float | None = None,
    accountant: str = PLD,
) -> float:
    """The ε that some rounds spend.

    Parameters
    ----------
    noise
        z, the noise multiplier
    rounds
        the number of rounds
    clients
        N, the number of all clients
    probability, cohort
        q of Poisson sampling (`ud.Bernoulli`), or K of a fixed-size cohort (`ud.Uniform`); neither
        for all clients in every round
    stateful
        whether clients keep state, so that fixed-size cohorts do not amplify
    delta
        δ; None for min(1e-5, 1/(10N))
    accountant
        "pld" or "rdp"
    """
    require_range("noise", noise, at_least=0)
    require_whole("rounds", rounds, at_least=0)
    law = law_from(clients, probability, cohort, stateful)
    return epsilon_spent(noise, law, rounds, _checked(delta, clients, accountant), accountant)


def noise(
    *,
    epsilon: float,
    rounds: int,
    clients: int,
    probability: float | None = None,
    cohort: int | None = None,
    stateful: bool = False,
    delta: float | None = None,
    accountant: str = PLD,
) -> float:
    """The smallest noise multiplier whose rounds spend at most `epsilon`; see `epsilon`."""
    require_range("epsilon", epsilon, above=0)
    require_whole("rounds", rounds, at_least=1)
    law = law_from(clients, probability, cohort, stateful)
    return noise_for(epsilon, law, rounds, _checked(delta, clients, accountant), accountant)


def rounds(
    *,
    epsilon: float,
    noise: float,
    clients: int,
    probability: float | None = None,
    cohort: int | None = None,
    stateful: bool = False,
    delta: float | None = None,
    accountant: str = PLD,
) -> int:
    """The largest number of rounds that spend at most `epsilon`; see `epsilon`."""
    require_range("epsilon", epsilon, above=0)
    require_range("noise", noise, above=0)
    law = law_from(clients, probability, cohort, stateful)
    return rounds_within(epsilon, law, noise, _checked(delta, clients, accountant), accountant)


def law_from(
    clients: int, probability: float | None, cohort: int | None, stateful: bool
) -> CohortLaw:
    """The law of cohorts that are given by a probability, by a size, or are everyone."""
    require(
        probability is None or cohort is None,
        "Give either a probability (Poisson sampling) or a cohort (of a fixed size), not both.",
    )
    if probability is not None:
        return poisson(probability, clients)
    return fixed_size(clients if cohort is None else cohort, clients, amplified=not stateful)


def measured(metrics: NoisyMetrics | None, rounds: int, more: int = 0) -> Measured:
    """The noisy metrics of a run of some rounds, and `more` evaluations."""
    if metrics is None:
        return NOTHING
    return Measured(metrics.noise, metrics.evaluations(rounds) + more)


def noise_for(
    epsilon: float,
    law: CohortLaw,
    rounds: int,
    delta: float,
    accountant: str,
    metrics: NoisyMetrics | None = None,
) -> float:
    """The smallest noise multiplier, to about a thousandth above, that keeps within ε."""
    besides = measured(metrics, rounds)
    alone = epsilon_spent(0.0, law, 0, delta, accountant, COARSE, besides)
    require(
        alone < epsilon,
        f"The noisy metrics alone spend ε = {alone:.3g}, and the budget is {epsilon:g}: give them "
        f"more noise, or evaluate less often.",
    )

    def holds(z: float) -> bool:
        return epsilon_spent(z, law, rounds, delta, accountant, COARSE, besides) <= epsilon

    high = 1.0
    while not holds(high):
        high *= 2
        require(
            high <= LARGEST_NOISE,
            f"No noise multiplier up to {LARGEST_NOISE:g} keeps {rounds} rounds within ε = "
            f"{epsilon:g}: allow a larger epsilon or fewer rounds.",
        )
    # Little noise makes the privacy loss, and the accountant's arrays, very large.
    low = high / 2
    while holds(low):
        low, high = low / 2, low
        if low < SMALLEST_NOISE:
            raise UndriftError(
                f"ε = {epsilon:g} allows nearly no noise, which protects nobody: give a smaller "
                f"epsilon."
            )
    while high - low > NOISE_PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def rounds_within(
    epsilon: float,
    law: CohortLaw,
    noise: float,
    delta: float,
    accountant: str,
    metrics: NoisyMetrics | None = None,
    more: int = 0,
) -> int:
    """The largest number of rounds that keep within ε; 0 if a single one does not.

    `more` evaluations are spent besides those that `metrics` says.
    """

    def holds(number: int) -> bool:
        besides = measured(metrics, number, more)
        return epsilon_spent(noise, law, number, delta, accountant, 1, besides) <= epsilon

    if not holds(1):
        return 0
    low = 1
    while holds(2 * low):
        low *= 2
        if low > MOST_ROUNDS:
            return MOST_ROUNDS
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _checked(delta: float | None, clients: int, accountant: str) -> float:
    require_choice("accountant", accountant, ACCOUNTANTS)
    if delta is None:
        return default_delta(clients)
    require_range("delta", delta, above=0, below=1)
    return delta
