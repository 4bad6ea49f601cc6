"""Weights of linear layers that are never formed, and sums without each client's upload."""

import pytest
import torch
from torch import nn

import undrift as ud
from agreement import assert_same
from looping import synchronous
from test_vectorised import DATA, METHODS, engine
from undrift.core.unformed import UnformedRows
from undrift.engines import SerialEngine
from undrift.engines.vectorised import training
from undrift.engines.vectorised.engine import VectorisedEngine
from undrift.engines.vectorised.factored import FactoredWeight, factoring_pays
from undrift.engines.vectorised.moves import ChunkMoves
from undrift.nets.module_losses import ModuleLosses

SOLVERS = {
    "plain": ud.SGD(lr=0.05, batch_size=10, epochs=1),
    "unequal, with decay": ud.SGD(
        lr=0.05,
        batch_size=9,
        steps={k: 1 + k % 4 for k in range(11)},
        weight_decay=0.02,
        step_schedule=ud.Inverse(1.0, 0.1),
    ),
}
MORE_METHODS = [ud.FedCM(), ud.FedACG(), ud.FedExP(), ud.MimeLite(), ud.FedADMM(1.0)]


@pytest.fixture
def always_factored(monkeypatch):
    """Factor every weight that can be, and count them."""
    used = []

    def form(self, *arguments, init=FactoredWeight.__init__, **options):
        used.append(self)
        init(self, *arguments, **options)

    monkeypatch.setattr(training, "SMALL_NUMBERS", 0)
    monkeypatch.setattr(training, "factoring_pays", lambda *sizes: True)
    monkeypatch.setattr(FactoredWeight, "__init__", form)
    return used


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(60, 14), nn.Tanh(), nn.Linear(14, 12, bias=False), nn.ReLU(), nn.Linear(12, 10)
    ).double()


def run(method, local, engine, rounds=2, data=DATA, **options):
    losses = ModuleLosses(model(), data)
    options = {"objective": "clients" if method.name == "FedLGA" else "samples", **options}
    loop = synchronous(method, losses, local, ud.All(), rounds, engine=engine, **options)
    return loop, list(loop.rounds())


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("method", [*METHODS, *MORE_METHODS], ids=repr)
def test_every_method_agrees_with_the_serial_engine(method, solver, always_factored):
    serial = run(method, SOLVERS[solver], SerialEngine)
    assert_same(serial, run(method, SOLVERS[solver], engine()))
    shares_all = method.name in ("FedAvg", "FedProx", "FedLGA", "FedBuff", "FedACG", "FedExP")
    assert always_factored or not shares_all


@pytest.mark.parametrize(
    ("method", "unformed"),
    [
        (ud.FedAvg(), True),
        (ud.FedProx(0.3), True),
        (ud.FedNova(), True),
        (ud.FedAsync(), True),
        (ud.FedLGA(cap=True), False),
        (ud.FedExP(), False),
        (ud.SCAFFOLD(), False),
        (ud.FedDR(), False),
    ],
    ids=repr,
)
def test_which_methods_need_no_models(method, unformed, always_factored, monkeypatch):
    formed = []
    finish = VectorisedEngine._finish

    def watched(self, *arguments, **options):
        formed.append(1)
        return finish(self, *arguments, **options)

    monkeypatch.setattr(VectorisedEngine, "_finish", watched)
    run(method, SOLVERS["plain"], engine(), rounds=1)
    assert bool(formed) is not unformed


def test_a_client_that_diverges_is_rejected_alone(always_factored):
    data = ud.data.synthetic(1, 1, clients=11, seed=0, most=60)
    data.train.x[data.train.rows[data.train.bounds[3] : data.train.bounds[4]]] = torch.nan
    evaluation = ud.Evaluation(every=100)
    options = {"data": data, "rounds": 1, "evaluation": evaluation}
    serial = run(ud.FedAvg(), SOLVERS["plain"], SerialEngine, **options)
    ours = run(ud.FedAvg(), SOLVERS["plain"], engine(chunk=11), **options)
    assert torch.allclose(serial[0].server.x, ours[0].server.x, atol=1e-10, rtol=0)
    assert [client for client, _ in ours[1][-1].rejected] == [3]
    assert ours[1][-1].rejected == serial[1][-1].rejected


def test_tracked_models_are_formed(always_factored):
    evaluation = ud.Evaluation(every=1, models=("server", "cohort", "all"))
    serial = run(ud.FedProx(0.3), SOLVERS["plain"], SerialEngine, evaluation=evaluation)
    assert_same(serial, run(ud.FedProx(0.3), SOLVERS["plain"], engine(), evaluation=evaluation))


def test_threads_change_no_bit(always_factored):
    one, two = (run(ud.FedAvg(), SOLVERS["plain"], engine(threads=n)) for n in (1, 2))
    assert torch.equal(one[0].server.x, two[0].server.x)


def test_when_it_pays():
    assert factoring_pays(20, 64, 784)  # two batches of 10 against 784 inputs
    assert factoring_pays(200, 2800, 2800)
    assert not factoring_pays(600, 200, 784)
    assert not factoring_pays(20, 10, 64)


def test_moves_are_summed_as_if_they_were_formed():
    g = torch.Generator().manual_seed(0)
    x, c = torch.randn(5, 90_001, generator=g), torch.randn(90_001, generator=g)
    w = torch.rand(5, generator=g, dtype=torch.float64)
    moves = ChunkMoves(x, c, w)
    moved = (x - c).double()
    assert torch.allclose(moves.squares(), moved.square().sum(1), rtol=1e-12)
    assert torch.allclose(moves.sum(w), w @ moved, rtol=1e-10, atol=1e-12)
    assert torch.allclose(moves.sum(3 * w), 3 * w @ moved, rtol=1e-10, atol=1e-12)
    other = torch.rand(5, generator=g, dtype=torch.float64)
    assert torch.allclose(moves.sum(other), other @ moved, rtol=1e-10, atol=1e-12)


def test_unformed_rows_follow_the_algebra_of_methods():
    g = torch.Generator().manual_seed(0)
    x, c, s = (
        torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((3, 7), (7,), (7,))
    )
    a = torch.rand(3, 1, generator=g, dtype=torch.float64)
    w = torch.rand(3, generator=g, dtype=torch.float64)
    rows = UnformedRows.models(ChunkMoves(x, c, w))
    for formed, unformed in (
        (x - c, rows - c),
        ((x - c) / a, (rows - c) / a),
        (s - 2.0 * x, s - 2.0 * rows),
        (-(x * a) + s, -(rows * a) + s),
        (s + x - s, s + rows - s),
    ):
        assert torch.allclose(unformed.weighted_sum(w), w @ formed, atol=1e-12)
    for wrong in (lambda: rows + x, lambda: x + rows, lambda: rows**2, lambda: rows * c):
        with pytest.raises(TypeError):
            wrong()
