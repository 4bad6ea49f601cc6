"""The C kernel for small dense networks: it trains as torch's operators do, or is not used."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import undrift as ud
from agreement import assert_same
from looping import synchronous
from test_vectorised import DATA, METHODS, engine
from undrift.engines import SerialEngine
from undrift.engines.compiled import building
from undrift.engines.compiled.dense import DenseChain
from undrift.engines.vectorised import stacked_network
from undrift.nets.module_losses import ModuleLosses

needs_kernel = pytest.mark.skipif(
    building.kernel(torch.float64) is None, reason="there is no C compiler"
)
UNEQUAL = ud.SGD(
    lr=0.05,
    batch_size=9,
    steps={k: 1 + 5 * (k % 4) for k in range(11)},
    weight_decay=0.02,
    step_schedule=ud.Inverse(1.0, 0.1),
)
PRIVATE = [
    ud.privacy.Gaussian(noise=0.5, clip=0.02),  # cuts all moves
    ud.privacy.Gaussian(noise=0.5, clip=0.2),  # cuts some
    ud.privacy.Gaussian(noise=0.5, clip=100.0),  # cuts none
    ud.privacy.Gaussian(noise=0.5, clip=ud.privacy.AdaptiveClip(initial=0.2)),
]


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of the kernel."""
    found = []
    train = DenseChain.train

    def counted(self, *arguments):
        *_, models, sums = arguments
        found.append((models is not None, sums is not None))
        train(self, *arguments)

    monkeypatch.setattr(DenseChain, "train", counted)
    return found


def deep(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(60, 19), nn.ReLU(), nn.Linear(19, 33, bias=False), nn.ReLU(), nn.Linear(33, 10)
    ).to(dtype)


def run(method, local, engine, model, rounds=2, data=DATA):
    losses = ModuleLosses(model, data)
    objective = "clients" if method.name == "FedLGA" else "samples"
    loop = synchronous(method, losses, local, ud.All(), rounds, engine=engine, objective=objective)
    return loop, list(loop.rounds())


@needs_kernel
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_kernel_agrees_with_the_serial_engine(method, calls):
    local = UNEQUAL if not method.draws_steps else ud.SGD(lr=0.05, batch_size=9, steps=3)
    ours = run(method, local, engine(chunk=4, threads=2), deep())
    assert_same(ours, run(method, local, SerialEngine, deep()))
    # The kernel keeps no gradients, and takes none at shifted points.
    asks = method.name == "MimeLite" or repr(method) == "SCAFFOLD(option='I')"
    assert bool(calls) != (asks or method.ascent is not None)


@needs_kernel
@pytest.mark.parametrize("sizes", [(60, 10), (60, 200, 130, 10), (60, 16, 48, 49, 10), (60, 5, 10)])
@pytest.mark.parametrize("batch", [1, 7, 16, 33])
def test_networks_of_every_width_agree_with_the_serial_engine(sizes, batch, calls):
    torch.manual_seed(1)
    layers = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
    model = nn.Sequential(*layers[:-1]).double()
    local = ud.SGD(lr=0.05, batch_size=batch, steps=3)
    ours = run(ud.FedAvg(), local, engine(chunk=5, threads=1), model, rounds=1)
    assert_same(ours, run(ud.FedAvg(), local, SerialEngine, model, rounds=1))
    assert calls


@needs_kernel
def test_models_are_written_only_where_sums_do_not_suffice(calls):
    run(ud.FedAvg(), UNEQUAL, engine(chunk=4, threads=1), deep(), rounds=1)
    assert set(calls) == {(False, True)}
    calls.clear()
    run(ud.SCAFFOLD(), UNEQUAL, engine(chunk=4, threads=1), deep(), rounds=1)
    assert set(calls) == {(True, False)}


@needs_kernel
@pytest.mark.parametrize("privacy", PRIVATE, ids=repr)
def test_the_kernel_clips_moves_on_the_way(privacy, calls):
    def private(engine):
        losses = ModuleLosses(deep(), DATA)
        sampler = ud.Uniform(7)
        loop = synchronous(
            *(ud.FedAvg(), losses, ud.SGD(lr=0.05, batch_size=9, steps=3), sampler, 3),
            engine=engine,
            objective="clients",
            privacy=privacy,
        )
        return loop, list(loop.rounds())

    ours = private(engine(chunk=4, threads=2))
    assert set(calls) == {(False, True)}
    assert_same(ours, private(SerialEngine))


@needs_kernel
def test_a_method_that_needs_more_than_sums_gets_the_models(calls):
    class Rounded(ud.FedAvg):
        """Uploads moves that are rounded, which sums cannot tell."""

        def finish(self, down, mine, result, client):
            rounded = replace(result, x=torch.round(result.x * 100) / 100)
            return super().finish(down, mine, rounded, client)

    ours = run(Rounded(), UNEQUAL, engine(chunk=4, threads=1), deep())
    assert_same(ours, run(Rounded(), UNEQUAL, SerialEngine, deep()))
    assert calls[:2] == [(False, True), (True, False)]
    assert set(calls[2:]) == {(True, False)}, "once seen, the models are written at once"


@needs_kernel
def test_a_client_without_a_finite_model_is_left_out_as_by_the_serial_engine():
    data = deepcopy(DATA)
    data.train.x[data.train.bounds[3]] = torch.nan  # the first sample of client 3
    local = ud.SGD(lr=0.05, batch_size=None, steps=3)
    ours, theirs = (
        run(ud.FedAvg(), local, made, deep(), data=data)
        for made in (engine(chunk=11, threads=1), SerialEngine)
    )
    assert [client for client, _ in ours[1][1].rejected] == [3]
    assert ours[0].server.x.isfinite().all()
    assert torch.allclose(ours[0].server.x, theirs[0].server.x, atol=1e-10, rtol=0)
    assert [each.rejected for each in ours[1]] == [each.rejected for each in theirs[1]]


@needs_kernel
def test_the_number_of_threads_changes_no_bit():
    for method in (ud.FedAvg(), ud.SCAFFOLD()):
        one, two = (
            run(method, UNEQUAL, engine(chunk=4, threads=n), deep(torch.float32))[0] for n in (1, 2)
        )
        assert torch.equal(one.server.x, two.server.x)


@needs_kernel
def test_single_precision_is_as_exact_as_torch():
    local = ud.SGD(lr=0.1, batch_size=10, epochs=2)
    exact = run(ud.FedAvg(), local, SerialEngine, deep())[0].server.x
    ours = run(ud.FedAvg(), local, engine(chunk=4, threads=1), deep(torch.float32))[0].server.x
    torchs = run(ud.FedAvg(), local, SerialEngine, deep(torch.float32))[0].server.x
    error = (ours.double() - exact).abs().max()
    assert error <= 4 * (torchs.double() - exact).abs().max()


@needs_kernel
@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(60, 8), nn.Tanh(), nn.Linear(8, 10)),
        nn.Sequential(nn.Linear(60, 8), nn.Linear(8, 10)),
        nn.Sequential(nn.Linear(60, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10)),
        nn.Sequential(nn.Linear(60, 10), nn.ReLU()),
        nn.Sequential(nn.Linear(60, 9000), nn.ReLU(), nn.Linear(9000, 10)),
    ],
    ids=["tanh", "no activation", "dropout", "ReLU at the end", "large"],
)
def test_other_networks_are_left_to_torch(model):
    assert stacked_network(ModuleLosses(model.double(), DATA)).chain is None


def test_labels_outside_the_classes_are_left_to_torch():
    losses = ModuleLosses(nn.Linear(60, 10).double(), DATA)
    few = DenseChain((60, 3), (0,), (180,))
    assert not few.suits(losses.train_part, losses.flat.x)


def test_without_a_compiler_there_is_no_kernel(monkeypatch, calls):
    monkeypatch.setattr(building, "COMPILERS", ("no-such-compiler",))
    building.kernel.cache_clear()
    try:
        assert building.kernel(torch.float64) is None
        run(ud.FedAvg(), UNEQUAL, engine(chunk=4, threads=1), deep(), rounds=1)
        assert not calls
    finally:
        building.kernel.cache_clear()


@pytest.mark.parametrize("broken", ["int main(", ""], ids=["does not compile", "has no function"])
def test_a_kernel_that_cannot_be_built_or_loaded_is_not_used(monkeypatch, tmp_path, broken):
    monkeypatch.setattr(building, "_folder", lambda: tmp_path)
    (tmp_path / "dense.c").write_text(broken)
    monkeypatch.setattr(building, "files", lambda package: tmp_path)
    building.kernel.cache_clear()
    try:
        assert building.kernel(torch.float64) is None
    finally:
        building.kernel.cache_clear()
