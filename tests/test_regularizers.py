"""Prox operators against their definition, and server optimisers against theirs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import undrift as ud
from undrift.methods.common.server_optimizers import Adagrad, Adam, Momentum, Plain, Yogi

NUMBERS = st.floats(-5, 5)


@pytest.mark.parametrize("g", [ud.L1(0.7), ud.L2(0.7), ud.Box(-0.5, 1.2)], ids=repr)
@given(y=NUMBERS, eta=st.floats(0.05, 3))
def test_the_prox_is_the_minimiser_of_its_definition(g, y, eta):
    found = float(g.prox(torch.tensor([y], dtype=torch.float64), eta))

    def value(x):
        return g.value(torch.tensor([x], dtype=torch.float64)) + (x - y) ** 2 / (2 * eta)

    low, high = (g.low, g.high) if isinstance(g, ud.Box) else (-6, 6)
    best = minimize_scalar(value, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    assert value(found) <= best.fun + 1e-9
    assert found == pytest.approx(best.x, abs=2e-4)


def test_values_of_the_regularizers():
    x = torch.tensor([1.0, -2.0])
    assert ud.L1(0.5).value(x) == pytest.approx(1.5)
    assert ud.L2(0.5).value(x) == pytest.approx(1.25)
    assert ud.Box(-2, 1).value(x) == 0
    assert ud.Box(-1, 1).value(x) == float("inf")


def stepped(optimizer, updates, rates=None):
    x = torch.zeros(2, dtype=torch.float64)
    server = ud.ServerState(x=x, **optimizer.start(x))
    for t, update in enumerate(updates):
        rate = 1.0 if rates is None else rates[t]
        server = ud.ServerState(**optimizer.step(server, torch.as_tensor(update).double(), rate))
    return server.x


def test_momentum_survives_a_decay_of_the_rate():
    """B holds gradients, so that after the rate is halved half as much of the past is added."""
    x = stepped(Momentum(0.5), [[1.0, 0.0], [0.0, 0.0]], rates=[1.0, 0.5])
    assert x.tolist() == [1.0 + 0.5 * 0.5, 0.0]
    assert stepped(Plain(0.5), [[1.0, 2.0]]).tolist() == [0.5, 1.0]


@pytest.mark.parametrize("kind", [Adam, Yogi, Adagrad])
def test_adaptive_optimisers_scale_every_coordinate_by_itself(kind):
    optimizer = kind(lr=0.1, beta1=0.0, tau=1e-8)
    x = stepped(optimizer, [[1e-3, 1e3]])
    assert float(x[0]) == pytest.approx(float(x[1]), rel=1e-2)


@pytest.mark.parametrize("method", [ud.FedAvg, ud.SCAFFOLD, ud.FedNova, ud.FedLGA], ids=str)
@pytest.mark.parametrize("server", [Momentum(0.5), Adam(0.05), Yogi(0.05), Adagrad(0.3)], ids=str)
def test_server_optimisers_compose_with_every_delta_based_method(method, server):
    losses = ud.theory.random_quadratics(4, 3, sizes=[5] * 4, seed=1)
    q = torch.full((4,), 0.25, dtype=torch.float64)
    found = ud.train(
        method(server=server),
        problem=losses,
        local=ud.GD(lr=0.05, steps=2),
        rounds=400,
        evaluate=ud.Evaluation(every=400),
    )
    start = float((losses.initial() - losses.optimum(q)).norm())
    assert float((found.x - losses.optimum(q)).norm()) < 0.15 * start
