"""Adam, AdamW and optimizers by name as local solvers, against plain PyTorch loops."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud
from plain_loops import fedavg, parameters_of

SIZES = {"a": 13, "b": 7, "c": 10}
ENGINES = ("serial", "vectorised")
LR, BATCH = 0.02, 4


def clients():
    g = torch.Generator().manual_seed(0)
    return {id: (torch.randn(n, 5, generator=g), torch.arange(n) % 4) for id, n in SIZES.items()}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))


def data():
    return ud.data.FederatedData.from_clients(clients())


def plain(optimizer, **options):
    own = {
        id: (len(x), lambda rows, round, epoch, x=x, y=y: (x[rows], y[rows]))
        for id, (x, y) in clients().items()
    }

    def loss_of(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    options = {"epochs": 2, **options}
    return fedavg(model(), own, loss_of, optimizer, BATCH, **options)


def train(local, engine="serial", method=None, **options):
    options = {"rounds": 2, "model": model(), "data": data(), **options}
    return ud.train(method or ud.FedAvg(), local=local, engine=engine, **options)


def close(result, wanted, tolerance=1e-6):
    return torch.allclose(parameters_of(result), wanted, atol=tolerance, rtol=1e-5)


OPTIMIZERS = [
    (ud.Adam, {}, lambda p: torch.optim.Adam(p, LR)),
    (ud.Adam, {"weight_decay": 0.3}, lambda p: torch.optim.Adam(p, LR, weight_decay=0.3)),
    (
        ud.AdamW,
        {"betas": (0.5, 0.9), "eps": 1e-3},
        lambda p: torch.optim.AdamW(p, LR, betas=(0.5, 0.9), eps=1e-3),
    ),
    (ud.AdamW, {"weight_decay": 0.5}, lambda p: torch.optim.AdamW(p, LR, weight_decay=0.5)),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "options", "optimizer"), OPTIMIZERS)
def test_adam_takes_the_steps_of_torch(engine, kind, options, optimizer):
    result = train(kind(LR, batch_size=BATCH, epochs=2, **options), engine)
    assert close(result, plain(optimizer))
    if engine == "vectorised":
        assert "3 clients at once" in result.run.engine.strategy


@pytest.mark.parametrize("engine", ENGINES)
def test_a_proximal_term_is_part_of_adams_gradient(engine):
    local = ud.AdamW(LR, batch_size=BATCH, epochs=2)
    result = train(local, engine, ud.FedProx(mu=2.0))
    assert close(result, plain(lambda p: torch.optim.AdamW(p, LR), mu=2.0))
    assert not close(result, plain(lambda p: torch.optim.AdamW(p, LR)))


@pytest.mark.parametrize("method", [ud.FedDyn(alpha=0.1), ud.SCAFFOLD(option="I"), ud.FedPD(eta=1)])
def test_engines_agree_on_methods_with_linear_terms(method):
    local = ud.Adam(LR, batch_size=BATCH, steps=3, clip=1.0, weight_decay=0.01, keep_state=True)
    serial = train(local, "serial", method, rounds=3)
    vectorised = train(local, "vectorised", method, rounds=3)
    assert close(vectorised, parameters_of(serial))
    other = train(local, "serial", ud.FedAvg(), rounds=3)
    assert not close(other, parameters_of(serial), 1e-4), "the linear term has an effect"


@pytest.mark.parametrize("engine", ENGINES)
def test_kept_moments_are_those_of_an_optimizer_that_lives_on(engine):
    local = ud.AdamW(LR, batch_size=BATCH, epochs=2, keep_state=True)
    result = train(local, engine, rounds=3)
    kept = plain(lambda p: torch.optim.AdamW(p, LR), states={}, rounds=3)
    assert close(result, kept)
    assert not close(result, plain(lambda p: torch.optim.AdamW(p, LR), rounds=3), 1e-4)


def test_kept_moments_survive_a_resume(tmp_path):
    local = ud.Adam(LR, batch_size=BATCH, steps=2, keep_state=True)
    whole = train(local, rounds=4)
    train(local, rounds=2, out=tmp_path / "run")
    options = {"model": model(), "data": data(), "engine": "serial"}
    resumed = ud.resume(tmp_path / "run", ud.FedAvg(), local=local, rounds=4, **options)
    assert torch.equal(parameters_of(resumed), parameters_of(whole))


def test_clients_with_unequal_steps_keep_their_own_number_of_steps():
    local = ud.Adam(LR, batch_size=BATCH, steps={"a": 4, "b": 1, "c": 2}, keep_state=True)
    serial, vectorised = (train(local, engine, rounds=3) for engine in ENGINES)
    assert close(vectorised, parameters_of(serial))
    for run in (serial.run, vectorised.run):
        steps = {id: float(getattr(run.states.get(id), "@adam_steps")) for id in SIZES}
        assert steps == {"a": 12, "b": 3, "c": 6}


NAMED = [
    ("Adagrad", {}, lambda p: torch.optim.Adagrad(p, LR)),
    ("RMSprop", {"alpha": 0.5}, lambda p: torch.optim.RMSprop(p, LR, alpha=0.5)),
    ("Adafactor", {}, lambda p: torch.optim.Adafactor(p, LR)),  # needs the shapes of matrices
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "options", "optimizer"), NAMED)
def test_optimizers_by_name(engine, name, options, optimizer):
    local = ud.TorchOptimizer(name, LR, batch_size=BATCH, epochs=2, options=options)
    assert close(train(local, engine), plain(optimizer))


@pytest.mark.parametrize("engine", ENGINES)
def test_drop_last_leaves_out_the_small_batch_of_an_epoch(engine):
    local = ud.SGD(LR, batch_size=BATCH, epochs=2, drop_last=True)
    result = train(local, engine)
    sgd = lambda p: torch.optim.SGD(p, LR)  # noqa: E731
    assert close(result, plain(sgd, drop_last=True))
    assert not close(result, plain(sgd))
    assert local.steps_of(2, 13) == 6
    assert local.evaluations(6, 13) == 24
    assert local.steps_within(24, 13) == 6
    assert result.records[-1].gradients == sum(2 * (n - n % BATCH) for n in SIZES.values())


def test_a_client_with_fewer_samples_than_a_batch_keeps_its_only_batch():
    local = ud.SGD(LR, batch_size=50, epochs=2, drop_last=True)
    assert local.steps_of(2, 13) == 2
    whole = ud.SGD(LR, batch_size=50, epochs=2)
    assert torch.equal(parameters_of(train(local)), parameters_of(train(whole)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_size", [5, None])
def test_an_accumulated_gradient_is_that_of_the_batch(engine, batch_size):
    one = train(ud.SGD(LR, batch_size=batch_size, epochs=2), engine)
    three = train(ud.SGD(LR, batch_size=batch_size, epochs=2, accumulate=3), engine)
    assert close(three, parameters_of(one))
    assert three.records[-1].gradients == one.records[-1].gradients


def test_batch_norm_with_a_batch_of_one_sample_names_the_cure():
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))
    local = ud.SGD(LR, batch_size=BATCH)  # 13 = 3·4 + 1
    with pytest.raises(ud.UndriftError, match=r"client 'a' in round 1.*use drop_last=True"):
        train(local, model=net)
    train(ud.SGD(LR, batch_size=BATCH, drop_last=True), model=net)


@pytest.mark.parametrize("method", [ud.FedNova(), ud.SCAFFOLD(), ud.VRLSGD(), ud.FedLGA()])
@pytest.mark.parametrize("local", [ud.Adam(), ud.AdamW(), ud.TorchOptimizer("Adagrad")])
def test_methods_that_count_gradient_steps_refuse_adaptive_ones(method, local):
    with pytest.raises(ud.UndriftError, match=r"which only SGD and GD.*SCAFFOLD\(option='I'\)"):
        train(local, method=method)


def test_decoupled_decay_is_not_part_of_the_objective():
    inside, outside = (kind(LR, weight_decay=0.3) for kind in (ud.Adam, ud.AdamW))
    assert (inside.penalty, outside.penalty) == (0.3, 0.0)
    with pytest.raises(ud.UndriftError, match="part of F"):
        ud.PerClient(ud.SGD(0.1), {"a": inside})
    ud.PerClient(ud.SGD(0.1), {"a": outside})
    with pytest.raises(ud.UndriftError, match="keep_state=True must be that of all"):
        ud.PerClient(ud.SGD(0.1), {"a": ud.AdamW(keep_state=True)})


BAD = [
    (lambda: ud.Adam(betas=0.9), "two numbers"),
    (lambda: ud.Adam(betas=(0.9, 1.0)), "betas"),
    (lambda: ud.AdamW(eps=0), "eps"),
    (lambda: ud.Adam(keep_state=1), "keep_state"),
    (lambda: ud.SGD(0.1, drop_last=1), "drop_last"),
    (lambda: ud.SGD(0.1, accumulate=0), "accumulate"),
    (lambda: ud.TorchOptimizer("Adagard"), "did you mean 'Adagrad'"),
    (lambda: ud.TorchOptimizer("LBFGS"), "several times in a step"),
    (lambda: ud.TorchOptimizer("RMSprop", options={"beta": 1}), "cannot be made"),
    (lambda: ud.TorchOptimizer("RMSprop", options={"lr": 1}), "itself"),
    (lambda: ud.Cosine(0.1, 10, warm_up=10), "less than its 10 rounds"),
    (lambda: ud.Cosine(0.1, 10, final=0.2), "final"),
    (lambda: ud.WarmUp(0.1, 0), "rounds"),
]


@pytest.mark.parametrize(("make", "words"), BAD)
def test_bad_settings_are_refused(make, words):
    with pytest.raises(ud.UndriftError, match=words):
        make()


def test_cosine_and_warm_up():
    cosine = ud.Cosine(0.1, rounds=4, final=0.02)
    wanted = [0.02 + 0.08 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]
    assert [cosine.at(t) for t in range(4)] == pytest.approx(wanted)
    assert cosine.at(9) == cosine.at(3)
    warm = ud.Cosine(0.1, rounds=5, warm_up=3)
    assert [warm.at(t) for t in range(4)] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert [ud.WarmUp(0.1, 4).at(t) for t in range(6)] == pytest.approx(
        [0.025, 0.05, 0.075, 0.1, 0.1, 0.1]
    )


def test_a_file_names_the_solvers():
    from undrift.experiments.tables.local import solver_from

    solver, table = solver_from({"solver": "AdamW", "lr": 0.01, "betas": [0.8, 0.9]})
    assert solver == ud.AdamW(0.01, betas=(0.8, 0.9))
    assert solver_from(table)[0] == solver
    solver, table = solver_from({"solver": "TorchOptimizer", "name": "Adagrad", "lr": 0.1})
    assert solver == ud.TorchOptimizer("Adagrad", 0.1)
    schedule = {"schedule": "Cosine", "lr": 0.1, "rounds": 9, "warm_up": 2}
    assert solver_from({"lr": schedule})[0].lr == ud.Cosine(0.1, 9, warm_up=2)
