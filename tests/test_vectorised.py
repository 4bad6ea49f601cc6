"""The vectorised engine agrees with the serial one, for every method and solver option."""

import pytest
import torch
from torch import nn

import undrift as ud
from agreement import assert_same
from looping import asynchronous, synchronous
from undrift.engines import SerialEngine
from undrift.engines.vectorised import (
    ModuleNetwork,
    VectorisedEngine,
    stacked_network,
    vmapped_network,
)
from undrift.nets.module_losses import ModuleLosses

DATA = ud.data.synthetic(1, 1, clients=11, seed=0, most=60)  # sizes differ, so batches are ragged


def networks():
    torch.manual_seed(0)
    return {
        "logistic": ud.models.logistic(60, 10),
        "mlp": ud.models.mlp(60, 16, 12, classes=10, seed=1),
        "dropout": nn.Sequential(
            nn.Linear(60, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 10, bias=False)
        ),
        "sigmoid": nn.Sequential(nn.Sequential(nn.Linear(60, 8), nn.Sigmoid()), nn.Linear(8, 10)),
    }


METHODS = [
    ud.FedAvg(),
    ud.FedAvg("transformed II"),
    ud.FedProx(0.3),
    ud.SCAFFOLD(),
    ud.SCAFFOLD("I"),
    ud.FedNova(),
    ud.FedNova(mu=0.2),
    ud.FedNova(variance_reduction=True),
    ud.FedDyn(0.5),
    ud.FedPD(1.0),
    ud.FedSplit(1.0),
    ud.FedDR(1.0, 1.0, g=ud.L1(0.001)),
    ud.FedLGA(cap=True),
    ud.VRLSGD(),
    ud.FedAvgMin(),
    ud.DistributedSGD(),
    ud.FedBuff(),
    ud.FedCM(0.3),
    ud.FedACG(0.6, 0.1),
    ud.FedExP(),
    ud.FedADMM(1.0),
    ud.FedVARP(),
    ud.MIFA(),
    ud.Scaffnew(0.3),
    ud.MimeLite(0.5),
    ud.FedSAM(0.2),
    ud.FedSpeed(2.0, 0.2, 0.5),
]
SOLVERS = {
    "plain": ud.SGD(lr=0.05, batch_size=10, epochs=2),
    "unequal, all options": ud.SGD(
        lr=0.05,
        batch_size=10,
        steps={k: 1 + k for k in range(11)},
        momentum=0.5,
        nesterov=True,
        weight_decay=0.01,
        clip=0.5,
    ),
    "schedules": ud.SGD(
        lr=ud.Exponential(0.05, 0.9),
        batch_size=7,
        epochs=1,
        weight_decay=0.01,
        fresh_batches=True,
        step_schedule=ud.Inverse(1.0, 0.1),
    ),
    "full batches": ud.GD(lr=0.05, steps=3, momentum=0.5),
}


def engine(network=stacked_network, chunk=4, threads=2):
    def make(losses, job):
        found = network(losses)
        assert not isinstance(found, str), found
        return VectorisedEngine(losses, job, found, chunk, threads)

    return make


def run(method, losses, local, engine, rounds=3, objective="clients", **options):
    evaluation = ud.Evaluation(every=2, models=("server", "cohort", "all"))
    options = {"engine": engine, "evaluation": evaluation, **options}
    loop = synchronous(method, losses, local, ud.All(), rounds, objective, **options)
    return loop, list(loop.rounds())


@pytest.mark.parametrize("solver", ["plain", "unequal, all options"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_every_method_and_solver_agrees_with_the_serial_engine(method, solver):
    local = SOLVERS[solver]
    objective = (
        "samples" if method.name in ("FedProx", "FedDyn", "FedAvg", "SCAFFOLD") else "clients"
    )
    losses = ModuleLosses(networks()["mlp"].double(), DATA)
    setting = {"objective": objective}
    serial = run(method, losses, local, SerialEngine, **setting)
    assert_same(serial, run(method, losses, local, engine(), **setting))
    if solver != "plain":
        assert_same(serial, run(method, losses, local, engine(vmapped_network), **setting))


@pytest.mark.parametrize("network", networks())
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_network_agrees_with_the_serial_engine(network, solver):
    losses = ModuleLosses(networks()[network].double(), DATA)
    method, local = ud.FedDyn(0.5), SOLVERS[solver]
    serial = run(method, losses, local, SerialEngine)
    assert_same(serial, run(method, losses, local, engine()))
    if network != "dropout":
        assert_same(serial, run(method, losses, local, engine(vmapped_network)))


def test_regression_agrees_with_the_serial_engine():
    g = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 5, generator=g), torch.randn(n, 3, generator=g)) for n in (1, 7, 20, 12)
    ]
    data = ud.data.FederatedData.from_clients(clients)  # one of them has a single sample
    losses = ModuleLosses(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double(), data)
    local = ud.SGD(lr=0.05, batch_size=5, epochs=2)
    serial = run(ud.FedProx(0.1), losses, local, SerialEngine)
    for network in (stacked_network, vmapped_network):
        assert_same(serial, run(ud.FedProx(0.1), losses, local, engine(network)))


def test_an_unusual_layer_goes_through_vmap():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 60))

        def forward(self, x):
            return x * torch.sin(self.weight) + x.abs().mean(-1, keepdim=True)

    model = nn.Sequential(Gate(), nn.LayerNorm(60), nn.Linear(60, 10)).double()
    losses = ModuleLosses(model, DATA)
    assert "Gate" in stacked_network(losses)
    local = SOLVERS["unequal, all options"]
    serial = run(ud.SCAFFOLD(), losses, local, SerialEngine)
    assert_same(serial, run(ud.SCAFFOLD(), losses, local, engine(vmapped_network)))


def test_in_single_precision_the_loss_curves_agree():
    losses = ModuleLosses(networks()["mlp"], DATA)
    local = SOLVERS["plain"]
    _, records = run(ud.FedAvg(), losses, local, SerialEngine)
    _, others = run(ud.FedAvg(), losses, local, engine())
    for ours, theirs in zip(records, others, strict=True):
        if ours.metrics:
            assert ours.metrics["train_loss"] == pytest.approx(
                theirs.metrics["train_loss"], rel=1e-3
            )


def test_threads_and_the_order_of_clients_change_no_bit():
    losses = ModuleLosses(networks()["dropout"], DATA)
    turned = ud.data.FederatedData.from_clients(
        {k: DATA.train.client(DATA.ids.index(k)) for k in reversed(DATA.ids)}
    )
    again = ModuleLosses(networks()["dropout"], turned)
    local = SOLVERS["unequal, all options"]
    ends = [
        run(ud.SCAFFOLD(), each, local, engine(chunk=3, threads=threads))[0].server.x
        for each, threads in ((losses, 1), (losses, 2), (losses, 3), (again, 2))
    ]
    for other in ends[1:]:
        assert torch.equal(ends[0], other)


@pytest.mark.parametrize("chunk", [1, 2, 5, 11, 100])
def test_any_chunk_gives_the_same_within_rounding(chunk):
    losses = ModuleLosses(networks()["mlp"].double(), DATA)
    local = SOLVERS["plain"]
    serial = run(ud.FedDR(1.0, 1.0), losses, local, SerialEngine)
    assert_same(serial, run(ud.FedDR(1.0, 1.0), losses, local, engine(chunk=chunk)))


def test_unusable_and_damaged_replies_are_left_out_one_by_one():
    class Spoilt(ud.FedAvg):
        def finish(self, down, mine, result, client):
            upload, keep = super().finish(down, mine, result, client)
            ids = client.id if isinstance(client.id, tuple) else (client.id,)
            moved = upload.moved.clone()
            rows = moved if moved.ndim == 2 else moved[None]
            for row, id in zip(rows, ids, strict=True):
                if id == 3:
                    row[0] = torch.nan
            return ud.Upload(moved=moved), keep

    losses = ModuleLosses(networks()["mlp"].double(), DATA)
    setting = {"devices": ud.Devices(damage=0.2), "seed": 5}
    local = SOLVERS["plain"]
    serial = run(Spoilt(), losses, local, SerialEngine, **setting)
    assert {client for record in serial[1] for client, _ in record.rejected} > {3}
    assert_same(serial, run(Spoilt(), losses, local, engine(), **setting))


def test_what_cannot_be_done_at_once_is_done_one_by_one():
    data = ud.data.digits("iid", clients=4).augmented(ud.data.HorizontalFlip())
    losses = ModuleLosses(ud.models.logistic(64, 10).double(), data)
    local = ud.SGD(lr=0.1, batch_size=50, epochs=1)
    serial = run(ud.FedAvg(), losses, local, SerialEngine)
    found = run(ud.FedAvg(), losses, local, engine())
    assert_same(serial, found)
    losses = ModuleLosses(networks()["logistic"].double(), DATA)
    for local in (
        ud.SGD(lr=0.1, batch_size=10, epochs=5, tolerance=0.1),
        ud.PerClient(ud.SGD(lr=0.1, steps=2), {3: ud.SGD(lr=0.2, steps=4)}),
    ):
        serial = run(ud.FedAvg(), losses, local, SerialEngine)
        assert_same(serial, run(ud.FedAvg(), losses, local, engine()))


@pytest.mark.filterwarnings("ignore:asyncFedDR's alpha")
def test_asynchronous_training_agrees_with_the_serial_engine():
    losses = ModuleLosses(networks()["dropout"].double(), DATA)
    devices = ud.Devices(speed=ud.devices.Ladder(1, 3), jitter=0.3, dropout=0.1, damage=0.1)
    for method in (ud.AsyncFedDR(0.5, 0.5), ud.FedBuff(3)):
        ends = []
        for each in (SerialEngine, engine()):
            loop = asynchronous(
                method, losses, SOLVERS["plain"], ud.All(), 4, devices=devices, engine=each
            )
            ends.append((loop, list(loop.rounds())))
        assert_same(*ends)


def test_it_is_chosen_by_its_name():
    setting = dict(
        model=networks()["mlp"],
        data=DATA,
        local=SOLVERS["plain"],
        rounds=2,
        progress=False,
    )
    result = ud.train(ud.FedDyn(0.5), engine="vectorised", **setting)
    assert isinstance(result.run.engine, VectorisedEngine)
    assert result.run.engine.strategy.startswith("stacked layers")
    serial = ud.train(ud.FedDyn(0.5), engine="serial", **setting)
    assert torch.allclose(result.x, serial.x, atol=1e-5)
    with pytest.raises(ud.UndriftError, match="engine is 'fast', but must be one of 'auto'"):
        ud.train(ud.FedAvg(), engine="fast", **setting)
    problem = ud.theory.random_quadratics(3, 2, seed=0)
    local = ud.GD(lr=0.1, steps=2)
    analytic = ud.train(
        ud.FedAvg(), problem=problem, local=local, rounds=1, engine="vectorised", progress=False
    )
    assert isinstance(analytic.run.engine, SerialEngine)


class Odd(nn.Module):
    """Its forward pass depends on the values of its inputs, so vmap cannot map it over clients."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(60, 10)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.layer(self.drop(x)) if float(x.sum()) > 0 else self.layer(x)


class Noisy(nn.Module):
    """It uses random numbers other than nn.Dropout's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(60, 10)

    def forward(self, x):
        return self.layer(x + 0.1 * torch.randn_like(x) if self.training else x)


class Images(nn.Module):
    """A small convolution with GroupNorm and dropout, on the features as pixels."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()
        )
        self.head = nn.Linear(4 * 4 * 8, 10)

    def forward(self, x):
        return self.head(self.body(x.view(len(x), 1, 6, 10)))


class Recurrent(nn.Module):
    """Two LSTM layers over the features."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(10, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 10)

    def forward(self, x):
        return self.head(self.lstm(x.view(len(x), 6, 10))[0][:, -1])


class Normalised(nn.Module):
    """BatchNorm, whose statistics travel beside the parameters."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(60, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.filterwarnings("ignore:The model has buffers")
@pytest.mark.parametrize("kind", [Odd, Images, Recurrent, Normalised])
def test_other_models_are_trained_on_threads(kind):
    torch.manual_seed(1)
    losses = ModuleLosses(kind().double(), DATA)
    local = ud.SGD(lr=0.05, batch_size=10, steps={k: 1 + k % 4 for k in range(11)}, momentum=0.5)
    local_engine = ud.EngineOptions("vectorised")
    for method in (ud.FedDyn(0.5), ud.SCAFFOLD("I")):
        serial = run(method, losses, local, SerialEngine)
        found = run(method, losses, local, local_engine)
        assert found[0].engine.strategy.startswith("one by one")
        assert_same(serial, found)
        for name, value in serial[0].buffers.items():
            assert torch.allclose(value.double(), found[0].buffers[name].double(), atol=1e-10)


def test_threads_change_no_bit_where_each_has_a_client():
    torch.manual_seed(1)
    losses = ModuleLosses(Images(), DATA)
    ends = [
        run(
            ud.FedDyn(0.5),
            losses,
            SOLVERS["plain"],
            engine(ModuleNetwork, chunk=1, threads=threads),
        )[0].server.x
        for threads in (1, 2, 3)
    ]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_a_model_with_other_random_numbers_still_trains():
    setting = dict(model=Noisy(), data=DATA, local=SOLVERS["plain"], rounds=2, progress=False)
    result = ud.train(ud.FedAvg(), **setting)
    assert "random numbers other than nn.Dropout's" in result.records[-1].strategy
    assert torch.equal(result.x, ud.train(ud.FedAvg(), engine="serial", **setting).x)
