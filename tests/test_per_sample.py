"""Which of the user's losses are recognised as means over samples."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud
from undrift.core.losses import objective_weights
from undrift.data.part import Part
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.per_sample import NOT_A_MEAN, PROBE_SAMPLES, per_sample_loss, probe_rows

CPU = torch.device("cpu")
WEIGHTS = torch.tensor([1.0, 1.0, 1.0, 3.0])
EQUAL = torch.zeros(40, 4)  # as of an initial model: every sample's cross-entropy is log 4
LABELS = torch.arange(40) % 4


class Focal(nn.Module):
    def forward(self, outputs, targets):
        each = F.cross_entropy(outputs, targets, reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).mean()


class Running(nn.Module):
    """A loss with state: it looks like a mean the first time."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, outputs, targets):
        self.seen = self.seen + 1
        return F.cross_entropy(outputs, targets)


def flooded(outputs, targets):
    return (F.cross_entropy(outputs, targets) - 0.05).abs() + 0.05


def with_control_flow(outputs, targets):
    loss = F.cross_entropy(outputs, targets)
    return loss if loss.item() < 1e9 else 2 * loss


def random(outputs, targets):
    return F.cross_entropy(F.dropout(outputs, 0.5), targets)


def centred(outputs, targets):
    return F.cross_entropy(outputs - outputs.mean(0), targets)


def balanced(outputs, targets):
    share = outputs.softmax(1).mean(0)
    return F.cross_entropy(outputs, targets) + (share * share.log()).sum()


MEANS = {
    "a function": lambda o, t: F.cross_entropy(o, t),
    "a module": nn.CrossEntropyLoss(),
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "in two steps": lambda o, t: F.nll_loss(o.log_softmax(1), t),
    "focal": Focal(),
    "to one-hot targets": lambda o, t: F.mse_loss(o, F.one_hot(t, 4).to(o)),
    "to targets in single precision": lambda o, t: F.binary_cross_entropy_with_logits(
        o[:, 0], (t > 1).float()
    ),
    "fixed scores": lambda o, t: F.cross_entropy(o + torch.tensor([0.0, 1.0, 2.0, 3.0]), t),
}
OTHERS = {
    "class weights": nn.CrossEntropyLoss(weight=WEIGHTS),
    "class weights of any precision": lambda o, t: F.cross_entropy(o, t, weight=WEIGHTS.to(o)),
    "class weights and smoothing": nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1),
    "an ignored class": nn.CrossEntropyLoss(ignore_index=2),
    "a sum": nn.CrossEntropyLoss(reduction="sum"),
    "a root of the mean": lambda o, t: F.mse_loss(o, F.one_hot(t, 4).to(o)).sqrt(),
    "statistics of the batch": centred,
    "a term in the batch's mean": balanced,
    "a bound on the batch's mean": flooded,
    "draws": random,
    "control flow": with_control_flow,
    "numpy": lambda o, t: F.cross_entropy(o, t) + float(o.detach().numpy().sum()) * 0,
    "notes": Running(),
}


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("outputs", [EQUAL, torch.linspace(-3, 3, 160).view(40, 4).sin()])
def test_a_mean_over_samples_is_taken_apart(name, outputs):
    loss = MEANS[name]
    each = per_sample_loss(loss, outputs, LABELS, CPU)
    assert callable(each)
    found = each(outputs, LABELS)
    one_by_one = [float(loss(outputs[k : k + 1], LABELS[k : k + 1])) for k in range(40)]
    assert found.tolist() == pytest.approx(one_by_one, rel=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_a_loss_that_is_not_a_mean_over_samples_is_recognised(name):
    assert isinstance(per_sample_loss(OTHERS[name], EQUAL, LABELS, CPU), str)


def test_outputs_that_must_stay_probabilities_are_no_obstacle():
    half, targets = torch.full((20,), 0.5), (torch.arange(20) % 2).float()

    def weighted(o, t):
        return (F.binary_cross_entropy(o, t, reduction="none") * (1 + t)).sum() / (1 + t).sum()

    assert callable(per_sample_loss(nn.BCELoss(), half, targets, CPU))
    assert per_sample_loss(weighted, half, targets, CPU) == NOT_A_MEAN


def test_a_loss_that_broadcasts_over_the_batch_is_not_a_mean_over_samples():
    column, flat = torch.randn(20, 1), torch.randn(20)
    assert per_sample_loss(F.mse_loss, column, flat, CPU) == NOT_A_MEAN
    assert callable(per_sample_loss(F.mse_loss, column, flat[:, None], CPU))


def test_trying_out_leaves_no_trace():
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in (*MEANS.values(), *OTHERS.values()):
            per_sample_loss(loss, EQUAL, LABELS, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert float(OTHERS["notes"].seen) == 0


def test_samples_to_try_out_have_every_label_and_the_ends():
    y = torch.zeros(5000, dtype=torch.int64)
    y[4321] = 7
    rows = probe_rows(Part.common(torch.zeros(5000, 1), y))
    assert 4321 in rows
    assert len(rows) <= PROBE_SAMPLES
    y = torch.zeros(5000, 3)
    y[17, 2], y[4000, 0] = -1.0, torch.inf
    assert {17, 4000} <= {*probe_rows(Part.common(torch.zeros(5000, 1), y)).tolist()}


def test_a_rare_class_with_a_weight_is_found():
    y = torch.zeros(3000, dtype=torch.int64)
    y[1234] = 1
    clients = [(torch.zeros(1000, 2), y[k : k + 1000]) for k in (0, 1000, 2000)]
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 50.0]))
    data = ud.data.FederatedData.from_clients(clients)
    assert ModuleLosses(nn.Linear(2, 2), data, loss).criterion.per_sample is None


def federation(clients, size, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(clients * size, 5, generator=g)
    y = torch.randint(0, 4, (clients * size,), generator=g)
    pairs = zip(x.split(size), y.split(size), strict=True)
    return ud.data.FederatedData.from_clients(list(pairs))


@pytest.mark.parametrize("loss", [*MEANS.values(), OTHERS["class weights"], OTHERS["a sum"]])
def test_the_training_loss_is_the_mean_of_the_clients_losses_either_way(loss):
    data = ud.data.FederatedData.from_clients(
        [(torch.randn(n, 5), torch.arange(n) % 4) for n in (1, 9, 4, 17)]
    )
    losses = ModuleLosses(nn.Linear(5, 4), data, loss)
    q = objective_weights(losses.sizes, "clients")
    x = losses.initial()
    wanted = sum(float(q[k]) * losses.value(k, x) for k in range(4))
    assert losses.evaluate(x, q, {})["train_loss"] == pytest.approx(wanted, rel=1e-5)
    gradient = sum(float(q[k]) * losses.gradient(k, x) for k in range(4))
    assert torch.allclose(losses.total_gradient(x, q), gradient, rtol=1e-4, atol=1e-6)


def test_evaluation_does_not_loop_over_clients():
    calls = []

    def loss(outputs, targets):
        calls.append(len(outputs))
        return F.cross_entropy(outputs, targets)

    data = federation(10_000, 2)
    losses = ModuleLosses(nn.Linear(5, 4), data, loss)
    q, x = losses.weights(), losses.initial()
    calls.clear()
    found = losses.evaluate(x, q, {})
    losses.total_gradient(x, q)
    assert len(calls) < 50
    plain = ModuleLosses(nn.Linear(5, 4), data)
    assert found == pytest.approx(plain.evaluate(x, q, {}), rel=1e-6)
