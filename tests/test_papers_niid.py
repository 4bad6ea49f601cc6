"""NIID-Bench: the published table, its partitions, and claims that can fail."""

from importlib.resources import files

import numpy as np
import pytest

from undrift.experiments.experiment import Experiment
from undrift.reproduce.niid.cifar10 import METHODS, QUANTITY, ROWS, claims_of, weight_sum


def test_every_row_is_an_experiment_with_the_benchmarks_local_work():
    path = files("undrift.reproduce.niid") / "cifar10.toml"
    for row in ROWS.values():
        found = Experiment.load(str(path), row.settings)
        local = found.local
        assert (local.lr, local.batch_size, local.epochs) == (0.01, 64, 10)
        assert found.labels == list(METHODS)


def test_a_method_at_chance_in_print_is_judged_on_its_own():
    row = ROWS[QUANTITY]
    published = dict(zip(METHODS, row.published, strict=True))
    assert all(claim.holds for claim in claims_of(QUANTITY, row, published))
    best, at_chance = claims_of(QUANTITY, row, {**published, "FedNova": 70.0, "SCAFFOLD": 75.0})
    assert best.holds is False and at_chance.holds is False


def test_fednovas_weights_add_up_to_more_than_one_for_unequal_sizes():
    assert weight_sum(np.full(10, 0.1)) == pytest.approx(1.0)
    shares = np.array([0.5, 0.3, 0.1, 0.1])
    steps = shares * 1e4  # without momentum: Σ p²·Σ 1 over parties
    assert (shares @ steps) * (shares / steps).sum() == pytest.approx(4 * (shares**2).sum())
    assert weight_sum(shares) == pytest.approx(4 * (shares**2).sum(), rel=0.01)
