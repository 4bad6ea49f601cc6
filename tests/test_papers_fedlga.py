"""FedLGA's published numbers, and the rules for judging its claims."""

import pytest

from undrift.reproduce.fedlga import cifar, fmnist
from undrift.reproduce.fedlga.calibration import WITHOUT_SLOW, rate_of
from undrift.reproduce.fedlga.rounds import METHODS, before, first_claim, is_published_order
from undrift.reproduce.findings import over_seeds

IN_ALL = {  # seconds of a round and until the target: Table IV, in the order of METHODS
    "fmnist": (
        fmnist.PUBLISHED,
        (9.4, 12.2, 11.2, 12.2, 9.1, 8.9),
        (565.8, 869.3, 806.7, 1171.7, 910.0, 1032.4),
    ),
    "cifar10": (
        cifar.BOTH["cifar10"].published,
        (12.1, 12.8, 13.1, 13.4, 10.9, 10.7),
        (2668.6, 3251.2, 3636.2, 3932.1, 3640.6, 3741.5),
    ),
    "cifar100": (
        cifar.BOTH["cifar100"].published,
        (11.8, 12.7, 12.4, 12.9, 11.6, 11.3),
        (1711.0, 2057.4, 2287.8, 2747.7, 3120.4, 3130.1),
    ),
}


@pytest.mark.parametrize("name", IN_ALL)
def test_published_rounds_are_those_of_the_table_of_running_times(name):
    rounds, single, total = IN_ALL[name]
    found = {m: t / s for m, s, t in zip(METHODS, single, total, strict=True)}
    assert rounds == pytest.approx(found, abs=0.7)


def test_published_numbers_are_in_the_published_order():
    for rounds, _, _ in IN_ALL.values():
        assert is_published_order({method: over_seeds(value) for method, value in rounds.items()})


def test_a_method_is_before_another_only_if_no_seed_says_otherwise():
    assert before(over_seeds(10, 12), over_seeds(10, 14))
    assert not before(over_seeds(10, 12), over_seeds(10, 12))
    assert not before(over_seeds(5, 15), over_seeds(20, 14))


def test_the_claim_fails_when_another_method_is_first_and_is_open_when_nobody_arrives():
    slow = {method: over_seeds(20) for method in METHODS}
    assert first_claim("made up", {**slow, "FedLGA": over_seeds(19)}).holds is True
    assert first_claim("made up", {**slow, "FedAvg": over_seeds(19)}).holds is False
    assert first_claim("made up", {m: over_seeds(50, missed=1) for m in METHODS}).holds is None


def test_the_published_order_is_of_all_six():
    rounds = dict(zip(METHODS, map(over_seeds, (5, 6, 7, 8, 9, 10)), strict=True))
    assert is_published_order(rounds)
    assert not is_published_order({**rounds, "FedAvg": over_seeds(6)})


def test_the_rate_is_calibrated_on_the_rounds_without_slow_clients():
    assert WITHOUT_SLOW == 29
    rounds = {0.001: over_seeds(60, missed=1), 0.002: over_seeds(45), 0.003: over_seeds(31)}
    assert rate_of({**rounds, 0.005: over_seeds(18)}) == 0.003
    assert rate_of({0.001: over_seeds(60, missed=1), 0.01: over_seeds(12)}) == 0.01
