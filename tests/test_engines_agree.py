"""Every strategy agrees with the serial engine: models × methods × solvers × strategies.

Every strategy that may be chosen for a model is run over three rounds in double precision, on
clients of unequal sizes, one of which has a single sample.
"""

from itertools import cycle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud
from agreement import assert_same
from looping import asynchronous, synchronous
from undrift.bench.networks import Adapter, TransformerClassifier
from undrift.engines import SerialEngine, auto
from undrift.engines.strategies import SERIAL, Candidates, Strategy, candidates
from undrift.nets.module_losses import ModuleLosses

ROUNDS = 3
SIDE = 6
FEATURES = SIDE * SIDE
CLASSES = 4
SIZES = (9, 1, 14, 6, 11)


def made(inputs, targets, sizes=SIZES, ids=None):
    """Clients with random samples; a client's samples do not depend on the others."""
    clients = {}
    for k, n in enumerate(sizes):
        g = torch.Generator().manual_seed(k)
        clients[k if ids is None else ids[k]] = inputs(n, g), targets(n, g)
    return clients


def rows(n, g):
    return torch.randn(n, FEATURES, generator=g) + 0.3


def pictures(n, g):
    return rows(n, g).view(n, 1, SIDE, SIDE)


def words(n, g):
    return torch.randint(0, 7, (n, 5), generator=g)


def labels(n, g):
    return torch.randint(0, CLASSES, (n,), generator=g)


def federated(*made_of, **options):
    return ud.data.FederatedData.from_clients(made(*made_of, **options))


ROWS = federated(rows, labels)
PICTURES = federated(pictures, labels)
PAIRS = federated(rows, labels, sizes=(8, 4, 12, 7, 10))  # no batch is of one sample
WORDS = federated(words, lambda n, g: torch.randint(0, 7, (n,), generator=g))
SEQUENCES = federated(words, words)
VALUES = federated(rows, lambda n, g: torch.randn(n, 2, generator=g))


class Model(nn.Module):
    """Submodules, and a forward function that uses them."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._do = forward

    def forward(self, x):
        return self._do(self, x)


class Waves(nn.Module):
    """A layer without a stacked version."""

    def __init__(self):
        super().__init__()
        self.frequency = nn.Parameter(torch.linspace(0.5, 2, FEATURES))

    def forward(self, x):
        return torch.sin(self.frequency * x) + x.abs().mean(-1, keepdim=True)


class Branching(nn.Module):
    """Its forward pass depends on the values of its inputs."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(FEATURES, CLASSES)
        self.other = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.one(x) if float(x.sum()) > 10 else self.other(x) * 2


class Noisy(nn.Module):
    """It uses random numbers other than nn.Dropout's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.layer(x + 0.1 * torch.randn_like(x) if self.training else x)


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6, CLASSES),
    )


def resnet():
    return nn.Sequential(
        ud.models.ResidualBlock(1, 4, groups=2, stride=1),
        ud.models.ResidualBlock(4, 4, groups=2, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, CLASSES),
    )


def dropout():
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, CLASSES), nn.Dropout(0.1)
    )


def pictures_with_dropout():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.4), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def frozen():
    model = ud.models.mlp(FEATURES, 6, classes=CLASSES)
    for parameter in next(
        each for each in model.modules() if isinstance(each, nn.Linear)
    ).parameters():
        parameter.requires_grad_(False)
    return model


def tied():
    """A layer that is used twice, and a parameter of two layers."""
    layer, other = (nn.Linear(FEATURES, FEATURES, bias=False) for _ in range(2))
    other.weight = layer.weight
    head = nn.Linear(FEATURES, CLASSES)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), other, nn.Tanh(), head)


def unused():
    return Model(
        lambda m, x: m.used(x),
        used=nn.Linear(FEATURES, CLASSES),
        idle=nn.Parameter(torch.ones(3)),
    )


def batch_norm():
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))


def sequences():
    return Model(
        lambda m, x: m.head(m.table(x)).transpose(1, 2),
        table=nn.Embedding(7, 3),
        head=nn.Linear(3, 7),
    )


def smoothed(outputs, targets):
    return F.cross_entropy(outputs, targets, label_smoothing=0.1)


def weighted(outputs, targets):
    """A loss that is not a mean over samples."""
    return F.cross_entropy(outputs, targets, weight=torch.arange(1.0, 1 + CLASSES).to(outputs))


def residual():
    return Model(
        lambda m, x: m.head(m.one(x) + torch.tanh(m.other(x))),
        one=nn.Linear(FEATURES, 5),
        other=nn.Linear(FEATURES, 5),
        head=nn.Linear(5, CLASSES),
    )


def transformer():
    return TransformerClassifier(7, 5, 7, width=8, heads=2, hidden=6, layers=2)


def adapted():
    """Two blocks of a transformer whose only trained parameters are adapters of rank 2."""
    model = transformer().requires_grad_(False)
    for block in model.blocks:
        block.query, block.value = Adapter(block.query, 2), Adapter(block.value, 2)
    return model


def encoder():
    """torch's own encoder, with dropout everywhere but on the weights of attention."""
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.2, batch_first=True)
    layer.self_attn.dropout = 0.0
    return Model(
        lambda m, x: m.head(m.encoder(m.table(x)).mean(1)),
        table=nn.Embedding(7, 4),
        encoder=nn.TransformerEncoder(layer, 2, nn.LayerNorm(4), enable_nested_tensor=False),
        head=nn.Linear(4, 7),
    )


def bag():
    return nn.Sequential(nn.EmbeddingBag(7, 4), nn.GELU(), nn.Linear(4, 7), nn.LogSoftmax(-1))


MODELS = {
    "transformer": (transformer, WORDS, None, {"stacked"}),
    "adapters": (adapted, WORDS, None, {"stacked"}),
    "encoder with dropout": (encoder, WORDS, None, {"stacked"}),
    "bag of words": (bag, WORDS, None, {"stacked"}),
    "logistic": (lambda: ud.models.logistic(FEATURES, CLASSES), ROWS, None, {"stacked"}),
    "mlp": (lambda: ud.models.mlp(FEATURES, 7, 5, classes=CLASSES), ROWS, None, {"stacked"}),
    "cnn": (cnn, PICTURES, None, {"stacked"}),
    "resnet": (resnet, PICTURES, None, {"stacked"}),
    "lstm": (lambda: ud.models.char_lstm(7, 3, 4, 2), WORDS, None, {"stacked"}),
    "dropout": (dropout, ROWS, None, {"stacked"}),
    "pictures with dropout": (pictures_with_dropout, PICTURES, None, {"stacked"}),
    "branches": (residual, ROWS, None, {"stacked"}),
    "regression": (lambda: nn.Linear(FEATURES, 2), VALUES, None, {"stacked"}),
    "a layer of its own": (
        lambda: nn.Sequential(Waves(), nn.Linear(FEATURES, CLASSES)),
        ROWS,
        None,
        {"vmap"},
    ),
    "frozen": (frozen, ROWS, None, {"stacked"}),
    "tied": (tied, ROWS, None, {"vmap"}),
    "unused": (unused, ROWS, None, {"vmap"}),
    "sequences": (sequences, SEQUENCES, None, {"vmap"}),
    "a loss of its own": (dropout, ROWS, smoothed, set()),
    "a loss that is mapped": (
        lambda: ud.models.mlp(FEATURES, 5, classes=CLASSES),
        ROWS,
        smoothed,
        {"vmap"},
    ),
    "a loss that is no mean": (
        lambda: ud.models.logistic(FEATURES, CLASSES),
        ROWS,
        weighted,
        set(),
    ),
    "data-dependent": (Branching, ROWS, None, set()),
    "batch norm": (batch_norm, PAIRS, None, set()),
}
"""How each model is made, its data, its loss, and the networks besides "module" that suit it."""

METHODS = {
    "FedAvg": ud.FedAvg(),
    "SCAFFOLD II": ud.SCAFFOLD(),
    "SCAFFOLD I": ud.SCAFFOLD("I"),
    "FedDyn": ud.FedDyn(0.5),
    "FedDR": ud.FedDR(1.0, 1.0, g=ud.L1(0.001)),
    "FedNova": ud.FedNova(),
    "FedLGA": ud.FedLGA(gradient="last"),
}
SOLVERS = {
    "plain": ud.SGD(lr=0.05, batch_size=4, epochs=1),
    "unequal, nesterov, decay": ud.SGD(
        lr=0.05,
        batch_size=4,
        steps={0: 3, 1: 1, 2: 6, 3: 1, 4: 4},
        momentum=0.5,
        nesterov=True,
        weight_decay=0.01,
    ),
    "clip, step schedule": ud.SGD(
        lr=0.1, batch_size=5, epochs=1, clip=0.3, step_schedule=ud.Inverse(1.0, 0.1)
    ),
    "fresh batches, decay": ud.SGD(
        lr=ud.Exponential(0.05, 0.9), batch_size=4, steps=4, weight_decay=0.02, fresh_batches=True
    ),
    "whole batches, momentum": ud.GD(lr=0.05, steps=3, momentum=0.5),
}
# Seven methods and five solvers: over the models, every method meets every solver.
SOLVER_OF = dict(
    zip(((model, method) for model in MODELS for method in METHODS), cycle(SOLVERS), strict=False)
)


def losses_of(name, dtype=torch.float64, data=None):
    make, own, loss, _ = MODELS[name]
    torch.manual_seed(1)
    return ModuleLosses(make().to(dtype), own if data is None else data, loss)


def strategies(losses, threads=2):
    """All candidates, and chunk sizes that do not divide the number of clients."""
    found = candidates(losses, SOLVERS["plain"], len(SIZES), threads, memory=1000).strategies
    more = [Strategy(s.network, 2, threads) for s in found if s.network in ("stacked", "vmap")]
    return list(dict.fromkeys([*found, *more]))


def run(method, losses, local, engine, rounds=ROUNDS, **options):
    options = {"objective": "clients", "evaluation": ud.Evaluation(every=ROUNDS), **options}
    loop = synchronous(method, losses, local, ud.All(), rounds, engine=engine, **options)
    return loop, list(loop.rounds())


@pytest.mark.parametrize("name", MODELS)
def test_how_a_model_can_be_computed(name):
    found = candidates(losses_of(name), SOLVERS["plain"], len(SIZES), 2, memory=1000)
    assert {s.network for s in found.strategies} == MODELS[name][3] | {"module"}
    assert bool(found.reason) == (not MODELS[name][3])
    turned = {s.network for s in found.strategies if s.channels_last}
    assert turned == ({"stacked", "module"} if MODELS[name][1] is PICTURES else set())


pytestmark = pytest.mark.filterwarnings("ignore:The model has buffers")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_every_strategy_agrees_with_the_serial_engine(name, method):
    losses, local = losses_of(name), SOLVERS[SOLVER_OF[name, method]]
    serial = run(METHODS[method], losses, local, SerialEngine)
    assert not torch.allclose(serial[0].server.x, losses.initial(), atol=1e-4, rtol=0)
    several = strategies(losses)
    turn = list(METHODS).index(
        method
    )  # two of them each time, so that all are met by seven methods
    assert len(several) <= len(METHODS)
    for strategy in {several[turn % len(several)], several[(turn + 3) % len(several)]}:
        assert_same(serial, run(METHODS[method], losses, local, strategy.engine))


def test_every_method_meets_every_solver():
    met = {(method, solver) for (_, method), solver in SOLVER_OF.items()}
    assert len(met) == len(METHODS) * len(SOLVERS)


def test_a_model_with_other_random_numbers_is_trained_serially():
    losses = ModuleLosses(Noisy().double(), ROWS)
    found = candidates(losses, SOLVERS["plain"], 5, 2, memory=1000)
    assert found.strategies == [SERIAL]
    assert found.reason == "it uses random numbers other than nn.Dropout's"


@pytest.mark.parametrize("name", ["cnn", "pictures with dropout"])
def test_limits_and_augmentations(name):
    data = PICTURES.augmented(ud.data.RandomCrop(1), ud.data.HorizontalFlip())
    losses = losses_of(name, data=data)
    local = ud.SGD(lr=0.05, batch_size=4, epochs=3, momentum=0.5)
    options = {"limit": {0: 2, 2: 1, 3: 0}}
    plain = run(ud.SCAFFOLD("I"), losses_of(name), local, SerialEngine, **options)
    serial = run(ud.SCAFFOLD("I"), losses, local, SerialEngine, **options)
    assert not torch.allclose(plain[0].server.x, serial[0].server.x)
    assert serial[1][-1].partial == 2
    assert 3 in serial[1][-1].absent
    for strategy in strategies(losses):
        assert_same(serial, run(ud.SCAFFOLD("I"), losses, local, strategy.engine, **options))


@pytest.mark.filterwarnings("ignore:asyncFedDR's alpha")
@pytest.mark.parametrize("name", ["pictures with dropout", "a layer of its own", "data-dependent"])
def test_asynchronous_training(name):
    losses = losses_of(name)
    devices = ud.Devices(speed=ud.devices.Ladder(1, 4), jitter=0.3, dropout=0.1)
    for method in (ud.AsyncFedDR(0.5, 0.5), ud.FedBuff(2)):
        ends = []
        for engine in (SerialEngine, *(each.engine for each in strategies(losses))):
            loop = asynchronous(
                method, losses, SOLVERS["plain"], ud.All(), 6, devices=devices, engine=engine
            )
            ends.append((loop, list(loop.rounds())))
        for other in ends[1:]:
            assert_same(ends[0], other)


ORDERS = {
    "mlp": Strategy("stacked", 2, 2),
    "pictures with dropout": Strategy("module", 1, 2, channels_last=True),
    "cnn": Strategy("stacked", 1, 2, channels_last=True),
    "lstm": Strategy("stacked", 3, 2),
    "a layer of its own": Strategy("vmap", 2, 2),
    "batch norm": Strategy("module", 1, 2),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_clients_and_threads_change_no_bit(name):
    data = MODELS[name][1]
    clients = {k: data.train.client(data.ids.index(k)) for k in data.ids}
    turned = ud.data.FederatedData.from_clients({k: clients[k] for k in (3, 1, 4, 0, 2)})
    local, strategy = SOLVERS["unequal, nesterov, decay"], ORDERS[name]
    ends = []
    for own, threads in ((data, 1), (data, 2), (data, 3), (turned, 2)):
        losses = losses_of(name, torch.float32, own)
        each = Strategy(strategy.network, strategy.chunk, threads, strategy.channels_last)
        ends.append(run(ud.SCAFFOLD(), losses, local, each.engine)[0])
    for other in ends[1:]:
        assert torch.equal(ends[0].server.x, other.server.x)
        for k in data.ids:
            mine, theirs = ends[0].states.get(k), other.states.get(k)
            assert all(torch.equal(v, getattr(theirs, n)) for n, v in mine.items())


@pytest.mark.parametrize("network", ["stacked", "vmap"])
def test_any_chunk_gives_the_same_within_rounding(network):
    losses, local = losses_of("mlp"), SOLVERS["unequal, nesterov, decay"]
    serial = run(ud.FedDR(1.0, 1.0), losses, local, SerialEngine)
    for chunk in (*range(1, len(SIZES) + 1), 100):
        engine = Strategy(network, chunk, 2).engine
        assert_same(serial, run(ud.FedDR(1.0, 1.0), losses, local, engine))


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_in_single_precision(name):
    losses = losses_of(name, torch.float32)
    step = ud.SGD(lr=1.0, batch_size=None, steps=1)
    curve = ud.SGD(lr=0.05, batch_size=4, epochs=2, momentum=0.5)
    every = {"evaluation": ud.Evaluation(every=1)}
    one, _ = run(ud.FedAvg(), losses, step, SerialEngine, rounds=1)
    _, serial = run(ud.FedAvg(), losses, curve, SerialEngine, **every)
    gradient = one.server.x - losses.initial()
    for strategy in strategies(losses):
        same, _ = run(ud.FedAvg(), losses, step, strategy.engine, rounds=1)
        off = same.server.x - losses.initial() - gradient
        assert off.norm() <= 1e-4 * gradient.norm()
        _, records = run(ud.FedAvg(), losses, curve, strategy.engine, **every)
        for ours, theirs in zip(records, serial, strict=True):
            close = pytest.approx(theirs.metrics["train_loss"], rel=1e-2)
            assert ours.metrics["train_loss"] == close


def test_a_client_whose_numbers_overflow_spoils_no_other():
    model = ud.models.mlp(FEATURES, 6, classes=CLASSES).double()
    weights = next(model.parameters()).detach()
    clients = {k: (x.double(), y) for k, (x, y) in made(rows, labels).items()}
    x, y = clients[0]
    huge = 1.7e308 * weights[0].sign()  # finite, but not what the first layer makes of it
    clients[0] = torch.cat([huge[None], x[1:]]), y
    losses = ModuleLosses(model, ud.data.FederatedData.from_clients(clients))
    local = ud.SGD(lr=0.05, batch_size=20, epochs=1)
    ends = []
    for strategy in (SERIAL, *strategies(losses), Strategy("vmap", 3, 2)):
        loop = synchronous(ud.FedAvg(), losses, local, ud.All(), 2, engine=strategy.engine)
        records = [loop.step()]
        ends.append((loop, records))
        assert [client for client, _ in records[0].rejected] == [0]
    for other in ends[1:]:
        assert_same(ends[0], other)


def test_dropout_of_everything():
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(1.0), nn.Linear(5, CLASSES)).double()
    losses = ModuleLosses(model, ROWS)
    serial = run(ud.FedAvg(), losses, SOLVERS["plain"], SerialEngine)
    for strategy in strategies(losses):
        assert_same(serial, run(ud.FedAvg(), losses, SOLVERS["plain"], strategy.engine))


def in_place(m, x):
    x = m.before(x)
    return m.head(x + m.branch(x))  # the branch has changed x by now


class Idle(nn.Module):
    """Its dropout never drops."""

    def __init__(self):
        super().__init__()
        self.first, self.drop = nn.Linear(FEATURES, 5), nn.Dropout(0.5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(self.drop(self.first(x)))

    def train(self, mode=True):
        super().train(mode)
        self.drop.eval()
        return self


class Remembering(nn.Module):
    """It stores its last inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        self.seen = self.first(x)
        return self.head(self.seen.tanh())


def recurrent_with_dropout():
    return Model(
        lambda m, x: m.head(m.drop(m.lstm(x.flatten(1, 2))[0])[:, -1]),
        lstm=nn.LSTM(SIDE, 5, batch_first=True),  # its outputs are transposed
        drop=nn.Dropout(0.3),
        head=nn.Linear(5, CLASSES),
    )


def over_places():
    return Model(
        lambda m, x: m.head(m.each(x.reshape(-1, SIDE)).reshape(-1, 2 * SIDE)),
        each=nn.Linear(SIDE, 2),
        head=nn.Linear(2 * SIDE, CLASSES),
    )


def one_for_all():
    return Model(
        lambda m, x: m.each(x) + m.all(x),
        each=nn.Linear(FEATURES, CLASSES),
        all=nn.Linear(FEATURES, 1),
    )


def viewed():
    """Its view fails on tensors whose channels are last in memory."""
    return Model(
        lambda m, x: m.head(torch.sin(m.other(m.one(x))).view(-1, 12)),
        one=nn.Conv2d(1, 3, 3),
        other=nn.Conv2d(3, 3, 3),
        head=nn.Linear(12, CLASSES),
    )


def statistics():
    return nn.Sequential(
        nn.Linear(FEATURES, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, CLASSES)
    )


UNUSUAL = {
    "keeps what it saw": (Remembering, ROWS),
    "a branch that works in place": (
        lambda: Model(
            in_place,
            before=nn.Linear(FEATURES, 5),
            branch=nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 5)),
            head=nn.Linear(5, CLASSES),
        ),
        ROWS,
    ),
    "dropout that never drops": (Idle, ROWS),
    "dropout of transposed outputs": (recurrent_with_dropout, PICTURES),
    "a layer over places": (over_places, ROWS),
    "sums of unequal shapes": (one_for_all, ROWS),
    "a view of a convolution": (viewed, PICTURES),
    "statistics of the batch": (statistics, PAIRS),
}
"""Models that a careless translation would compute wrongly, with their data."""


@pytest.mark.parametrize("engine", ["auto", "vectorised"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_models_that_are_easily_mistaken(name, engine, monkeypatch):
    make, data = UNUSUAL[name]
    torch.manual_seed(1)
    losses = ModuleLosses(make().double(), data)
    local = SOLVERS["clip, step schedule"]
    serial = run(ud.FedAvg(), losses, local, SerialEngine)
    options = ud.EngineOptions(engine, threads=2)
    found = candidates(losses, local, len(SIZES), 2, memory=1000).strategies
    for winner in found if engine == "auto" else found[:1]:  # whichever is the fastest
        choice = Candidates([winner])
        monkeypatch.setattr(auto, "candidates", lambda *_, choice=choice, **options: choice)
        assert_same(serial, run(ud.FedAvg(), losses, local, options))
