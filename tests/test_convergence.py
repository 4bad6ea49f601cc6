"""The limits of all methods on random strongly convex quadratics, to 1e-10."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import undrift as ud
from undrift.core.clients import Roster
from undrift.theory import fixed_points

SEEDS = [0, 1, 2]
OBJECTIVES = ["samples", "clients"]
SPARSE = ud.L1(0.3)


def problem(seed):
    """Six clients of unequal size in five dimensions, curvature between 0.5 and 2."""
    return ud.theory.random_quadratics(6, 5, 0.5, 2.0, spread=1.0, seed=seed)


def weights(losses, objective):
    return Roster(losses.ids, losses.sizes, objective).weights


def end(method, losses, local, cohort, objective, goal=None, rounds=4000):
    """The final model of a run; it stops early when it is much closer to the goal than required.

    With full participation and a fixed rate, a round that changes no bit ends it too, because no
    later round would change one.
    """
    never = ud.Evaluation(every=10**6)
    still = cohort is None and isinstance(local, ud.GD) and isinstance(local.lr, float)
    before = None

    def close(run, record):
        nonlocal before
        same = still and before is not None and torch.equal(run.server.x, before)
        before = run.server.x
        return same or (goal is not None and float((run.server.x - goal).norm()) < 1e-12)

    return ud.train(
        method,
        problem=losses,
        local=local,
        rounds=rounds,
        cohort=cohort,
        objective=objective,
        seed=4,
        evaluate=never,
        callbacks=[close],
    ).x


STEPS = {k: 1 + k for k in range(6)}
GD = ud.GD(lr=0.1, steps=STEPS)
MOMENTUM = ud.GD(lr=0.02, steps=STEPS, momentum=0.9)
EXACT = ud.Exact()
TO_THE_OPTIMUM = {
    "SCAFFOLD": (ud.SCAFFOLD(), GD, 2),
    "SCAFFOLD I": (ud.SCAFFOLD("I"), GD, 2),
    "SCAFFOLD, momentum": (ud.SCAFFOLD(), MOMENTUM, 2),
    "FedNova VR": (ud.FedNova(variance_reduction=True), GD, 2),
    "FedNova VR, momentum": (ud.FedNova(variance_reduction=True), MOMENTUM, 2),
    "FedDyn": (ud.FedDyn(1.0), EXACT, 2),
    "FedDyn, GD": (ud.FedDyn(1.0), ud.GD(lr=0.1, steps=20), 2),
    "FedDyn, momentum": (ud.FedDyn(1.0), ud.GD(lr=0.02, steps=40, momentum=0.9), 2),
    "FedDR": (ud.FedDR(0.4, 1.0), EXACT, 2),
    "FedDR, GD": (ud.FedDR(0.4, 1.0), ud.GD(lr=0.1, steps=10), 2),
    "FedDR l1": (ud.FedDR(0.4, 1.0, SPARSE), EXACT, 2),
    "FedDR l1, everyone first": (ud.FedDR(0.4, 1.0, SPARSE, "everyone"), EXACT, 2),
    "FedDR l2": (ud.FedDR(0.4, 1.0, ud.L2(0.7)), EXACT, 2),
    "FedDR box": (ud.FedDR(0.4, 1.0, ud.Box(-0.2, 0.1)), EXACT, 2),
    "FedSplit": (ud.FedSplit(0.5), EXACT, None),
    "FedPD": (ud.FedPD(0.5), EXACT, None),
    "VRLSGD": (ud.VRLSGD(), ud.GD(lr=0.1, steps=4), None),
    "DistributedSGD": (ud.DistributedSGD(), GD, None),
}


@pytest.mark.parametrize(
    ("seed", "objective"), [(0, "samples"), (1, "clients"), (2, "samples"), (3, "clients")]
)
@pytest.mark.parametrize("case", TO_THE_OPTIMUM)
def test_method_reaches_the_optimum_of_f(case, seed, objective):
    method, local, cohort = TO_THE_OPTIMUM[case]
    losses = problem(seed)
    optimum = losses.optimum(weights(losses, objective), method.g)
    found = end(method, losses, local, cohort, objective, optimum)
    assert float((found - optimum).norm()) < 1e-10


def test_the_composite_optimum_is_partly_zero_and_satisfies_its_conditions():
    losses, g = ud.theory.random_composite(seed=1)
    q = weights(losses, "samples")
    x = losses.optimum(q, g)
    assert 0 < int((x == 0).sum()) < losses.dimension
    slope = -losses.total_gradient(x, q) / g.strength  # a subgradient of |x|₁
    assert torch.allclose(slope[x != 0], x.sign()[x != 0], atol=1e-12)
    assert bool((slope.abs() <= 1 + 1e-12).all())


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", SEEDS)
def test_averaging_methods_reach_their_closed_forms(seed, objective):
    losses = problem(seed)
    q, tau = weights(losses, objective), [STEPS[k] for k in range(6)]
    H, b = losses.H, losses.b
    expected = {
        ud.FedAvg(): fixed_points.fedavg(H, b, q, 0.1, tau),
        ud.FedProx(0.8): fixed_points.fedprox(H, b, q, 0.1, tau, 0.8),
        ud.FedNova(): fixed_points.fednova(H, b, q, 0.1, tau),
        ud.FedNova(mu=0.8): fixed_points.fednova(H, b, q, 0.1, tau, 0.8),
        ud.FedAvgMin(): fixed_points.fedavg(H, b, q, 0.1, 1),
    }
    optimum = losses.optimum(q)
    for method, point in expected.items():
        found = end(method, losses, GD, None, objective, point)
        assert float((found - point).norm()) < 1e-10
        if not isinstance(method, ud.FedAvgMin):
            assert float((point - optimum).norm()) > 1e-3  # they are biased


def test_fednovas_bias_vanishes_with_the_rate_and_fedavgs_does_not():
    losses = problem(0)
    q = weights(losses, "samples")
    bias = {}
    for lr in (0.1, 0.01):
        local = ud.GD(lr=lr, steps=STEPS)
        for method in (ud.FedAvg(), ud.FedNova()):
            found = end(method, losses, local, None, "samples", rounds=int(8 / lr))
            bias[method.name, lr] = float((found - losses.optimum(q)).norm())
    assert bias["FedNova", 0.01] < 0.12 * bias["FedNova", 0.1]
    assert bias["FedAvg", 0.01] > 0.5 * bias["FedAvg", 0.1]


TRIDIAGONAL = {  # E: (fixed rate: F, distance), (decayed rate: F, distance), the decay
    1: ((-0.094793, 7.5e-8), (-0.094784, 0.0661), 1e-6),
    5: ((-0.093437, 0.1402), (-0.094758, 0.0261), 1e-6),
    10: ((-0.091307, 0.2381), (-0.094598, 0.0589), 1e-6),
    50: ((-0.086816, 0.4792), (-0.094783, 0.0150), 1e-2),
    100: ((-0.085010, 0.6442), (-0.094750, 0.0300), 1e-2),
}


def test_the_tridiagonal_optimum_is_the_published_one():
    losses = ud.theory.tridiagonal()
    q = weights(losses, "clients")
    optimum = losses.optimum(q)
    assert losses.evaluate(optimum, q, {})["train_loss"] == pytest.approx(-0.09479301538508, 1e-12)
    assert float(optimum.norm()) == pytest.approx(2.52974596883, 1e-11)


def tridiagonal_rate(E, rate):
    """0.2, or 0.2/(5 + a·t), on twice the gradient."""
    return 0.4 if rate == "fixed" else ud.Inverse(2 * 0.2 / 5, TRIDIAGONAL[E][2] / 5)


def require_published(x, E, rate):
    losses = ud.theory.tridiagonal()
    q = weights(losses, "clients")
    F, distance = TRIDIAGONAL[E][rate == "decayed"]
    measured = float((x - losses.optimum(q)).norm())
    assert round(losses.evaluate(x, q, {})["train_loss"], 6) == F
    if distance < 1e-6:
        assert measured == pytest.approx(distance, rel=0.01)
    else:
        assert round(measured, 4) == distance


def test_the_tridiagonal_example_gives_the_published_numbers():
    losses = ud.theory.tridiagonal()
    local = ud.GD(lr=tridiagonal_rate(5, "fixed"), steps=5)
    found = end(ud.FedAvg("full"), losses, local, None, "clients", rounds=10_000)
    require_published(found, 5, "fixed")


@pytest.mark.parametrize("rate", ["fixed", "decayed"])
@pytest.mark.parametrize("E", TRIDIAGONAL)
def test_a_round_of_the_tridiagonal_example_is_the_map_that_leads_there(E, rate):
    """E steps of gradient descent are an affine map of x, by the eigenvectors of each H_k."""
    losses = ud.theory.tridiagonal()
    values, vectors = (part.numpy() for part in torch.linalg.eigh(losses.H))
    b = np.einsum("kji,kj->ki", vectors, losses.b.numpy())
    schedule = ud.schedules.as_schedule(tridiagonal_rate(E, rate))
    x = np.zeros(losses.dimension)
    for round in range(10_000):
        kept = (1 - schedule.at(round) * values) ** E
        turned = np.einsum("kji,j->ki", vectors, x)
        x = np.einsum("kij,kj->i", vectors, kept * turned + (1 - kept) / values * b) / len(b)
        if round == 59:
            local = ud.GD(lr=schedule, steps=E)
            found = end(ud.FedAvg("full"), losses, local, None, "clients", rounds=60)
            assert np.abs(found.numpy() - x).max() < 1e-12
    require_published(torch.as_tensor(x), E, rate)


def outside(method):
    """The same method, with the pull applied outside the local momentum."""

    class Outside(type(method)):
        def problem(self, down, mine, client):
            return replace(super().problem(down, mine, client), pull_outside_momentum=True)

    return Outside(**method.hyperparameters())


@pytest.mark.parametrize(
    ("method", "cohort", "off"),
    [
        (ud.FedDyn(3.0), 2, 1e30),
        (ud.FedPD(1.0), None, 1e30),
        (ud.FedDR(1.0, 1.0, SPARSE), 2, 0.05),
    ],
    ids=repr,
)
def test_the_pull_must_be_inside_the_momentum_of_methods_that_solve_for_it(method, cohort, off):
    """Outside, clients minimise a problem whose pull is weakened by 1 − ρ."""
    losses = problem(0)
    optimum = losses.optimum(weights(losses, "samples"), method.g)
    local = ud.GD(lr=0.05, steps=60, momentum=0.9)
    inside = end(method, losses, local, cohort, "samples", optimum, rounds=200)
    assert float((inside - optimum).norm()) < 1e-10
    found = end(outside(method), losses, local, cohort, "samples", optimum, rounds=200)
    assert float((found - optimum).norm()) >= off


def test_fedpd_is_biased_unless_every_round_communicates():
    losses = problem(0)
    optimum = losses.optimum(weights(losses, "samples"))
    found = end(ud.FedPD(0.5, communication=0.5), losses, EXACT, None, "samples", rounds=500)
    assert float((found - optimum).norm()) > 1e-2
