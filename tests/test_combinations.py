"""Personal parameters, further problems, metrics and limits with every solver and form of data."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import undrift as ud
from undrift.core.client_metrics import ClientMetrics
from undrift.deploy.policy.gate import _different_samples
from undrift.nets import passes
from undrift.nets.module_losses import ModuleLosses

SIZES = {"a": 12, "b": 17, "c": 9}


def samples(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=g), torch.randint(0, 3, (n,), generator=g)


CLIENTS = {name: samples(n, seed) for seed, (name, n) in enumerate(SIZES.items())}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def trained(method=None, **options):
    setting = dict(
        model=Net(),
        data=ud.data.FederatedData.from_clients(CLIENTS),
        local=ud.SGD(lr=0.3, batch_size=4, epochs=2),
        rounds=2,
        engine="serial",
    )
    return ud.train(method or ud.FedAvg(), **{**setting, **options})


def one_client(make, phases, steps, mu=0.0):
    """One round of a client: a new optimizer on each phase's layers, steps on all samples."""
    model, (x, y) = Net(), CLIENTS["a"]
    body = [p.detach().clone() for p in model.body.parameters()]
    for names, number in zip(phases, steps, strict=True):
        optimizer = make([p for name in names for p in getattr(model, name).parameters()])
        for _ in range(number):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for p, start in zip(model.body.parameters(), body, strict=True):
                p.grad += mu * (p.detach() - start)
            optimizer.step()
    return model


SOLVERS = {
    "Adam": (
        lambda **o: ud.Adam(lr=0.05, **o),
        lambda p: torch.optim.Adam(p, lr=0.05),
    ),
    "AdamW": (
        lambda **o: ud.AdamW(lr=0.05, **o),
        lambda p: torch.optim.AdamW(p, lr=0.05),
    ),
    # It treats matrices in another way than vectors, so the shapes must be those of the layers.
    "Adafactor": (
        lambda **o: ud.TorchOptimizer("Adafactor", lr=0.05, **o),
        lambda p: torch.optim.Adafactor(p, lr=0.05),
    ),
}


@pytest.mark.parametrize("first_epochs", [0, 2])
@pytest.mark.parametrize("name", SOLVERS)
def test_personal_parameters_train_with_every_optimizer(name, first_epochs):
    solver, make = SOLVERS[name]
    result = trained(
        ud.FedProx(mu=0.7),
        data=ud.data.FederatedData.from_clients({"a": CLIENTS["a"]}),
        local=solver(batch_size=None, steps=3),
        rounds=1,
        personal=ud.Personal(["head.*"], first_epochs=first_epochs),
    )
    phases, steps = [("body", "head")], [3]
    if first_epochs:
        phases, steps = [("head",), ("body",)], [first_epochs, 3]
    expected = one_client(make, phases, steps, mu=0.7)
    own = result.client_model("a").state_dict()
    for key, value in expected.state_dict().items():
        assert torch.allclose(own[key], value, atol=1e-6), key


def test_kept_moments_and_personal_parameters_exclude_each_other():
    with pytest.raises(ud.UndriftError, match="keep_state=False"):
        trained(local=ud.Adam(keep_state=True), personal=["head.*"])


@pytest.mark.parametrize("name", SOLVERS)
def test_models_are_tuned_with_every_optimizer(name):
    solver, make = SOLVERS[name]
    tune = solver(batch_size=None, steps=3)
    result = trained(
        data=ud.data.FederatedData.from_clients({"a": CLIENTS["a"]}),
        rounds=0,
        evaluate=ud.Evaluation(models=("server", "tuned"), tune=tune),
    )
    x, y = CLIENTS["a"]
    expected = F.cross_entropy(one_client(make, [("body", "head")], [3])(x), y).detach()
    assert result.records[0].metrics["tuned/train_loss"] == pytest.approx(float(expected), 1e-5)


def test_tuning_keeps_no_moments():
    tune = ud.Adam(keep_state=True)
    with pytest.raises(ud.UndriftError, match="keep_state=False"):
        trained(evaluate=ud.Evaluation(models=("server", "tuned"), tune=tune))


class Samples(Dataset):
    def __init__(self, pair):
        self._pair = pair

    def __len__(self):
        return len(self._pair[1])

    def __getitem__(self, number):
        return tuple(each[number] for each in self._pair)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("first_epochs", [0, 1])
def test_personal_parameters_train_on_lazy_samples_as_in_memory(first_epochs, engine):
    personal = ud.Personal(["head.*"], first_epochs=first_epochs)
    own = {name: Samples(pair) for name, pair in CLIENTS.items()}
    lazy = ud.data.FederatedData.from_clients(own, lazy=ud.data.Lazy(workers=0))
    assert lazy.train.lazy is not None
    results = [trained(personal=personal, engine=engine, data=d) for d in (lazy, in_memory())]
    assert torch.allclose(results[0].x, results[1].x, atol=1e-6)
    for name in CLIENTS:
        heads = [result.client_model(name).head.weight for result in results]
        assert torch.allclose(*heads, atol=1e-6)


def in_memory():
    return ud.data.FederatedData.from_clients(CLIENTS)


@pytest.mark.parametrize("keep_state", [False, True])
def test_methods_with_several_problems_agree_with_adam(keep_state):
    local = ud.Adam(lr=0.05, batch_size=4, keep_state=keep_state)
    results = [
        trained(ud.Ditto(lam=0.5), local=local, rounds=3, engine=engine)
        for engine in ("serial", "vectorised")
    ]
    assert torch.allclose(results[0].x, results[1].x, atol=1e-5)
    for name in CLIENTS:
        own = [result.client_model(name).head.weight for result in results]
        assert torch.allclose(*own, atol=1e-5)
    assert results[0].records[-1].gradients == results[1].records[-1].gradients


@dataclass
class Outputs:
    logits: torch.Tensor
    hidden: torch.Tensor
    loss: torch.Tensor | None = None


class Structured(Net):
    """It returns named outputs."""

    def forward(self, x):
        hidden = self.body(x).tanh()
        return Outputs(self.head(hidden), hidden)


def loss(outputs, targets):
    return F.cross_entropy(outputs.logits, targets)


def largest(outputs, targets):
    return outputs.logits.max()


@pytest.mark.parametrize("piece", [4, 4096])
def test_metrics_of_clients_are_those_of_a_plain_model(monkeypatch, piece):
    monkeypatch.setattr(passes, "PIECE_SAMPLES", piece)
    monkeypatch.setattr(passes, "BATCH_SAMPLES", piece)
    named = {name: {"x": x, "labels": y} for name, (x, y) in CLIENTS.items()}
    structured = ModuleLosses(
        Structured(),
        ud.data.FederatedData.from_clients(named),
        loss,
        {"auc": "auc", "largest": largest},
    )
    metrics = {"auc": "auc", "largest": lambda outputs, targets: outputs.max()}
    plain = ModuleLosses(Net(), in_memory(), None, metrics)
    assert_same_metrics(structured, plain)


@pytest.mark.parametrize("piece", [4, 4096])
def test_metrics_of_clients_with_a_step_are_those_of_a_plain_model(monkeypatch, piece):
    monkeypatch.setattr(passes, "BATCH_SAMPLES", piece)

    def step(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    stepped = ModuleLosses(Net(), in_memory(), metrics=["f1", "auc"], step=step)
    assert not stepped.criterion.needs_outputs  # streaming metrics take piece after piece
    plain = ModuleLosses(Net(), in_memory(), metrics=["f1", "auc"])
    assert_same_metrics(stepped, plain, without=("accuracy",))


def assert_same_metrics(one, other, without=()):
    found = []
    for losses in (one, other):
        clients, q = ClientMetrics(), losses.weights()
        values = losses.evaluate_clients(losses.initial(), q, {}, ("train",), clients)
        each = {(c, m): v for m, own in clients.values.items() for c, v in own.items()}
        left_out = {m for m in [*values, *(m for _, m in each)] if any(w in m for w in without)}
        found.append(
            {
                **{m: v for m, v in values.items() if m not in left_out},
                **{key: v for key, v in each.items() if key[1] not in left_out},
            }
        )
    assert found[0].keys() == found[1].keys()
    assert found[0] == pytest.approx(found[1], rel=1e-5, nan_ok=True)
    assert any(isinstance(key, tuple) and key[1] == "train_auc" for key in found[0])


def test_limits_of_a_site_count_the_samples_of_every_solver():
    assert _different_samples(ud.Adam(batch_size=4), 10, steps=2) == 8
    assert _different_samples(ud.Adam(batch_size=4), 10, steps=9) == 10
    assert _different_samples(ud.SGD(0.1, batch_size=4, drop_last=True), 10, steps=9) == 8
    assert _different_samples(ud.SGD(0.1, batch_size=4, fresh_batches=True), 10, steps=9) == 4
    assert _different_samples(ud.Exact(), 10, steps=1) == 10
