"""The facts "theorem" and "moves" notice constants that promise too much and wrong ‖a‖₁."""

import pytest

from undrift.local.solvers import ANorm
from undrift.theory import consistency, feddyn, fedlga, step_sizes
from undrift.verify import named, theorems


def measured(fact, name):
    return max(fact(subject).error for subject in named(name) if fact(subject) is not None)


@pytest.mark.parametrize(
    ("method", "module", "name", "stronger"),
    [
        ("FedDR", step_sizes, "feddr_descent", lambda beta: 2 * beta),
        ("AsyncFedDR", step_sizes, "async_descent", lambda rho: 3 * rho),
        ("FedDyn", feddyn, "convex", lambda rate: rate._replace(kappa0=10 * rate.kappa0)),
        ("FedDyn", feddyn, "strongly_convex", lambda rate: rate._replace(kappa0=5 * rate.kappa0)),
        ("FedLGA", fedlga, "descent", lambda c1: 10 * c1),
        ("FedNova", consistency, "theorem3_bound", lambda bracket: bracket / 1e5),
    ],
)
def test_a_theorem_that_promises_too_much_is_noticed(monkeypatch, method, module, name, stronger):
    assert measured(theorems.theorem, method) <= 1e-12
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **options: stronger(right(*args, **options)))
    assert measured(theorems.theorem, method) > 1e-12


@pytest.mark.parametrize("method", ["FedAvg", "FedNova", "FedProx", "FedDyn", "FedSplit"])
@pytest.mark.parametrize("broken", ["momentum", "nesterov", "schedule"])
def test_a_solver_that_miscounts_its_gradients_is_noticed(monkeypatch, method, broken):
    right = ANorm.step

    def wrong(self, factor=1.0):
        if broken == "momentum":
            self._rho = 0.0
        if broken == "nesterov":
            self._nesterov = False
        right(self, 1.0 if broken == "schedule" else factor)

    assert measured(theorems.moves, method) <= 1e-12
    monkeypatch.setattr(ANorm, "step", wrong)
    assert measured(theorems.moves, method) > 1e-3
