"""Local solvers: against torch.optim, closed forms, and the counts they report."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from undrift.core.losses import ClientLoss
from undrift.core.problem import LocalProblem, Work
from undrift.local.solvers import ANorm, batches
from undrift.theory import consistency
from undrift.utils.keys import hashes, keys


class Recorded(ClientLoss):
    """½|x − target|² on identical samples; records the batches it is asked for."""

    def __init__(self, samples, target):
        self.samples = samples
        self.target = target
        self.batches = []

    def gradient(self, x, batch=None):
        self.batches.append(None if batch is None else batch.tolist())
        return x - self.target


KEY = int(keys(0, "batches", 0, hashes(["me"]))[0])


def planned(solver, client, samples, round):
    return solver.steps_of(solver.amount(client, round), samples)


def work(solver, samples=10, round=0, steps=None, rate=None):
    full = planned(solver, "me", samples, round)
    return Work(
        client="me",
        round=round,
        turn=round,
        steps=full if steps is None else steps,
        expected=full,
        rate=solver.rate(round) if rate is None else rate,
        key=KEY,
    )


def solve(solver, samples=10, problem=None, **options):
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    loss = Recorded(samples, torch.tensor([0.5, 3.0], dtype=torch.float64))
    problem = problem or LocalProblem(start=start)
    return solver.run(loss, problem, work(solver, samples, **options)), loss


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
        {"momentum": 0.5, "weight_decay": 0.1, "nesterov": True},
    ],
)
def test_sgd_is_torchs_sgd(options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(17, 3).double(), torch.randint(0, 2, (17,))
    data = ud.data.FederatedData.from_clients({"me": (x, y)})
    solver = ud.SGD(lr=0.3, batch_size=5, epochs=3, **options)
    found = ud.train(ud.FedAvg(), model=model, data=data, local=solver, rounds=1).x

    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, **options)
    stream = batches(17, 5, KEY)
    for batch in itertools.islice(stream, 3 * 4):
        optimizer.zero_grad()
        rows = torch.from_numpy(batch)
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(found, expected, rtol=0, atol=1e-13)


@given(st.integers(1, 40), st.integers(1, 45), st.integers(1, 4), st.integers(0, 5))
def test_an_epoch_visits_every_sample_once_and_keeps_its_last_batch(n, size, epochs, seed):
    per_epoch = math.ceil(n / size)
    drawn = list(itertools.islice(batches(n, size, seed), epochs * per_epoch))
    whole = [np.arange(n) if batch is None else batch for batch in drawn]
    assert all(0 < len(batch) <= size for batch in whole)
    for epoch in range(epochs):
        seen = np.concatenate(whole[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(seen) == list(range(n))


def test_fresh_batches_are_new_draws():
    drawn = list(itertools.islice(batches(10, 6, 0, fresh=True), 50))
    assert all(len(set(batch.tolist())) == 6 for batch in drawn)
    assert any(set(a.tolist()) & set(b.tolist()) for a, b in itertools.pairwise(drawn))


def test_epochs_steps_and_evaluations_are_counted():
    result, loss = solve(ud.SGD(lr=0.1, batch_size=4, epochs=2), samples=10)
    assert result.steps == result.expected == 6
    assert result.complete
    assert [len(batch) for batch in loss.batches] == [4, 4, 2, 4, 4, 2]
    assert result.evaluations == 20
    result, _ = solve(ud.SGD(lr=0.1, batch_size=4, steps=5), samples=10)
    assert result.steps == 5
    result, _ = solve(ud.GD(lr=0.1, steps=5), samples=10)
    assert result.evaluations == 50


def test_unfinished_work_is_reported():
    result, _ = solve(ud.GD(lr=0.1, steps=5), steps=2)
    assert (result.steps, result.expected, result.complete) == (2, 5, False)


A_NORMS = {
    "sgd": ({}, {}, lambda tau: tau),
    "momentum": ({"momentum": 0.9}, {}, lambda tau: consistency.a_norm_momentum(tau, 0.9)),
    "proximal": ({}, {"weight": 0.5}, lambda tau: consistency.a_norm_proximal(tau, 0.1 * 0.5)),
    "decay": (
        {"step_schedule": ud.Exponential(1.0, 0.8)},
        {},
        lambda tau: consistency.a_norm_decay(tau, 0.8),
    ),
}


@pytest.mark.parametrize("tau", [1, 2, 10, 37])
@pytest.mark.parametrize("case", A_NORMS)
def test_a_norm_has_its_closed_form(case, tau):
    options, tilt, closed = A_NORMS[case]
    start = torch.ones(2, dtype=torch.float64)
    problem = LocalProblem(start=start, center=start, pull_outside_momentum=True, **tilt)
    result, _ = solve(ud.GD(lr=0.1, steps=tau, **options), problem=problem)
    assert result.a_norm == pytest.approx(float(closed(tau)), rel=1e-12)


def test_a_norm_has_the_published_values():
    def total(tau, **options):
        a_norm = ANorm(**options)
        for _ in range(tau):
            a_norm.step()
        return a_norm.value

    assert total(2, momentum=0.9) == pytest.approx(2.9, abs=1e-12)
    assert round(total(10, momentum=0.9), 2) == 41.38
    assert round(total(10, momentum=0.9, pull=0.01), 2) == 40.05


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("outside", [False, True])
@given(
    tau=st.integers(1, 12),
    momentum=st.floats(0.1, 0.95),
    pull=st.floats(0, 2),
    rate=st.floats(0.5, 1.0),
)
@settings(max_examples=40, deadline=None)
def test_a_norm_is_how_far_a_constant_gradient_goes(tau, momentum, pull, rate, nesterov, outside):
    """On a loss with gradient 1 everywhere, a client moves by −η‖a‖₁."""

    class Slope(ClientLoss):
        samples = 1

        def gradient(self, x, batch=None):
            return torch.ones_like(x)

    solver = ud.GD(lr=0.1 * rate, steps=tau, momentum=momentum, nesterov=nesterov)
    start = torch.zeros(1, dtype=torch.float64)
    problem = LocalProblem(start=start, center=start, weight=pull, pull_outside_momentum=outside)
    result = solver.run(Slope(), problem, work(solver, rate=0.1))
    assert float(result.x[0]) == pytest.approx(-0.1 * result.a_norm, rel=1e-9)


def test_clipping_bounds_the_gradient_with_its_linear_term():
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    problem = LocalProblem(start=start, linear=torch.tensor([30.0, 40.0], dtype=torch.float64))
    result, _ = solve(ud.GD(lr=1.0, steps=1, clip=0.5), problem=problem)
    assert float((result.x - start).norm()) == pytest.approx(0.5)
    free, _ = solve(ud.GD(lr=1.0, steps=1, clip=1e6), problem=problem)
    assert float((free.x - start).norm()) > 10


def test_momentum_inside_the_buffer_finds_the_minimiser_of_the_local_problem():
    start = torch.zeros(2, dtype=torch.float64)
    target = torch.tensor([0.5, 3.0], dtype=torch.float64)
    center = torch.tensor([2.0, 2.0], dtype=torch.float64)
    linear = torch.tensor([1.0, 0.0], dtype=torch.float64)
    problem = LocalProblem(start=start, linear=linear, center=center, weight=3.0)
    result, _ = solve(ud.GD(lr=0.02, steps=2000, momentum=0.9), problem=problem)
    assert torch.allclose(result.x, (target - linear + 3 * center) / 4, atol=1e-12)


@pytest.mark.parametrize("relative", ["no", "gradient", "step"])
def test_a_tolerance_stops_the_work(relative):
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    problem = LocalProblem(start=start, center=start, weight=1.0)
    solver = ud.GD(lr=0.1, steps=10_000, tolerance=1e-3, relative=relative)
    result, loss = solve(solver, problem=problem)
    gradient = float((2 * result.x - loss.target - start).norm())
    first = float((start - loss.target).norm())
    allowed = {"no": 1, "gradient": first, "step": float((result.x - start).norm())}
    assert gradient <= 1e-3 * allowed[relative]
    assert 10 < result.steps < 200
    assert result.complete
    bounded, _ = solve(ud.GD(lr=0.1, steps=5, tolerance=1e-9))
    assert (bounded.steps, bounded.complete) == (5, True)


def test_a_tolerance_may_differ_by_client_and_round():
    def accuracy(client, round):
        return 10.0 ** -(1 + round)

    def steps(tolerance, round=0):
        solver = ud.GD(lr=0.1, steps=10_000, tolerance=tolerance)
        return solve(solver, round=round)[0].steps

    assert steps(accuracy, 0) == steps(1e-1) < steps(accuracy, 3) == steps({"me": 1e-4})
    with pytest.raises(ud.UndriftError, match="tolerance of client 'me'"):
        steps(lambda client, round: 0.0)


def test_a_tolerance_with_minibatches_is_checked_every_epoch():
    solver = ud.SGD(lr=0.5, batch_size=4, epochs=50, tolerance=1e-3)
    result, loss = solve(solver, samples=10)
    assert result.steps % 3 == 0
    assert 0 < result.steps < 150
    assert result.evaluations == 10 * (result.steps // 3) + 10 * (result.steps // 3 + 1)
    assert loss.batches.count(None) == result.steps // 3 + 1


def test_the_exact_solver_solves_the_local_problem():
    losses = ud.theory.random_quadratics(seed=2)
    x = losses.initial()
    problem = LocalProblem(start=x, linear=x + 1, center=x - 2, weight=0.7, scale=1.4)
    with losses.training(3, {}, 0) as loss:
        found = ud.Exact(weight_decay=0.2).run(loss, problem, work(ud.Exact())).x
    gradient = 1.4 * (losses.gradient(3, found) + 0.2 * found) + x + 1 + 0.7 * (found - x + 2)
    assert float(gradient.norm()) < 1e-12


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (ud.Constant(0.1), [0.1, 0.1, 0.1]),
        (ud.Inverse(0.1), [0.1, 0.05, 0.1 / 3]),
        (ud.Inverse(0.1, 2.0), [0.1, 0.1 / 3, 0.02]),
        (ud.Exponential(0.1, 0.5), [0.1, 0.05, 0.025]),
        (ud.Milestones(0.1, [1, 2], 0.2), [0.1, 0.02, 0.004]),
    ],
)
def test_schedules(schedule, values):
    assert [schedule.at(t) for t in range(3)] == pytest.approx(values)
    assert schedule.within(1, 5) == 1.0


def test_theorem_1s_rate_counts_steps_over_the_whole_run():
    schedule = ud.Theorem1(mu=0.5, L=2.0, E=5)
    assert schedule.gamma == 32
    for t in range(4):
        for s in range(5):
            rate = schedule.at(t) * schedule.within(t, s)
            assert rate == pytest.approx(2 / (0.5 * (32 + 5 * t + s)))


def test_work_per_client_and_per_round():
    solver = ud.SGD(lr=0.1, batch_size=None, steps=lambda client, round: 1 + client + 10 * round)
    assert planned(solver, 3, 10, 0) == 4
    assert planned(solver, 3, 10, 2) == 24
    assert planned(ud.SGD(lr=0.1, batch_size=4, epochs={7: 3}), 7, 9, 0) == 9
    both = ud.PerClient(ud.GD(lr=0.1, steps=2), {1: ud.GD(lr=0.05, steps=4)})
    assert planned(both.of(1), 1, 10, 0) == 4
    assert planned(both.of(2), 2, 10, 0) == 2
    assert both.rate(0) == 0.1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ud.SGD(lr=-1.0), "lr is -1.0"),
        (lambda: ud.SGD(lr="fast"), "must be a number"),
        (lambda: ud.SGD(lr=0.1, batch_size=0), "batch_size is 0"),
        (lambda: ud.SGD(lr=0.1, epochs=1, steps=2), "not both"),
        (lambda: ud.SGD(lr=0.1, epochs=0), "epochs is 0"),
        (lambda: ud.SGD(lr=0.1, momentum=1.0), "momentum is 1.0"),
        (lambda: ud.SGD(lr=0.1, nesterov=True), "needs a momentum"),
        (lambda: ud.SGD(lr=0.1, clip=0.0), "clip is 0.0"),
        (lambda: ud.SGD(lr=0.1, relative="gradents"), "did you mean 'gradient'?"),
        (lambda: ud.GD(lr=0.1, batch_size=3), "no batch_size"),
        (lambda: planned(ud.SGD(lr=0.1, steps={1: 2}), 5, 9, 0), "client 5"),
        (lambda: planned(ud.SGD(lr=0.1, steps=lambda c, t: 0), 5, 9, 3), "round 4"),
        (lambda: ud.Theorem1(mu=2.0, L=1.0, E=1), "L ≥ mu"),
        (lambda: ud.Exponential(0.1, 0.0), "gamma is 0.0"),
    ],
)
def test_bad_solvers_are_refused_with_a_sentence(make, words):
    with pytest.raises(ud.UndriftError) as error:
        make()
    assert words in str(error.value)


class WarmUp(ud.Schedule):
    """A user's own schedule."""

    def at(self, round):
        return 0.1 * min(1.0, (round + 1) / 3)


def trained(engine="serial", **options):
    local = ud.SGD(batch_size=5, epochs=1, momentum=0.5, **options)
    data = ud.data.synthetic(clients=4, seed=1, most=40)
    model = ud.models.logistic(60, 10)
    return ud.train(
        ud.SCAFFOLD(),
        model=model,
        data=data,
        local=local,
        rounds=4,
        cohort=3,
        engine=engine,
        progress=False,
    ).x


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_users_own_schedule_is_followed(engine):
    own = trained(engine, lr=WarmUp())
    assert torch.equal(own, trained(engine, lr=lambda round: 0.1 * min(1.0, (round + 1) / 3)))
    assert not torch.allclose(own, trained(engine, lr=0.1))


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_functions_do_what_schedules_do(engine):
    schedules = trained(engine, lr=ud.Exponential(0.1, 0.8), step_schedule=ud.Inverse(1.0, 0.2))
    functions = trained(
        engine, lr=lambda round: 0.1 * 0.8**round, step_schedule=lambda step: 1 / (1 + 0.2 * step)
    )
    assert torch.equal(schedules, functions)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (lambda round: 0.1 * round, "at 0 is 0.0, but must be above 0"),
        (lambda round: None, "at 0 is None, but must be a number"),
        (lambda: 0.1, "must be a function of the round"),
        (ud.Exponential, "must be a number above 0, a schedule such as .* a function of the round"),
    ],
)
def test_wrong_functions_are_refused_with_a_sentence(schedule, words):
    with pytest.raises(ud.UndriftError, match=words):
        trained(lr=schedule)
