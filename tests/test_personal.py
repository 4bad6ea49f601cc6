"""Personal parameters: they never travel, every engine agrees, and nothing personal is FedAvg."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud
from undrift.core.messages import PERSONAL
from undrift.engines import EngineOptions
from undrift.experiments.building import build_data, build_losses
from undrift.experiments.experiment import Experiment

CLIENTS = ("a", "b", "c", "d")


class Net(nn.Module):
    """A body, a normalisation and a head."""

    def __init__(self, norm=None):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(5, 6)
        self.norm = norm or nn.Identity()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).tanh())


def federation(sizes=(12, 17, 9, 14)):
    g = torch.Generator().manual_seed(0)

    def samples(n):
        return torch.randn(n, 5, generator=g), torch.randint(0, 3, (n,), generator=g)

    clients = {name: samples(n) for name, n in zip(CLIENTS, sizes, strict=True)}
    return ud.data.FederatedData.from_clients(clients).with_test(0.3, seed=1)


def trained(method=None, **options):
    setting = dict(
        model=Net(),
        data=federation(),
        local=ud.SGD(lr=0.3, batch_size=4, epochs=2),
        rounds=3,
        cohort=2,
        engine="serial",
        personal=["head.*"],
    )
    return ud.train(method or ud.FedAvg(), **{**setting, **options})


HEAD, WHOLE = 6 * 3 + 3, 5 * 6 + 6 + 6 * 3 + 3


def test_personal_parameters_never_travel():
    result, plain = trained(), trained(personal=None)
    assert result.x.numel() == WHOLE - HEAD == plain.x.numel() - HEAD
    for record in result.records[1:]:
        assert sum(record.bytes_up.values()) == 2 * 4 * (WHOLE - HEAD)
        assert sum(record.bytes_down.values()) == 2 * 4 * (WHOLE - HEAD)
    heads = [result.client_model(client).head.weight for client in CLIENTS]
    assert len({tuple(head.flatten().tolist()) for head in heads}) > 1
    for client in CLIENTS:
        assert torch.equal(result.client_model(client).body.weight, result.model().body.weight)
    assert torch.equal(result.model().head.weight, Net().head.weight)


def test_one_client_trains_as_in_a_plain_loop():
    data = ud.data.FederatedData.from_clients({"a": federation().train.client(1)})
    local = ud.GD(lr=0.2, steps=3)
    result = trained(ud.FedAvg(), data=data, local=local, cohort=None, rounds=2)
    model = Net()
    x, y = data.train.client(0)
    for _ in range(6):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.2 * p.grad
    own = result.client_model("a")
    for name, value in model.named_parameters():
        assert torch.allclose(dict(own.named_parameters())[name], value, atol=1e-6)


def by_hand(rounds, first_epochs=0):
    """FedPer and FedRep with full batches and all clients, as a plain loop."""
    data = federation()
    server = Net()
    first = {name: value.clone() for name, value in server.head.state_dict().items()}
    heads = [first] * 4
    sizes = data.train.sizes.double()
    for _ in range(rounds):
        bodies = []
        for k in range(4):
            model = Net()
            model.body.load_state_dict(server.body.state_dict())
            model.head.load_state_dict(heads[k])
            phases = [[model.body, model.head]] * 2
            if first_epochs:
                phases = [[model.head]] * first_epochs + [[model.body]] * 2
            for layers in phases:
                model.zero_grad()
                F.cross_entropy(model(data.train.client(k)[0]), data.train.client(k)[1]).backward()
                with torch.no_grad():
                    for p in (p for layer in layers for p in layer.parameters()):
                        p -= 0.3 * p.grad
            heads[k] = {n: p.detach().clone() for n, p in model.head.named_parameters()}
            bodies.append(model.body.state_dict())
        q = (sizes / sizes.sum()).tolist()
        mean = {n: sum(w * b[n] for w, b in zip(q, bodies, strict=True)) for n in bodies[0]}
        server.body.load_state_dict(mean)
    return server, heads


@pytest.mark.parametrize("first", [0, 3])
def test_fedper_and_fedrep_are_the_plain_loops(first):
    personal = ud.Personal(["head.*"], first_epochs=first)
    local = ud.GD(lr=0.3, steps=2)
    result = trained(personal=personal, local=local, cohort=None, rounds=3)
    server, heads = by_hand(3, first)
    assert torch.allclose(result.model().body.weight, server.body.weight, atol=1e-6)
    for k, client in enumerate(CLIENTS):
        found = result.client_model(client).head
        assert torch.allclose(found.weight, heads[k]["weight"], atol=1e-6)
        assert torch.allclose(found.bias, heads[k]["bias"], atol=1e-6)
    samples = int(federation().train.sizes.sum())
    assert result.records[1].gradients == samples * (2 + first)


METHODS = [
    ud.FedAvg(),
    ud.SCAFFOLD(),
    ud.FedProx(mu=0.1),
    ud.FedDyn(alpha=0.1),
    ud.FedNova(),
    ud.FedDR(eta=0.5),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_with_a_personal_part_that_cannot_move_methods_are_as_with_a_frozen_one(method):
    """A head whose gradient is zero: personal or frozen, the shared part must be the same."""

    class Dead(Net):
        def forward(self, x):
            return self.norm(self.body(x)).tanh()[:, :3] + 0 * self.head.weight.sum()

    frozen = Dead()
    frozen.head.requires_grad_(False)
    local = ud.SGD(lr=0.1, batch_size=4, momentum=0.5)
    one = trained(method, model=Dead(), local=local, personal=["head.*"])
    two = trained(method, model=frozen, local=local, personal=None)
    assert torch.equal(one.x, two.x)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("engine", ["vectorised", "auto", EngineOptions("vectorised", threads=2)])
def test_engines_agree_to_the_bit(engine, first):
    personal = ud.Personal(["head.*"], first_epochs=first)
    one = trained(ud.SCAFFOLD(), personal=personal)
    two = trained(ud.SCAFFOLD(), personal=personal, engine=engine)
    assert torch.equal(one.x, two.x)
    for client in CLIENTS:
        assert torch.equal(one.run.last_of(client), two.run.last_of(client))
    assert one.metrics == two.metrics


@pytest.mark.filterwarnings("ignore:The model has buffers")
def test_fedbn_keeps_normalisation_with_its_statistics():
    result = trained(
        model=Net(nn.BatchNorm1d(6)), personal="normalisation", local=ud.SGD(lr=0.1, batch_size=6)
    )
    assert result.x.numel() == WHOLE and not result.run.buffers
    assert "buffers" not in result.records[1].bytes_up
    taken = {client for record in result.records for client in record.cohort}
    norms = {client: result.client_model(client).norm for client in CLIENTS}
    for client in CLIENTS:
        moved = not torch.equal(norms[client].running_mean, torch.zeros(6))
        assert moved == (client in taken)
        assert (norms[client].num_batches_tracked > 0) == moved
    first, second, *_ = taken
    assert not torch.equal(norms[first].running_mean, norms[second].running_mean)


def test_a_model_is_evaluated_with_each_clients_own_part():
    data = federation()
    result = trained(evaluate=ud.Evaluation(clients=True, models=("server", "own")))
    rows = {r["client"]: r for r in result.clients() if r["model"] == "server"}
    total = 0.0
    for k, client in enumerate(CLIENTS):
        model = result.client_model(client)
        model.load_state_dict(
            {n: v for n, v in result.model().state_dict().items() if n.startswith("body")},
            strict=False,
        )
        x, y = data.test.client(k)
        with torch.no_grad():
            assert float(F.cross_entropy(model(x), y)) == pytest.approx(
                rows[client]["test_loss"], rel=1e-5
            )
            x, y = data.train.client(k)
            total += len(y) * float(F.cross_entropy(model(x), y))
    expected = total / float(data.train.sizes.sum())
    assert result.metrics["train_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("personal", [["head.*"], ud.Personal("head.*", first_epochs=1)])
def test_runs_resume_to_the_bit(tmp_path, personal):
    options = dict(
        model=Net(),
        data=federation(),
        local=ud.SGD(lr=0.3, batch_size=4),
        cohort=2,
        engine="serial",
        personal=personal,
    )
    whole = ud.train(ud.SCAFFOLD(), out=tmp_path / "whole", rounds=4, **options)
    ud.train(ud.SCAFFOLD(), out=tmp_path / "cut", rounds=2, **options)
    resumed = ud.resume(tmp_path / "cut", ud.SCAFFOLD(), rounds=4, **options)
    assert torch.equal(whole.x, resumed.x)
    for client in CLIENTS:
        one, two = whole.run.states.get(client), resumed.run.states.get(client)
        assert torch.equal(getattr(one, PERSONAL), getattr(two, PERSONAL))


def test_files(tmp_path):
    table = {
        "data": {"source": "synthetic", "clients": 4},
        "model": {"name": "mlp", "hidden": [4]},
        "local": {"lr": 0.1},
        "method": [{"name": "FedAvg"}],
    }
    for personal, first in ((["3.*"], 0), ({"parameters": ["3.*"], "first_epochs": 3}, 3)):
        experiment = Experiment.from_dict({**table, "personal": personal})
        assert Experiment.from_dict(experiment.resolved()).personal == personal
        losses = build_losses(experiment, build_data(experiment), 0)
        assert losses.personal.first_epochs == first
        assert losses.dimension == 60 * 4 + 4
    for wrong, said in (([], "empty"), (3, "list of names"), ({"first_epochs": 1}, "parameters")):
        with pytest.raises(ud.UndriftError, match=said):
            Experiment.from_dict({**table, "personal": wrong})


WRONG = [
    (lambda: trained(personal=["tail.*"]), "no parameter of the model is called so"),
    (lambda: trained(personal=["*"]), "All parameters are personal"),
    (lambda: trained(personal="normalisation"), "no parameter of the model"),
    (lambda: ud.Personal(["head.*"], first_epochs=-1), "first_epochs is -1"),
    (
        lambda: trained(evaluate=ud.Evaluation(gradient_mapping=0.1)),
        "gradient_mapping is not defined with personal parameters",
    ),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[said for _, said in WRONG])
def test_mistakes_get_one_sentence(wrong, said):
    with pytest.raises(ud.UndriftError, match=said):
        wrong()


def test_a_common_test_part_is_warned_about():
    data = ud.data.FederatedData.from_clients(
        {"a": federation().train.client(0), "b": federation().train.client(1)},
        federation().train.client(2),
    )
    with pytest.warns(UserWarning, match="The test part is common"):
        trained(data=data)
