"""The accountant against pinned values and an independent accountant, and an empirical audit."""

import math

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import undrift as ud
from looping import synchronous
from undrift.core.clients import Roster
from undrift.core.problem import Keep, Upload, Work
from undrift.core.replies import Replies, q_draws
from undrift.core.uploads import Senders
from undrift.privacy.accountant import default_delta, epsilon_spent
from undrift.privacy.clipping import JointClip
from undrift.privacy.mechanism import Guarantee, Mechanism
from undrift.privacy.noise_sources import KeyedNoise
from undrift.privacy.sampling import fixed_size, poisson

PINNED = [
    (0.01, 1.1, 1000, 1.5154, 1.7118),
    (0.1, 1.0, 100, 7.0466, 7.9039),
]
"""q, z, rounds, and ε at δ = 1e-5 by privacy loss distributions and by RDP."""


@pytest.mark.parametrize(("probability", "z", "rounds", "pld", "rdp"), PINNED)
def test_pinned_values(probability, z, rounds, pld, rdp):
    known = dict(noise=z, rounds=rounds, clients=1000, probability=probability, delta=1e-5)
    assert ud.privacy.epsilon(**known) == pytest.approx(pld, abs=5e-5)
    assert ud.privacy.epsilon(**known, accountant="rdp") == pytest.approx(rdp, abs=5e-5)


def fft_epsilon(probability, z, rounds, delta, step=2e-4, reach=60.0):
    """An accountant of its own: discretised privacy losses, composed by an FFT.

    Neighbours are P = (1 − q)N(0, z²) + qN(1, z²) and Q = N(0, z²), in both directions.
    """
    number = int(2 * reach / step)
    losses = (np.arange(number) - number // 2) * step
    worst = 0.0
    x = np.linspace(-12 * z, 12 * z + 1, 2_000_001)
    edges = (x[1:] + x[:-1]) / 2
    null = np.diff(stats.norm.cdf(edges, 0, z), prepend=0.0, append=1.0)
    moved = np.diff(stats.norm.cdf(edges, 1, z), prepend=0.0, append=1.0)
    mixed = (1 - probability) * null + probability * moved
    ratio = np.log1p(probability * np.expm1((2 * x - 1) / (2 * z**2)))  # log P/Q at x
    for mass, loss in ((mixed, ratio), (null, -ratio)):
        places = np.rint(loss / step).astype(int) + number // 2
        pmf = np.bincount(places.clip(0, number - 1), weights=mass, minlength=number)
        composed = np.fft.irfft(np.fft.rfft(np.roll(pmf, -(number // 2))) ** rounds, number)
        composed = np.roll(composed, number // 2).clip(0)

        def exceeds(epsilon, composed=composed):
            more = losses > epsilon
            return float((composed[more] * -np.expm1(epsilon - losses[more])).sum()) > delta

        low, high = 0.0, reach
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if exceeds(middle) else (low, middle)
        worst = max(worst, high)
    return worst


@pytest.mark.parametrize(
    ("probability", "z", "rounds"), [(0.01, 1.1, 1000), (0.1, 1.0, 100), (0.5, 2.0, 20), (1, 4, 5)]
)
def test_an_independent_accountant_agrees(probability, z, rounds):
    law = poisson(probability, 1000)
    found = epsilon_spent(z, law, rounds, 1e-5)
    assert found == pytest.approx(fft_epsilon(probability, z, rounds, 1e-5), rel=2e-3)


def analytic_gaussian(z, rounds, delta):
    """ε of a Gaussian mechanism without sampling, in closed form (Balle and Wang, ICML 2018)."""
    mu = math.sqrt(rounds) / z

    def exceeds(epsilon):
        a = stats.norm.cdf(mu / 2 - epsilon / mu)
        return a - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) > delta

    low, high = 0.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (5.0, 10), (20.0, 100)])
def test_without_amplification_the_closed_form_holds(z, rounds):
    everyone = ud.privacy.epsilon(noise=z, rounds=rounds, clients=50, delta=1e-5)
    assert everyone == pytest.approx(analytic_gaussian(z, rounds, 1e-5), rel=1e-3)
    # A fixed-size cohort of clients with state: replacing one moves the sum by 2C.
    fixed = epsilon_spent(z, fixed_size(5, 50, amplified=False), rounds, 1e-5)
    assert fixed == pytest.approx(analytic_gaussian(z / 2, rounds, 1e-5), rel=1e-3)


def test_fixed_size_cohorts():
    law = fixed_size(10, 1000, amplified=True)
    plain = fixed_size(10, 1000, amplified=False)
    amplified, not_amplified = (epsilon_spent(4.0, each, 20, 1e-5) for each in (law, plain))
    assert amplified < not_amplified / 3
    # Replacing one client moves the sum by 2C, which the library's event does not know.
    event = dp_event.SampledWithoutReplacementDpEvent(1000, 10, dp_event.GaussianDpEvent(2.0))
    replaced = NeighboringRelation.REPLACE_ONE
    by_hand = RdpAccountant(neighboring_relation=replaced).compose(event, 20).get_epsilon(1e-5)
    assert amplified == pytest.approx(by_hand, rel=1e-9)
    assert law.relation == plain.relation == "replace one client"
    # Wang et al.'s bound exceeds the plain one for nearly everyone; the smaller one counts.
    nearly = fixed_size(999, 1000, amplified=True)
    assert epsilon_spent(4.0, nearly, 20, 1e-5) <= not_amplified
    # Poisson sampling of the same share has half the sensitivity.
    assert epsilon_spent(4.0, poisson(0.01, 1000), 20, 1e-5, "rdp") < amplified
    assert fixed_size(50, 50, amplified=True).kind == "everyone"


def test_delta_and_degenerate_cases():
    assert default_delta(50) == 1e-5
    assert default_delta(10**6) == 1e-7
    assert ud.privacy.epsilon(noise=1, rounds=0, clients=10) == 0
    assert ud.privacy.epsilon(noise=0, rounds=1, clients=10) == math.inf
    assert ud.privacy.rounds(epsilon=0.01, noise=1, clients=10) == 0


@settings(max_examples=6, deadline=None)
@given(
    epsilon=st.floats(0.5, 8),
    rounds=st.integers(1, 200),
    probability=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
)
def test_any_two_give_the_third(epsilon, rounds, probability):
    sampled = dict(clients=1000, probability=probability)
    z = ud.privacy.noise(epsilon=epsilon, rounds=rounds, **sampled)
    spent = ud.privacy.epsilon(noise=z, rounds=rounds, **sampled)
    assert 0.97 * epsilon < spent <= epsilon
    most = ud.privacy.rounds(epsilon=epsilon, noise=z, **sampled)
    assert rounds <= most <= rounds * 1.06 + 1
    assert ud.privacy.epsilon(noise=z, rounds=most + 1, **sampled) > epsilon


def test_calibration_says_what_is_wrong():
    known = dict(noise=1.0, rounds=10, clients=10)
    with pytest.raises(ud.UndriftError, match="either a probability"):
        ud.privacy.epsilon(**known, probability=0.1, cohort=3)
    with pytest.raises(ud.UndriftError, match="cohort has 11 clients"):
        ud.privacy.epsilon(**known, cohort=11)
    with pytest.raises(ud.UndriftError, match="No noise multiplier up to"):
        ud.privacy.noise(epsilon=1e-7, rounds=10**4, clients=10)
    with pytest.raises(ud.UndriftError, match="nearly no noise"):
        ud.privacy.noise(epsilon=1e4, rounds=1, clients=10)
    with pytest.raises(ud.UndriftError, match="accountant is 'gdp'"):
        ud.privacy.epsilon(**known, accountant="gdp")


# An audit: many runs with and without a canary


def lower_bound(with_canary, without, thresholds, delta):
    """A lower bound on ε that holds with 95 %: Clopper–Pearson, Bonferroni over thresholds.

    An attacker says "present" above a threshold: (TPR − δ)/FPR ≤ e^ε, and (1 − FPR − δ)/(1 − TPR).
    """
    level = 0.05 / (4 * len(thresholds))
    best = 0.0
    for threshold in thresholds:
        for above in (True, False):
            hits = [float(((each > threshold) == above).sum()) for each in (with_canary, without)]
            yes, no = hits if above else hits[::-1]
            n, m = len(with_canary), len(without)
            n, m = (n, m) if above else (m, n)
            true_positive = stats.beta.ppf(level, yes, n - yes + 1) if yes else 0.0
            false_positive = stats.beta.ppf(1 - level, no + 1, m - no) if no < m else 1.0
            if true_positive > delta:
                best = max(best, math.log((true_positive - delta) / false_positive))
    return best


def audited(z, claimed, present, seed, runs=400_000, rounds=3, probability=0.5, clip=0.3):
    """The attacker's statistic of `runs` runs of a model with one parameter each.

    Every coordinate of the sums is a run of its own; the canary sends far more than it may.
    """
    clients = 4
    roster = Roster(range(clients), torch.ones(clients), "clients")
    mechanism = Mechanism(
        ud.privacy.Gaussian(noise=z, clip=clip),
        Guarantee(z, poisson(probability, clients), 1e-5, "pld"),
        ud.FedAvg(),
        roster,
        lambda rate: {},
        KeyedNoise(seed),
    )
    generator = torch.Generator().manual_seed(seed)
    transform = JointClip(clip, mechanism._scales)
    statistic = torch.zeros(runs, dtype=torch.float64)
    for round in range(rounds):
        replies = Replies({"moved": (q_draws,)}, clients)
        works = [Work(client=0, round=round, turn=round, steps=1, expected=1, rate=0.1, key=0)]
        rows = torch.full((runs, 1), 1e3 if present else 0.0, dtype=torch.float64)
        sent = transform.update(Upload(moved=rows), Keep(), Senders(0, works))[0].moved[:, 0]
        coins = torch.rand(runs, generator=generator) < probability
        replies.add(roster.client(0), Upload(moved=sent * coins))
        released = mechanism.release(replies, torch.zeros(runs, dtype=torch.float64), round, 0.1)
        seen = clients * released.sum("moved", by=q_draws) / (claimed * clip)
        # The log-likelihood ratio, by which the best attacker decides.
        exponent = seen / claimed - 1 / (2 * claimed**2)
        statistic += torch.log1p(probability * torch.expm1(exponent))
    return statistic


def test_the_audit_stays_below_the_claim_and_exceeds_it_if_the_noise_is_halved():
    """With 95 % per bound; seeded, so that the outcome is fixed."""
    z, delta = 1.0, 1e-5
    claimed = ud.privacy.epsilon(noise=z, rounds=3, clients=4, probability=0.5, delta=delta)
    bounds = {}
    for used in (z, z / 2):
        found = [audited(used, z, present, seed) for present, seed in ((True, 1), (False, 2))]
        # Thresholds from other runs, so that they do not depend on what is counted.
        trial = audited(used, z, False, 3)
        thresholds = [float(trial.quantile(share)) for share in (0.99, 0.999, 0.9999, 0.99997)]
        bounds[used] = lower_bound(*found, thresholds, delta)
    assert 0.5 * claimed < bounds[z] < claimed
    assert bounds[z / 2] > claimed


def increments(z, pull, rounds=800):
    """The server's moves in a whole run with a client that always wants to move the same way."""
    H = torch.full((2, 1, 1), 1e-12, dtype=torch.float64)
    b = torch.tensor([[pull], [0.0]], dtype=torch.float64)
    run = synchronous(
        ud.FedAvg(), ud.theory.Quadratics(H, b), ud.GD(lr=0.1, steps=1), ud.Bernoulli(0.7), rounds,
        objective="clients", seed=5, evaluation=ud.Evaluation(every=10**6),
        privacy=ud.privacy.Gaussian(noise=z, clip=0.3),
    )  # fmt: skip
    seen = [float(run.server.x)]
    for _ in run.rounds():
        seen.append(float(run.server.x))
    return np.diff(seen)[1:] * 0.7 * 2 / 0.3  # in units of the clipping norm


FLAT = torch.full((2, 1, 1), 1e-12, dtype=torch.float64)
"""Curvatures so small that a client's move does not depend on the model."""


@pytest.fixture
def halved_noise(monkeypatch):
    """A library that adds half of the noise that it accounts for."""
    whole = Mechanism.noise.fget
    monkeypatch.setattr(Mechanism, "noise", property(lambda self: whole(self) / 2))


def rounds_bound(delta):
    """The lower bound on the ε of one round, from the rounds of two long runs."""
    return lower_bound(increments(1.0, 1e6), increments(1.0, 0.0), [1.0], delta)


def rounds_claim(delta):
    return ud.privacy.epsilon(noise=1.0, rounds=1, clients=2, probability=0.7, delta=delta)


def test_the_audit_of_rounds_stays_below_the_claim():
    """Rounds of a run are independent releases; their audit includes cohorts, engine and fold."""
    assert 0.5 * rounds_claim(0.1) < rounds_bound(0.1) < rounds_claim(0.1)


def test_the_audit_of_rounds_notices_halved_noise(halved_noise):
    assert rounds_bound(0.1) > 1.5 * rounds_claim(0.1)


# Three rounds whose noise together is that of one round with the multiplier 1.
TRAINED = dict(rounds=3, noise=math.sqrt(3))
AUDITED_RUNS = 250


def trained_models(pull, seeds):
    """The models that `ud.train` returns, one for each seed, in units of the clipping norm."""
    problem = ud.theory.Quadratics(FLAT, torch.tensor([[pull], [0.0]], dtype=torch.float64))
    runs = (
        ud.train(
            ud.FedAvg(),
            problem=problem,
            local=ud.GD(lr=0.1, steps=1),
            rounds=TRAINED["rounds"],
            objective="clients",
            seed=seed,
            privacy=ud.privacy.Gaussian(noise=TRAINED["noise"], clip=0.3),
            progress=False,
        )
        for seed in seeds
    )
    return np.array([float(run.x) for run in runs]) * 2 / 0.3 / TRAINED["rounds"]


def trained_bound(delta):
    """The lower bound on ε from whole runs: their final models, with and without a canary."""
    present = trained_models(1e6, range(AUDITED_RUNS))
    absent = trained_models(0.0, range(AUDITED_RUNS, 2 * AUDITED_RUNS))
    return lower_bound(present, absent, [1.0], delta)


def trained_claim(delta):
    return ud.privacy.epsilon(clients=2, delta=delta, **TRAINED)


def test_the_audit_of_whole_runs_stays_below_the_claim():
    """Runs of `ud.train`; the bound is wrong with at most 5 %, and the seeds are fixed."""
    assert 0.3 * trained_claim(0.1) < trained_bound(0.1) < trained_claim(0.1)


def test_the_audit_of_whole_runs_notices_halved_noise(halved_noise):
    assert trained_bound(0.1) > 1.2 * trained_claim(0.1)
