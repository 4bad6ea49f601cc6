"""Fine-tuning part of a model: frozen parameters are not trained, sent or stored as state."""

import warnings

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.nets.module_losses import ModuleLosses

METHODS = (ud.FedAvg(), ud.SCAFFOLD(), ud.FedDyn(alpha=0.5), ud.FedDR(eta=0.5))


class Backbone(nn.Module):
    """Layers of which some behave differently in training mode."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return torch.relu(self.drop(self.norm(self.first(x))))


class Model(nn.Module):
    def __init__(self, at_rest=True):
        super().__init__()
        torch.manual_seed(0)
        self.backbone = Backbone()
        self.head = nn.Linear(8, 3)
        self.backbone.requires_grad_(False)
        if at_rest:
            self.backbone.eval()
        self.backbone.norm.running_mean.uniform_(-1, 1)
        self.backbone.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.head(self.backbone(x))


def plain_frozen():
    """Layers that behave the same in both modes; the middle one is frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model[2].requires_grad_(False)
    return model


def resting_dropout():
    """Layers that all have stacked versions, with a dropout left in evaluation mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    model[1].eval()
    return model


def federation():
    generator = torch.Generator().manual_seed(1)
    sizes = (12, 7, 20)
    x = [torch.randn(n, 6, generator=generator) for n in sizes]
    return ud.data.FederatedData.from_clients(
        [(each, (each.sum(1) > 0).long() + (each[:, 0] > 1)) for each in x]
    )


def run(model, method=None, engine="serial", rounds=3):
    return ud.train(
        method or ud.FedAvg(),
        model=model,
        data=federation(),
        local=ud.SGD(lr=0.1, batch_size=4, epochs=2),
        rounds=rounds,
        engine=engine,
    )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_what_is_frozen_stays_in_every_engine_and_only_the_head_travels(method):
    before = Model().state_dict()
    found = {engine: run(Model(), method, engine) for engine in ("serial", "vectorised")}
    for result in found.values():
        after = result.model().state_dict()
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved == {"head.weight", "head.bias"}
        head = 8 * 3 + 3
        assert result.x.numel() == head
        record = result.records[-1]
        # Three clients, four bytes a number: every vector that travels is as long as the head.
        for sent in (*record.bytes_down.values(), *record.bytes_up.values()):
            assert sent == 3 * 4 * head
        for client in range(3):
            kept = dict(result.run.states.get(client).items())
            assert set(kept) == set(method.keeps)
            assert all(value.numel() == head for value in kept.values())
    torch.testing.assert_close(found["serial"].x, found["vectorised"].x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [plain_frozen, resting_dropout])
def test_all_engines_agree_on_layers_in_between(make):
    found = {engine: run(make(), engine=engine) for engine in ("serial", "vectorised", "auto")}
    for engine in ("vectorised", "auto"):
        torch.testing.assert_close(found["serial"].x, found[engine].x, rtol=1e-4, atol=1e-6)


def test_a_step_with_a_resting_part_is_that_of_plain_torch():
    data, model = federation(), Model()
    result = ud.train(
        ud.FedAvg(),
        model=Model(),
        data=data,
        local=ud.GD(lr=0.1, steps=1),
        rounds=1,
    )
    weights = torch.tensor([12, 7, 20]) / 39
    gradients = []
    for k in range(3):
        loss = nn.functional.cross_entropy(model(data.client(k)[0]), data.client(k)[1])
        gradients.append(torch.autograd.grad(loss, list(model.head.parameters())))
    for number, p in enumerate(model.head.parameters()):
        mean = sum(w * each[number] for w, each in zip(weights, gradients, strict=True))
        got = list(result.model().head.parameters())[number]
        torch.testing.assert_close(got, p - 0.1 * mean)


def test_only_a_part_that_is_left_in_evaluation_mode_keeps_its_statistics():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # constant buffers cause no warning
        assert not ModuleLosses(Model(), federation()).changing_buffers
    with pytest.warns(UserWarning, match="backbone.norm"):
        moving = ModuleLosses(Model(at_rest=False), federation()).changing_buffers
    assert "backbone.norm.running_mean" in moving
    with pytest.warns(UserWarning, match="backbone.norm"):  # all in evaluation mode
        assert ModuleLosses(Model(at_rest=False).eval(), federation()).changing_buffers == moving


def test_the_model_that_comes_back_can_train_as_any_other():
    model = run(Model(), rounds=1).model()
    assert not model.backbone.norm.training
    model.train()
    assert model.backbone.norm.training
    assert not any(p.requires_grad for p in model.backbone.parameters())
