"""Sharpness-aware local steps: every engine takes them, and their cost is counted."""

from dataclasses import replace

import pytest
import torch

import undrift as ud
from agreement import assert_same
from test_engines_agree import PICTURES, SIZES, losses_of, run, strategies
from undrift.engines import SerialEngine
from undrift.nets.module_losses import ModuleLosses

pytestmark = pytest.mark.filterwarnings("ignore:The model has buffers")

LOCAL = {
    "plain": ud.SGD(lr=0.05, batch_size=4, epochs=1),
    "all options": ud.SGD(
        lr=0.05,
        batch_size=4,
        steps={0: 3, 1: 1, 2: 5, 3: 1, 4: 4},
        momentum=0.5,
        nesterov=True,
        weight_decay=0.02,
        clip=0.4,
    ),
    "Adam": ud.Adam(lr=0.01, batch_size=4, epochs=1, weight_decay=0.02),
}


class Half(ud.FedSAM):
    """Half of each gradient at the shifted point, on losses that are scaled by N·q_k."""

    def problem(self, down, mine, client):
        return replace(super().problem(down, mine, client), ascent=ud.Ascent(self.rho, 0.5))


METHODS = {
    "half, transformed II": Half(0.3, "transformed II"),
    "FedSAM": ud.FedSAM(0.3),
    "FedSAM transformed II": ud.FedSAM(0.3, "transformed II"),
    "FedSpeed": ud.FedSpeed(2.0, 0.3, 0.7),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("model", "local"),
    [
        ("mlp", "plain"),
        ("cnn", "all options"),
        ("dropout", "plain"),
        ("pictures with dropout", "all options"),
        ("a layer of its own", "Adam"),
        ("batch norm", "plain"),
    ],
)
def test_every_strategy_takes_the_steps_of_the_serial_engine(model, local, method):
    losses = losses_of(model)
    serial = run(METHODS[method], losses, LOCAL[local], SerialEngine, objective="samples")
    for strategy in strategies(losses):
        found = run(METHODS[method], losses, LOCAL[local], strategy.engine, objective="samples")
        assert_same(serial, found)


def test_a_weight_that_could_stay_factored_is_formed_for_the_shift():
    g = torch.Generator().manual_seed(0)
    clients = {k: (torch.randn(6, 200, generator=g), torch.arange(6) % 3) for k in range(3)}
    data = ud.data.FederatedData.from_clients(clients)
    losses = ModuleLosses(ud.models.mlp(200, 100, classes=3, seed=0).double(), data)
    local = ud.SGD(lr=0.1, batch_size=3, steps=2)
    serial = run(ud.FedSAM(0.5), losses, local, SerialEngine)
    for strategy in strategies(losses):
        assert_same(serial, run(ud.FedSAM(0.5), losses, local, strategy.engine))


def test_a_step_costs_two_gradients_and_follows_the_second():
    losses, local = losses_of("mlp"), LOCAL["plain"]
    sharp, flat = (run(m, losses, local, SerialEngine) for m in (ud.FedSAM(0.3), ud.FedAvg()))
    assert [r.gradients for r in sharp[1]] == [2 * r.gradients for r in flat[1]]
    assert [r.steps for r in sharp[1]] == [r.steps for r in flat[1]]
    assert float((sharp[0].server.x - flat[0].server.x).norm()) > 1e-3
    for free in (ud.FedSAM(0.0), ud.FedSpeed(2.0, 0.3, 0.0)):
        assert [r.gradients for r in run(free, losses, local, SerialEngine)[1]] == [
            r.gradients for r in flat[1]
        ]


def one_step(losses, method, **options):
    """The model after one step of one client on all its samples."""
    local = ud.GD(lr=0.5, steps=1, **options)
    loop, _ = run(method, losses, local, SerialEngine, rounds=1)
    return loop.server.x


def test_the_shift_is_uphill_and_leaves_weight_decay_at_x():
    rows, labels = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])
    data = ud.data.FederatedData.from_clients({0: (rows, labels)})
    model = torch.nn.Linear(3, 2).double()
    losses = ModuleLosses(model, data)
    x = losses.initial().clone()

    def gradient(at):
        return losses.gradient(0, at).clone()

    g = gradient(x)
    shifted = gradient(x + 0.3 * g / g.norm())
    decay = 0.1 * x
    expected = x - 0.5 * (shifted + decay)
    torch.testing.assert_close(one_step(losses, ud.FedSAM(0.3), weight_decay=0.1), expected)
    mixed = x - 0.5 * (0.4 * g + 0.6 * shifted + decay)
    found = one_step(losses, ud.FedSpeed(2.0, 0.3, 0.6, "act"), weight_decay=0.1)
    torch.testing.assert_close(found, mixed + (mixed - x))  # x_k − λĝ_k, ĝ_k = −(x_k − x)/λ


def test_augmentation_is_drawn_once_for_both_gradients():
    flipped = PICTURES.augmented(ud.data.HorizontalFlip())
    losses = losses_of("cnn", data=flipped)
    serial = run(ud.FedSAM(0.3), losses, LOCAL["plain"], SerialEngine)
    plain = run(ud.FedSAM(0.3), losses_of("cnn"), LOCAL["plain"], SerialEngine)
    assert not torch.allclose(serial[0].server.x, plain[0].server.x, atol=1e-4, rtol=0)
    assert_same(serial, run(ud.FedSAM(0.3), losses, LOCAL["plain"], strategies(losses)[0].engine))


@pytest.mark.parametrize(
    "local",
    [
        ud.SGD(lr=0.1, epochs=1, tolerance=0.1),
        ud.SGD(lr=0.1, epochs=1, accumulate=2),
        ud.PerClient(ud.SGD(lr=0.1), {1: ud.SGD(lr=0.1, accumulate=2)}),
    ],
    ids=["tolerance", "accumulate", "one of them"],
)
def test_solvers_without_such_steps_are_refused(local):
    with pytest.raises(ud.UndriftError, match="FedSAM takes gradients at shifted points"):
        run(ud.FedSAM(0.1), losses_of("mlp"), local, SerialEngine)


def test_the_exact_solver_is_refused_unless_there_is_no_shift():
    problem = ud.theory.random_quadratics(3, 2, seed=1)
    with pytest.raises(ud.UndriftError, match="use SGD, GD or Adam"):
        ud.train(ud.FedSpeed(1.0), problem=problem, local=ud.Exact(), rounds=1)
    ud.train(ud.FedSpeed(1.0, rho=0.0), problem=problem, local=ud.Exact(), rounds=1)


def test_a_solver_refuses_a_problem_whose_method_does_not_declare_its_shift():
    class Mine(ud.FedAvg):
        def problem(self, down, mine, client):
            return ud.LocalProblem(start=down.x, ascent=ud.Ascent(0.1))

    problem = ud.theory.random_quadratics(3, 2, seed=1)
    with pytest.raises(ud.UndriftError, match="Exact cannot take steps with sharpness-aware"):
        ud.train(Mine(), problem=problem, local=ud.Exact(), rounds=1)
    ud.train(Mine(), problem=problem, local=ud.GD(lr=0.1, steps=2), rounds=1)


def test_personal_parameters_are_shifted_too():
    data = ud.data.synthetic(1, 1, clients=4, seed=0, most=20)
    options = {"data": data, "local": LOCAL["plain"], "rounds": 2}
    results = [
        ud.train(
            ud.FedSAM(rho),
            model=ud.models.mlp(60, 5, classes=10),
            personal=ud.Personal("3.*", first_epochs=epochs),
            **options,
        ).x
        for rho in (0.0, 0.3)
        for epochs in (0, 1)
    ]
    assert float((results[0] - results[2]).norm()) > 1e-3
    assert float((results[1] - results[3]).norm()) > 1e-3


def test_a_resumed_run_gives_the_same_bits(tmp_path):
    data = ud.data.synthetic(1, 1, clients=5, seed=0, most=30)
    model = ud.models.mlp(60, 6, classes=10, seed=0)
    options = {"model": model, "data": data, "local": LOCAL["plain"], "engine": "serial"}
    method = ud.FedSpeed(1.0, 0.1, 0.5)
    whole = ud.train(method, rounds=4, cohort=3, **options)
    ud.train(method, rounds=2, cohort=3, out=tmp_path / "run", **options)
    resumed = ud.resume(tmp_path / "run", method, rounds=4, cohort=3, **options)
    assert torch.equal(whole.x, resumed.x)


def test_the_virtual_clock_counts_both_gradients():
    data = ud.data.synthetic(1, 1, clients=len(SIZES), seed=0, most=30)
    options = {
        "model": ud.models.logistic(60, 10),
        "data": data,
        "local": LOCAL["plain"],
        "rounds": 1,
        "devices": ud.Devices(speed=10.0),
    }
    sharp, flat = (ud.train(m, **options).records[-1] for m in (ud.FedSAM(0.1), ud.FedAvg()))
    assert sharp.virtual_seconds == pytest.approx(2 * flat.virtual_seconds)
    # With the time that FedAvg needs, clients do half of the steps.
    late = ud.train(ud.FedSAM(0.1), pace=ud.Deadline(flat.virtual_seconds), **options).records[-1]
    assert flat.steps / 2 - len(SIZES) <= late.steps <= flat.steps / 2
