"""The rules of FedAvg's reproductions for judging claims, on numbers that pass and fail."""

import math
from statistics import fmean

import pytest
import torch

import undrift as ud
from undrift.core.clients import Roster
from undrift.reproduce.fedavg import bounds, tridiagonal
from undrift.reproduce.fedavg.data_sets import DATA
from undrift.reproduce.fedavg.local_steps import CURVES, common_level, falls, rises
from undrift.reproduce.fedavg.participation import little_effect
from undrift.reproduce.fedavg.schemes import ONE, TRANSFORMED, TWO, claims_on
from undrift.reproduce.fedavg.second_schemes import Numbers, clients_of, final_objective
from undrift.reproduce.findings import over_seeds

EQUAL = {ONE: 0.5, TWO: 0.51, TRANSFORMED: 0.51, "original": 0.6}
UNEQUAL = {ONE: 0.5, TWO: 0.9, TRANSFORMED: 0.7, "original": 0.6}
CALM = dict.fromkeys(UNEQUAL, 0.01)


def verdicts(where, loss, moved):
    return [claim.holds for claim in claims_on(where, loss, moved)]


def test_a_number_agrees_only_to_all_printed_digits():
    assert tridiagonal.as_printed(0.14021, "0.1402")
    assert not tridiagonal.as_printed(0.14026, "0.1402")
    assert tridiagonal.as_printed(7.524e-8, "7.5e-08")
    assert not tridiagonal.as_printed(7.56e-8, "7.5e-08")
    assert tridiagonal.as_printed(-0.0850101, "-0.085010")


def test_schemes_on_equal_sizes():
    assert verdicts("MNIST balanced", EQUAL, CALM) == [True, True, True]
    assert verdicts("MNIST balanced", {**EQUAL, TWO: 0.58}, CALM) == [False, True, False]
    assert verdicts("MNIST balanced", {**EQUAL, "original": 0.4}, CALM)[1] is False


def test_schemes_on_unequal_sizes():
    wild = {**CALM, TWO: 0.1}
    assert verdicts("MNIST unbalanced", UNEQUAL, wild) == [True, True, True]
    assert verdicts("MNIST unbalanced", UNEQUAL, CALM)[1] is False
    assert verdicts("MNIST unbalanced", UNEQUAL, {**CALM, TWO: math.inf})[1] is True
    assert verdicts("MNIST unbalanced", {**UNEQUAL, ONE: 0.65}, wild) == [False, True, True]
    assert verdicts("MNIST unbalanced", UNEQUAL, {**wild, TRANSFORMED: 0.1})[2] is False
    assert verdicts("synthetic(0,0)", UNEQUAL, wild)[3] is True
    assert verdicts("synthetic(0,0)", {**UNEQUAL, "original": 0.8}, wild)[3] is False


def test_little_effect_of_the_cohort():
    assert little_effect({10: 1.09, 100: 1.0})
    assert not little_effect({10: 1.2, 100: 1.0})
    assert not little_effect({10: 0.8, 100: 1.0})


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ((over_seeds(100), over_seeds(50), over_seeds(80)), (True, True)),
        ((over_seeds(100), over_seeds(50), over_seeds(40)), (True, False)),
        ((over_seeds(50), over_seeds(60), over_seeds(80)), (False, True)),
        ((over_seeds(150, missed=1), over_seeds(50), over_seeds(40)), (True, False)),
        (
            (over_seeds(150, missed=1), over_seeds(150, missed=1), over_seeds(150, missed=1)),
            (None, None),
        ),
        ((over_seeds(100), over_seeds(50), over_seeds(150, missed=1)), (True, True)),
    ],
)
def test_a_curve_that_falls_and_rises(rounds, expected):
    found = dict(zip((10, 20, 50), rounds, strict=True))
    assert (falls(found), rises(found)) == expected


def test_every_curve_has_its_data_and_published_rounds():
    assert set(CURVES) == set(DATA)
    for curve in CURVES.values():
        assert set(curve.tried) <= set(curve.published)


def test_an_error_that_decays_more_slowly_grows():
    steps = range(1, 101)
    early, late = bounds.growth([t * 3 / t for t in steps])
    assert late == pytest.approx(early)
    early, late = bounds.growth([t / math.sqrt(t) for t in steps])
    assert late > 1.1 * early


def test_the_computed_constants_bound_every_stochastic_gradient():
    """Check on a run of plain SGD with batches of single samples, which vary the most."""
    found, problem = bounds.constants(), bounds.PROBLEM
    x, rate = problem.initial(), 1 / (4 * found.L)
    for step in range(50):
        k = step % bounds.N
        with problem.training(k, {}, 0) as loss:
            each = torch.stack(
                [loss.gradient(x, torch.tensor([i]).numpy()) for i in range(bounds.SAMPLES)]
            )
        assert float(each.norm(dim=1).max()) <= found.G
        spread = (each - each.mean(0)).square().sum(1).mean() / bounds.BATCH
        assert float(spread) <= float(found.sigma[k]) ** 2
        x = x - rate * each[step % bounds.SAMPLES]


def test_the_tight_bounds_notice_a_halved_constant():
    noise = bounds.TIGHT[0]
    error = fmean(bounds.tight_errors(noise, 1, seed)["error"][-1] for seed in range(6))
    reached, stated = bounds.one_step(noise, error, 1)
    assert 0.5 * stated < reached < 1.15 * stated
    for case in bounds.TIGHT:
        error = fmean(bounds.tight_errors(case, 30, seed)["error"][-1] for seed in range(12))
        assumed = bounds.constants_of_points(case.problem, case.cohort, 30)
        ratio = case.bound(assumed).bound(30) / error
        assert 1 < ratio < 2 * case.most


def test_the_target_of_a_curve_without_one_is_the_lowest_that_all_reach():
    assert common_level([[3.0, 1.0, 2.0], [4.0, 1.5]]) == 1.5


@pytest.mark.parametrize("scheme", ["I", "transformed II", "original"])
def test_the_second_implementation_agrees_with_the_library(scheme):
    data = ud.data.synthetic(1, 1, clients=12, seed=1, most=60)
    result = ud.train(
        ud.FedAvg(scheme),
        model=ud.models.logistic(60, 10),
        data=data,
        local=ud.SGD(
            lr=ud.Inverse(0.1), batch_size=10_000, steps=3, weight_decay=2e-4, fresh_batches=True
        ),
        cohort=ud.Weighted(10) if scheme == "I" else 10,
        rounds=4,
        seed=3,
        progress=False,
    )
    whole = Numbers(steps=3, rounds=4, batch=10_000, rate=0.1)  # full batches: no other draws
    roster = Roster(data.ids, data.train.sizes)
    found = final_objective(scheme, clients_of(data), roster, whole, seed=3, last=1)
    assert result.records[-1].metrics["objective"] == pytest.approx(found, rel=1e-5)
