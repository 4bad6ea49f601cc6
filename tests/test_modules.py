"""Any nn.Module with any loss: parameters, buffers, frozen parts, dropout, weights, shapes."""

import random
import traceback
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import undrift as ud
from undrift.nets.flat import FlatModule
from undrift.nets.module_losses import ModuleLosses


def data(n=(7, 12, 6), features=4, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    clients = [
        (torch.randn(k, features, generator=g), torch.randint(0, classes, (k,), generator=g))
        for k in n
    ]
    test = (torch.randn(9, features, generator=g), torch.randint(0, classes, (9,), generator=g))
    return ud.data.FederatedData.from_clients(clients, test)


def net(*middle, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), *middle, nn.ReLU(), nn.Linear(8, 3))


SGD = ud.SGD(lr=0.1, batch_size=4, epochs=2)


def train(model, method=None, **options):
    # The vectorised engine chooses by a fixed rule, and not by time: bits are compared.
    setting = {"data": data(), "local": SGD, "rounds": 3, "engine": "vectorised", **options}
    return ud.train(method or ud.FedAvg(), model=model, **setting)


def test_the_users_model_is_never_changed():
    model = net()
    before = [p.detach().clone() for p in model.parameters()]
    train(model)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_the_flat_vector_is_the_parameters_in_order():
    model = net()
    flat = FlatModule(model, torch.device("cpu"))
    assert torch.equal(flat.x, torch.cat([p.detach().flatten() for p in model.parameters()]))
    flat.load(torch.arange(len(flat.x), dtype=torch.float32))
    assert flat.module[0].weight[0].tolist() == [0, 1, 2, 3]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.second(torch.tanh(self.first(x))))


def test_tied_parameters_count_once_and_frozen_ones_stay():
    torch.manual_seed(0)
    model = Tied()
    model.last.bias.requires_grad_(False)
    result = train(model)
    assert len(result.x) == 16 + 12
    trained = result.model()
    assert torch.equal(trained.last.bias, model.last.bias)
    assert not torch.equal(trained.last.weight, model.last.weight)
    assert torch.equal(trained.first.weight, trained.second.weight)


def test_buffers_are_averaged_by_samples_and_warned_about():
    model = net(nn.BatchNorm1d(8, momentum=0.3))
    with pytest.warns(UserWarning, match=r"buffers in 1.*GroupNorm"):
        result = train(model, rounds=1)
    parameters = sum(p.numel() for p in model.parameters())
    assert len(result.x) == parameters
    alone = []
    for k in range(3):
        one = ud.data.FederatedData.from_clients({k: data().train.client(k)})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone.append(train(model, data=one, rounds=1).run.buffers)
    for name, found in result.run.buffers.items():
        mean = sum(n * b[name].double() for n, b in zip((7, 12, 6), alone, strict=True)) / 25
        wanted = mean if found.is_floating_point() else mean.round()
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    assert result.records[1].bytes_up["buffers"] == 3 * (2 * 8 * 4 + 8)


def test_a_model_without_buffers_is_not_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(net(nn.GroupNorm(2, 8)), rounds=1)


def test_dropout_is_keyed_and_no_global_generator_is_touched():
    model = net(nn.Dropout(0.5))
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    first = train(model, cohort=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert random.getstate() == before[2]
    torch.rand(13)
    train(net(nn.Dropout(0.1)), seed=5)
    again = train(model, cohort=2)
    assert torch.equal(first.x, again.x)
    assert [r.metrics for r in first.records] == [r.metrics for r in again.records]
    assert not torch.equal(first.x, train(model, cohort=2, seed=1).x)


def test_making_models_and_data_touches_no_global_generator():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    ud.models.mlp(6, 5, classes=2)
    ud.models.logistic(6, 2)
    ud.data.synthetic(clients=3)
    assert torch.equal(torch.get_rng_state(), before)
    a, b = (ud.models.mlp(6, 5, classes=2, seed=s) for s in (0, 0))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert sum(p.numel() for p in ud.models.mlp(784, 200, 100, classes=10).parameters()) == 178_110


def test_the_order_of_clients_does_not_matter_to_the_bit():
    clients = {name: data().train.client(k) for k, name in enumerate("abc")}
    turned = {name: clients[name] for name in "cab"}
    for method in (ud.FedAvg(), ud.SCAFFOLD(), ud.FedDyn(0.1)):
        a, b = (
            train(net(), method, data=ud.data.FederatedData.from_clients(c), cohort=2)
            for c in (clients, turned)
        )
        assert torch.equal(a.x, b.x)


def test_initial_weights_come_from_a_file(tmp_path):
    source = net(seed=5)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    result = train(net(seed=1), weights=tmp_path / "w.safetensors", rounds=0)
    assert torch.equal(result.x, torch.cat([p.detach().flatten() for p in source.parameters()]))
    again = train(net(seed=1), rounds=2)
    again.save(tmp_path / "end.safetensors")
    assert torch.equal(train(net(), weights=tmp_path / "end.safetensors", rounds=0).x, again.x)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, "no file of initial weights"),
        (lambda path: path.write_bytes(b"nonsense"), "not a safetensors file"),
        (lambda path: save_file({"a": torch.ones(2)}, path), "no weights for '0.weight'"),
        (
            lambda path: save_file(
                {n: torch.ones(1) for n in ("0.weight", "0.bias", "2.weight", "2.bias")}, path
            ),
            "of shape [1]",
        ),
    ],
)
def test_bad_weights_are_refused_with_a_sentence(tmp_path, write, words):
    write(tmp_path / "w.safetensors")
    with pytest.raises(ud.UndriftError) as error:
        train(net(), weights=tmp_path / "w.safetensors")
    assert words in str(error.value)


def test_the_training_objective_is_weighted_as_asked_and_contains_weight_decay():
    model, clients = net(), data()
    each = []
    for k in range(3):
        x, y = clients.train.client(k)
        each.append(float(nn.functional.cross_entropy(model(x), y).detach()))
    square = sum(float(p.detach().square().sum()) for p in model.parameters())
    decayed = ud.SGD(lr=0.1, weight_decay=0.2)
    for objective, q in (("samples", (7 / 25, 12 / 25, 6 / 25)), ("clients", (1 / 3,) * 3)):
        result = train(model, objective=objective, local=decayed, rounds=0)
        loss = sum(w * f for w, f in zip(q, each, strict=True))
        assert result.metrics["train_loss"] == pytest.approx(loss, rel=1e-5)
        assert result.metrics["objective"] == pytest.approx(loss + 0.1 * square, rel=1e-5)


def test_accuracy_is_given_per_client():
    clients = data(n=(10,) * 20)
    result = train(net(), data=clients, rounds=2)
    model = result.model()
    each = sorted(
        float((model(x).argmax(1) == y).float().mean())
        for x, y in (clients.train.client(k) for k in range(20))
    )
    assert result.metrics["train_client_accuracy_mean"] == pytest.approx(np.mean(each))
    assert result.metrics["train_client_accuracy_std"] == pytest.approx(np.std(each))
    assert result.metrics["train_client_accuracy_worst_tenth"] == pytest.approx(np.mean(each[:2]))


def test_regression_with_own_loss_and_metrics():
    g = torch.Generator().manual_seed(0)
    slope = torch.tensor([[2.0], [-1.0]])
    xs = [torch.randn(20, 2, generator=g) for _ in range(3)]
    clients = ud.data.FederatedData.from_clients([(x, x @ slope) for x in xs])
    options = dict(model=nn.Linear(2, 1), data=clients, local=ud.SGD(lr=0.1, epochs=3), rounds=30)
    plain = ud.train(ud.FedAvg(), **options)
    assert plain.metrics["train_loss"] < 1e-6
    assert plain.metrics["train_absolute_error"] < 1e-2
    assert "train_accuracy" not in plain.metrics
    own = ud.train(
        ud.FedAvg(),
        **options,
        loss=lambda outputs, targets: (outputs - targets).abs().mean(),
        metrics={"largest": lambda outputs, targets: (outputs - targets).abs().max()},
    )
    assert "train_absolute_error" not in own.metrics
    assert own.metrics["train_largest"] >= own.metrics["train_loss"]


def test_a_network_has_the_gradient_of_its_analytic_twin():
    clients = data(n=(6, 9))
    features = [clients.train.client(k)[0] for k in range(2)]
    labels = [clients.train.client(k)[1] for k in range(2)]
    twin = ud.theory.LogisticRegression(features, labels, 3, weight_decay=0.1)
    solver = ud.SGD(lr=0.2, batch_size=4, epochs=2, momentum=0.5)
    decayed = ud.SGD(lr=0.2, batch_size=4, epochs=2, momentum=0.5, weight_decay=0.1)
    model = ud.models.logistic(4, 3).double()
    for method in (ud.FedAvg(), ud.SCAFFOLD(), ud.FedDyn(0.5), ud.FedDR(0.5)):
        a = ud.train(method, problem=twin, local=solver, rounds=4)
        b = ud.train(method, model=model, data=clients, local=decayed, rounds=4)
        torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-12)
        assert a.metrics["objective"] == pytest.approx(b.metrics["objective"], rel=1e-12)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x), x


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (nn.Linear(5, 3), {}, "cannot take inputs of shape [2, 4]"),
        (nn.Linear(4, 2), {}, "labels go from 0 to 2"),
        (
            nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
            {},
            "classification needs [batch, classes]",
        ),
        (Pair(), {}, "returns is a tuple, but must be one tensor"),
        (nn.Linear(4, 3), {"loss": lambda o, t: o}, "a single number"),
        (nn.Linear(4, 3), {"loss": nn.BCEWithLogitsLoss()}, "The loss failed on outputs of shape"),
        (nn.ReLU(), {}, "no trainable parameters"),
        ("a network", {}, "is 'a network', but must be a torch nn.Module"),
        (lambda: nn.Linear(4, 3), {}, "must be a torch nn.Module"),
    ],
)
def test_models_that_do_not_fit_are_refused_with_a_sentence(model, options, words):
    with pytest.raises(ud.UndriftError) as error:
        train(model, **options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_regression_outputs_must_have_the_shape_of_the_targets():
    clients = ud.data.FederatedData.from_clients([(torch.randn(5, 2), torch.randn(5))])
    with pytest.raises(ud.UndriftError, match="for regression the two must be the same"):
        train(nn.Linear(2, 1), data=clients)
    with pytest.raises(ud.UndriftError, match="Using a target size"):  # torch would broadcast
        train(nn.Linear(2, 1), data=clients, loss=nn.MSELoss())


def test_a_convolution_and_an_lstm_train():
    class Characters(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.lstm = nn.LSTM(4, 6, batch_first=True)
            self.out = nn.Linear(6, 5)

        def forward(self, text):
            return self.out(self.lstm(self.embed(text))[0][:, -1])

    g = torch.Generator().manual_seed(0)
    text = [torch.randint(0, 5, (8, 7), generator=g) for _ in range(2)]
    spoken = ud.data.FederatedData.from_clients([(t, t[:, 0]) for t in text])
    images = [torch.randn(8, 3, 6, 6, generator=g) for _ in range(2)]
    seen = ud.data.FederatedData.from_clients([(i, torch.arange(8) % 2) for i in images])
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    for model, clients in ((Characters(), spoken), (conv, seen)):
        result = train(model, ud.SCAFFOLD(), data=clients, rounds=4)
        assert result.metrics["train_loss"] < result.records[0].metrics["train_loss"]


class Masked(nn.Module):
    """Constant buffers: a causal mask and complex frequencies."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.register_buffer("turns", torch.polar(torch.ones(3), torch.arange(3.0)))

    def forward(self, x):
        return self.layer(x)


def test_constant_buffers_stay_and_do_not_travel():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train(Masked())
    assert set(result.records[1].bytes_up) == {"moved"}
    assert torch.equal(result.model().mask, Masked().mask)
    assert torch.equal(result.model().turns, Masked().turns)


def test_ones_own_loss_may_read_targets_as_it_likes():
    clients = data(classes=2)
    binary = train(
        nn.Linear(4, 1),
        data=clients,
        loss=lambda o, t: nn.functional.binary_cross_entropy_with_logits(o[:, 0], t.float()),
    )
    assert "train_accuracy" not in binary.metrics
    assert binary.metrics["train_loss"] < binary.records[0].metrics["train_loss"]
    flat = ud.data.FederatedData.from_clients([(torch.randn(9, 2), torch.randn(9))])
    squeezed = train(
        nn.Linear(2, 1), data=flat, loss=lambda o, t: nn.functional.mse_loss(o.squeeze(1), t)
    )
    assert "train_absolute_error" not in squeezed.metrics


def test_labels_may_be_of_any_whole_type():
    x, y = data().train.x, data().train.y
    parts = [list(range(12)), list(range(12, 25))]
    found = [
        train(net(), data=ud.data.FederatedData.from_arrays(x, y.to(kind), parts)).x
        for kind in (torch.int64, torch.int32, torch.uint8)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_test_part_that_does_not_fit_is_refused():
    own = data().train.client(0)
    for test, words in (
        ((torch.randn(3, 4), torch.tensor([0, 1, 9])), "labels go from 0 to 9"),
        (
            (torch.randn(3, 7), torch.tensor([0, 1, 2])),
            "inputs of the test part have shape [7]",
        ),
    ):
        with pytest.raises(ud.UndriftError) as error:
            train(net(), data=ud.data.FederatedData.from_clients([own], test))
        assert words in str(error.value)


def unequal_clients():
    return ud.data.FederatedData.from_clients(
        {
            "a": (torch.randn(8, 4), torch.arange(8) % 3),
            "b": (torch.randn(5, 4), torch.arange(5) % 3),
        }
    )


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_batch_of_one_sample_for_batch_norm_gives_only_a_sentence(engine):
    with pytest.raises(ud.UndriftError) as error:
        train(net(nn.BatchNorm1d(8)), data=unequal_clients(), engine=engine)
    assert "client 'b' in round 1: BatchNorm needs at least two samples" in str(error.value)
    shown = "".join(traceback.format_exception(error.value))
    assert shown.count("Traceback (most recent call last)") == 1
    assert "torch/nn" not in shown
    assert "undrift/engines" not in shown


def test_a_model_that_fails_on_a_client_names_it_and_shows_the_line():
    class SmallBatches(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            if self.training and len(x) == 1:
                raise RuntimeError("too few rows")
            return self.layer(x)

    with pytest.raises(ud.UndriftError) as error:
        train(SmallBatches(), data=unequal_clients(), engine="serial")
    assert "client 'b' in round 1: RuntimeError: too few rows" in str(error.value)
    assert 'raise RuntimeError("too few rows")' in "".join(traceback.format_exception(error.value))


def test_a_model_that_is_random_even_in_evaluation_gives_the_same_metrics():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(nn.functional.dropout(x, 0.5))

    torch.manual_seed(0)
    model = Noisy()
    before = torch.get_rng_state()
    first = train(model)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert [r.metrics for r in train(model).records] == [r.metrics for r in first.records]


def test_tied_weights_are_saved_once_and_read_back(tmp_path):
    result = train(Tied())
    result.save(tmp_path / "tied.safetensors")
    again = train(Tied(), weights=tmp_path / "tied.safetensors", rounds=0)
    assert torch.equal(again.x, result.x)
    with pytest.raises(ud.UndriftError, match="no folder"):
        result.save(tmp_path / "missing" / "x.safetensors")


def test_evaluation_in_pieces_is_evaluation_at_once(monkeypatch):
    losses = ModuleLosses(net(), data())
    q = torch.full((3,), 1 / 3, dtype=torch.float64)
    at_once = losses.evaluate(losses.initial(), q, {})
    monkeypatch.setattr("undrift.nets.passes.PIECE_SAMPLES", 5)
    for name, value in losses.evaluate(losses.initial(), q, {}).items():
        assert value == pytest.approx(at_once[name], rel=1e-6)
