"""Stacked layers agree with torch's own layers, client by client."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from undrift.engines.vectorised.batches import Batch
from undrift.engines.vectorised.networks import (
    StackedNetwork,
    cross_entropy_derivative,
    squared_error_derivative,
)
from undrift.engines.vectorised.random_masks import RandomMasks
from undrift.engines.vectorised.stacked.layers import Dropout, Linear, ReLU
from undrift.engines.vectorised.steps import FusedStep, Gradients
from undrift.engines.vectorised.tracing import stacked_layers
from undrift.nets import models

SIZES = {1: [4], 3: [5, 1, 3]}


class OwnForward(nn.Module):
    """A module whose forward pass is a function (module, x) → outputs."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.run = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.run(self, x)


def images(*layers):
    return nn.Sequential(*layers), (2, 6, 6)


def rows(*layers):
    return nn.Sequential(*layers), (6,)


def of_lstm(read, inputs=3, hidden=4, **options):
    lstm = nn.LSTM(inputs, hidden, batch_first=True, **options)
    return OwnForward(read, lstm=lstm, out=nn.Linear(hidden, 2)), (5, inputs)


def last(m, x):
    outputs, _ = m.lstm(x)
    return m.out(outputs[:, -1])


def last_state(m, x):
    _, (h, _) = m.lstm(x)
    return m.out(h[-1])


def convolutional(m, x):
    x = F.max_pool2d(F.relu(m.conv(x)), 2)
    return m.out(torch.flatten(x, 1))


def tokens(forward, **layers):
    """A model of sequences of five vectors of width four."""
    return OwnForward(forward, **layers), (5, 4)


def heads(x):
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def attention(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    return m.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def attention_by_hand(m, x):
    q, k, v = (heads(layer(x)) for layer in (m.q, m.k, m.v))
    weights = torch.softmax(q @ k.transpose(-2, -1) / 2**0.5, dim=-1)
    return m.out(torch.matmul(weights, v).transpose(1, 2).flatten(2)).mean(1)


def attention_of_one_product(m, x):
    q, k, v = m.qkv(m.norm(x)).chunk(3, dim=-1)
    mixed = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
    return (x + m.out(mixed.transpose(1, 2).flatten(2)))[:, -1]


def difference_of_halves(m, x):
    a, b = x.split(3, 1)
    return a - b.relu()


def linears(*names, width=4):
    return {name: nn.Linear(width, width) for name in names}


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(
        4, 2, dim_feedforward=6, dropout=0.0, batch_first=True, **options
    )


class Positions(nn.Module):
    """Parameters and a buffer that are no layer: positions, a scale of each feature, a shift."""

    def __init__(self, *leading):
        super().__init__()
        self.position = nn.Parameter(torch.randn(*leading, 5, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.arange(4.0, dtype=torch.float64))
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return (1 - self.layer(x + self.position) * self.scale - self.shift).sum((1, 2))


CHAINS = {
    "attention": lambda: tokens(attention, **linears("q", "k", "v", "out")),
    "attention by hand": lambda: tokens(attention_by_hand, **linears("q", "k", "v", "out")),
    "attention of one product": lambda: tokens(
        attention_of_one_product, norm=nn.LayerNorm(4), qkv=nn.Linear(4, 12), out=nn.Linear(4, 4)
    ),
    "multi-head attention": lambda: tokens(
        lambda m, x: x + m.mix(x, x, x, need_weights=False)[0],
        mix=nn.MultiheadAttention(4, 2, batch_first=True),
    ),
    "multi-head attention, named inputs": lambda: tokens(
        lambda m, x: (lambda y: m.mix(query=y, key=y, value=y)[0])(m.a(x)),
        mix=nn.MultiheadAttention(4, 2, bias=False, batch_first=True),
        **linears("a"),
    ),
    "encoder layer": lambda: (encoder_layer(), (5, 4)),
    "encoder layer, norm first": lambda: (
        nn.Sequential(nn.Linear(4, 4), encoder_layer(norm_first=True, activation="gelu")),
        (5, 4),
    ),
    "encoder layer without bias": lambda: (encoder_layer(bias=False), (5, 4)),
    "encoder": lambda: (
        nn.TransformerEncoder(encoder_layer(), 2, norm=nn.LayerNorm(4), enable_nested_tensor=False),
        (5, 4),
    ),
    "positions": lambda: (Positions(), (5, 4)),
    "positions for a batch": lambda: (Positions(1), (5, 4)),
    "mean over time": lambda: tokens(lambda m, x: m.a(x).mean(dim=1), **linears("a")),
    "softmax over time": lambda: tokens(
        lambda m, x: m.b(F.softmax(m.a(x), 1)), **linears("a", "b")
    ),
    "softmax as a module": lambda: rows(nn.Linear(6, 5), nn.Softmax(-1), nn.Linear(5, 2)),
    "log-softmax": lambda: rows(nn.Linear(6, 5), nn.LogSoftmax(1)),
    "first token": lambda: tokens(lambda m, x: m.b(m.a(x)[:, 0]), **linears("a", "b")),
    "index of an index": lambda: tokens(
        lambda m, x: m.b(m.a(x)[:, 1:][:, :2, 1:3]), a=nn.Linear(4, 4), b=nn.Linear(2, 2)
    ),
    "gate": lambda: rows(nn.Linear(6, 5), OwnForward(lambda m, y: y * torch.sigmoid(y))),
    "scaled and shifted": lambda: rows(
        nn.Linear(6, 5), OwnForward(lambda m, y: (2 * y - 1) / 3), nn.ReLU(), nn.Linear(5, 2)
    ),
    "difference": lambda: rows(
        nn.Linear(6, 5), OwnForward(lambda m, y: y - torch.tanh(y)), nn.ReLU(), nn.Linear(5, 2)
    ),
    "split": lambda: rows(
        nn.Linear(6, 6),
        OwnForward(difference_of_halves),
        nn.Linear(3, 2),
    ),
    "permuted": lambda: tokens(
        lambda m, x: m.a(m.b(x).permute(0, 2, 1)), a=nn.Linear(5, 3), b=nn.Linear(4, 4)
    ),
    "other activations": lambda: rows(
        *(nn.Linear(6, 5), nn.Mish(), nn.Hardswish(), nn.SELU(), nn.CELU(), nn.Softsign()),
        *(nn.ReLU6(), nn.LogSigmoid(), nn.Hardtanh(), nn.Hardsigmoid(), nn.Linear(5, 2)),
    ),
    "relu after a function": lambda: tokens(
        lambda m, x: m.b(torch.relu(m.a(x).mean(1))), **linears("a", "b")
    ),
    "linear": lambda: rows(nn.Linear(6, 3)),
    "linear without bias": lambda: rows(nn.Linear(6, 3, bias=False)),
    "linear by itself": lambda: (nn.Linear(6, 3), (6,)),
    "linear over time": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        (5, 3),
    ),
    "mlp": lambda: rows(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)),
    "nested": lambda: rows(nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.Sigmoid()))),
    "ends in relu": lambda: rows(nn.Linear(6, 5), nn.ReLU()),
    "tanh after sigmoid": lambda: rows(nn.Linear(6, 5), nn.Sigmoid(), nn.Tanh(), nn.Linear(5, 3)),
    "relu after tanh": lambda: rows(nn.Linear(6, 5), nn.Tanh(), nn.Flatten(), nn.ReLU()),
    "relu of the batch": lambda: rows(nn.ReLU(), nn.Linear(6, 3)),
    "relu of the flat batch": lambda: images(nn.Flatten(), nn.ReLU(), nn.Linear(72, 3)),
    "relu of normalised": lambda: rows(
        nn.Linear(6, 5), nn.LayerNorm(5, elementwise_affine=False), nn.ReLU(), nn.Linear(5, 2)
    ),
    "tanh of pooled": lambda: images(
        nn.Conv2d(2, 3, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Tanh(), nn.Flatten(), nn.Sigmoid()
    ),
    "gelu": lambda: rows(nn.Linear(6, 5), nn.GELU(), nn.ReLU(), nn.Linear(5, 3)),
    "gelu by tanh": lambda: rows(nn.Linear(6, 5), nn.GELU("tanh"), nn.Linear(5, 3)),
    "leaky relu": lambda: rows(nn.Linear(6, 5), nn.LeakyReLU(0.3), nn.Linear(5, 3)),
    "elu": lambda: rows(nn.Linear(6, 5), nn.ELU(0.7), nn.Linear(5, 3)),
    "silu": lambda: rows(nn.Linear(6, 5), nn.SiLU(), nn.Linear(5, 3)),
    "softplus": lambda: rows(nn.Linear(6, 5), nn.Softplus(2.0, 1.0), nn.Linear(5, 3)),
    "layer norm": lambda: rows(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)),
    "layer norm first": lambda: rows(nn.LayerNorm(6), nn.Linear(6, 3)),
    "layer norm without bias": lambda: rows(nn.Linear(6, 5), nn.LayerNorm(5, bias=False)),
    "layer norm of images": lambda: images(nn.Conv2d(2, 3, 3), nn.LayerNorm([3, 4, 4])),
    "layer norm over time": lambda: (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), (5, 3)),
    "group norm": lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()),
    "group norm first": lambda: images(nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(72, 3)),
    "group norm, plain": lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4, affine=False)),
    "group norm of rows": lambda: rows(nn.Linear(6, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2)),
    "convolutions": lambda: images(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(3, 4, (2, 3), stride=(1, 2), padding=(0, 1), dilation=(2, 1), bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 3),
    ),
    "average pooling": lambda: images(
        nn.Conv2d(2, 3, 3), nn.AvgPool2d(2, 1, 1, count_include_pad=False), nn.Flatten()
    ),
    "pooled images": lambda: images(
        nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)
    ),
    "lstm": lambda: of_lstm(last),
    "lstm by its state": lambda: of_lstm(last_state, num_layers=2),
    "lstm of two levels": lambda: of_lstm(last, num_layers=2),
    "lstm without bias": lambda: of_lstm(last, num_layers=2, bias=False),
    "lstm over time": lambda: of_lstm(lambda m, x: m.out(m.lstm(x)[0]), num_layers=3),
    "lstm of lstm": lambda: (
        OwnForward(
            lambda m, x: torch.relu(m.second(torch.tanh(m.first(x)[0]))[0][:, -1, :]),
            first=nn.LSTM(3, 4, batch_first=True),
            second=nn.LSTM(4, 2, batch_first=True),
        ),
        (5, 3),
    ),
    "lstm of one step": lambda: (of_lstm(last)[0], (1, 3)),
    "own class": lambda: (
        OwnForward(convolutional, conv=nn.Conv2d(2, 3, 3), out=nn.Linear(12, 4)),
        (2, 6, 6),
    ),
    "methods": lambda: (
        OwnForward(
            lambda m, x: m.b(m.a(x.view(x.size(0), -1)).relu().reshape(x.shape[0], -1)).sigmoid(),
            a=nn.Linear(72, 4),
            b=nn.Linear(4, 3),
        ),
        (2, 6, 6),
    ),
    "one relu for all": lambda: (
        OwnForward(
            lambda m, x: m.b(m.relu(m.a(m.relu(x)))),
            a=nn.Linear(6, 5),
            b=nn.Linear(5, 3),
            relu=nn.ReLU(),
        ),
        (6,),
    ),
    "view by features": lambda: (
        OwnForward(lambda m, x: m.a(x.view(-1, 72)), a=nn.Linear(72, 4)),
        (2, 6, 6),
    ),
    "sum": lambda: (
        OwnForward(
            lambda m, x: F.gelu(x + m.b(torch.relu(m.a(x)))), a=nn.Linear(6, 5), b=nn.Linear(5, 6)
        ),
        (6,),
    ),
    "sum within": lambda: (
        OwnForward(
            lambda m, x: (lambda y: m.b(torch.relu(y) + torch.tanh(y)).relu())(m.a(x)),
            a=nn.Linear(6, 5),
            b=nn.Linear(5, 2),
        ),
        (6,),
    ),
    "residual blocks": lambda: images(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        models.ResidualBlock(4, 4, 2, 1),
        models.ResidualBlock(4, 8, 2, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ),
}


def names_of(module):
    return [name for name, p in module.named_parameters() if p.requires_grad]


class Setting:
    """Clients with different parameters, as rows of one matrix, and batches of different sizes."""

    def __init__(self, module, x, targets, sizes, loss):
        self.loss, self.sizes = loss, sizes
        torch.manual_seed(1)
        self.modules = [deepcopy(module).double() for _ in sizes]
        for each in self.modules:
            for p in each.parameters():
                p.data.add_(0.3 * torch.randn_like(p))
        shapes = [p.shape for p in module.parameters()]
        numbers = [shape.numel() for shape in shapes]
        flat = torch.zeros(len(sizes), sum(numbers) + 3, dtype=torch.float64)
        parts = flat[:, : sum(numbers)].split(numbers, 1)
        self.parameters = [part.unflatten(1, s) for part, s in zip(parts, shapes, strict=True)]
        for number, each in enumerate(self.parameters):
            for own, client in zip(each, self.modules, strict=True):
                own.copy_(list(client.parameters())[number].data)
        places, counts = torch.arange(max(sizes)), torch.tensor(sizes)[:, None]
        self.batch = Batch(x, targets, sizes, (places < counts) / counts.double())
        layers = stacked_layers(module, names_of(module))
        assert not isinstance(layers, str), layers
        entropy = loss is F.cross_entropy
        derivative = cross_entropy_derivative if entropy else squared_error_derivative
        self.network = StackedNetwork(layers, derivative)

    def expected(self, scale):
        """The gradients of every client, by torch's autograd."""
        found = []
        for c, (module, size) in enumerate(zip(self.modules, self.sizes, strict=True)):
            outputs = module(self.batch.x[c, :size])
            value = scale * self.loss(outputs, self.batch.y[c, :size])
            found.append(torch.autograd.grad(value, list(module.parameters())))
        return [torch.stack(each) for each in zip(*found, strict=True)]

    def run(self, sink, scale):
        self.network.backward(self.parameters, self.batch, scale, sink, None)


def regression(module, inputs, sizes):
    g = torch.Generator().manual_seed(2)
    x = torch.randn(len(sizes), max(sizes), *inputs, generator=g, dtype=torch.float64)
    outputs = deepcopy(module).double()(x[0])
    y = torch.randn(*x.shape[:2], *outputs.shape[1:], generator=g, dtype=torch.float64)
    return Setting(module, x, y, sizes, F.mse_loss)


def characters(sizes, length=6, **options):
    module = models.char_lstm(characters=7, embedding=3, hidden=4, **options)
    g = torch.Generator().manual_seed(2)
    x = torch.randint(0, 7, (len(sizes), max(sizes), length), generator=g, dtype=torch.int32)
    y = torch.randint(0, 7, x.shape[:2], generator=g)
    return Setting(module, x, y, sizes, F.cross_entropy)


def assert_gradients(setting):
    before = setting.batch.x.clone()
    expected = setting.expected(0.7)
    for network in (setting.network, setting.network, setting.network.copy()):
        setting.network = network  # without memory of earlier batches
        sink = Gradients(setting.parameters)
        for each in sink.values:
            each.fill_(float("nan"))
        setting.run(sink, 0.7)
        for found, right in zip(sink.values, expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    assert torch.equal(setting.batch.x, before)


def assert_step(setting):
    """x − η(∇ + (λ + r)x + v − r z), applied inside the backward pass."""
    expected = setting.expected(0.7)
    start = [each.clone() for each in setting.parameters]
    constant = [torch.randn_like(each) for each in start]
    sink = FusedStep(setting.parameters, start, 0.4, constant)
    sink.rate = 0.1
    setting.run(sink, 0.7)
    for x, x0, g, v in zip(setting.parameters, start, expected, constant, strict=True):
        torch.testing.assert_close(x, x0 - 0.1 * (g + 0.4 * x0 + v), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_has_the_gradients_of_autograd(chain, clients):
    module, inputs = CHAINS[chain]()
    setting = regression(module, inputs, SIZES[clients])
    assert_gradients(setting)
    assert_step(setting)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("layers", [1, 2])
def test_characters_have_the_gradients_of_autograd(layers, clients):
    setting = characters(SIZES[clients], layers=layers)
    assert_gradients(setting)
    assert_step(setting)


def test_an_embedding_of_single_numbers():
    module = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 4))
    x = torch.randint(0, 7, (3, 5))
    setting = Setting(module, x, torch.randint(0, 4, (3, 5)), [5, 1, 3], F.cross_entropy)
    assert_gradients(setting)
    assert_step(setting)


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_bags_of_words(mode):
    module = nn.Sequential(nn.EmbeddingBag(7, 3, mode=mode), nn.Linear(3, 4))
    x = torch.randint(0, 7, (3, 5, 6))
    setting = Setting(module, x, torch.randint(0, 4, (3, 5)), [5, 1, 3], F.cross_entropy)
    assert_gradients(setting)
    assert_step(setting)


def test_frozen_layers_cost_no_gradient_before_the_first_trained_one():
    frozen = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 4)).requires_grad_(False)
    module = nn.Sequential(frozen, nn.Linear(4, 3), nn.Linear(3, 2).requires_grad_(False))
    layers = stacked_layers(module, names_of(module))
    assert [layer.is_first for layer in layers] == [True, True, True, True, False]
    assert [layer.trains for layer in layers] == [False, False, False, True, False]
    network = StackedNetwork(layers, squared_error_derivative)
    copied = network.copy()
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 2)
    own = [torch.stack([p.detach(), -p.detach()]) for p in module[1].parameters()]
    with torch.no_grad():
        module[2].weight.mul_(2)  # a copy shares what is frozen
    for each in (network, copied):
        sink = Gradients(own)
        each.backward(own, Batch(x, y, [3, 3], 1 / 3), 1.0, sink, None)
        for k, sign in enumerate((1, -1)):
            trained = [(sign * p).detach().requires_grad_() for p in module[1].parameters()]
            outputs = module[2](F.linear(module[0](x[k]), *trained))
            expected = torch.autograd.grad(F.mse_loss(outputs, y[k]), trained)
            for found, right in zip(sink.values, expected, strict=True):
                torch.testing.assert_close(found[k], right, rtol=1e-5, atol=1e-6)


MIXERS = {
    "mean": lambda y: y.mean(0, keepdim=True),
    "mean, counted from the end": lambda y: y.mean(-2),
    "softmax": lambda y: F.softmax(y, 0),
    "transposed": lambda y: y.transpose(-1, -2),
    "product": lambda y: y @ y.relu(),
}


@pytest.mark.parametrize("how", MIXERS)
def test_functions_that_mix_samples_fail(how):
    module = OwnForward(lambda m, x: MIXERS[how](m.a(x)), a=nn.Linear(3, 3))
    layers = stacked_layers(module, names_of(module))
    network = StackedNetwork(layers, squared_error_derivative)
    x = torch.randn(1, 3, 3)
    parameters = [p.detach()[None] for p in module.parameters()]
    with pytest.raises(ValueError, match="sample"):
        network.backward(parameters, Batch(x, x, [3], 1 / 3), 1.0, Gradients(parameters), None)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    length=st.integers(1, 6),
    layers=st.integers(1, 3),
)
def test_characters_of_any_shape(sizes, length, layers):
    assert_gradients(characters(sizes, length, layers=layers))


def test_memory_of_an_lstm_follows_the_batch():
    setting = characters([3, 3])
    layers = setting.network
    for sizes, length in (([3, 3], 6), ([2], 6), ([2], 4), ([3, 3], 6)):
        setting = characters(sizes, length)
        setting.network = layers
        assert_gradients(setting)


def test_clients_that_start_from_the_same_parameters():
    setting = characters([2, 3])
    setting.modules = [setting.modules[0]] * 2
    setting.parameters = [each[:1].expand(2, *each.shape[1:]) for each in setting.parameters]
    expected = setting.expected(1.0)
    sink = Gradients([torch.empty(each.shape).double() for each in setting.parameters])
    setting.run(sink, 1.0)
    for found, right in zip(sink.values, expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


def test_a_layer_overwrites_only_what_nobody_needs():
    def may(*modules):
        layers = stacked_layers(nn.Sequential(*modules), names_of(nn.Sequential(*modules)))
        return [layer.may_overwrite for layer in layers if isinstance(layer, ReLU)]

    linear = nn.Linear(3, 3)
    assert may(linear, nn.ReLU()) == [True]
    assert may(linear, nn.Flatten(), nn.ReLU()) == [True]
    assert may(linear, nn.ReLU(), nn.ReLU()) == [True, False]
    assert may(nn.ReLU(), linear) == [False]
    assert may(nn.Flatten(), nn.ReLU(), linear) == [False]
    assert may(linear, nn.Sigmoid(), nn.Flatten(), nn.ReLU()) == [False]
    assert may(linear, nn.Dropout(0.5), nn.ReLU()) == [True]


def test_the_backward_pass_ends_at_the_first_parameters():
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    assert [layer.is_first for layer in stacked_layers(module, names_of(module))] == [
        True,
        True,
        False,
        False,
    ]


def test_following_a_module_leaves_it_as_it_was():
    module = models.char_lstm().eval()
    module[2].train()
    assert not isinstance(stacked_layers(module, names_of(module)), str)
    assert [each.training for each in module] == [False, False, True]


def tied():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


def frozen():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[0].weight.requires_grad_(False)
    return module


def hooked(register):
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    register(module[0])
    return module


def own_lstm(**options):
    module, _ = of_lstm(last)
    module.lstm = nn.LSTM(3, 4, **{"batch_first": True, **options})
    return module


def linear_of(forward):
    return OwnForward(forward, a=nn.Linear(3, 3))


REFUSALS = {
    "a layer that is not known": (lambda: nn.Sequential(nn.BatchNorm1d(3)), "0 is a BatchNorm1d"),
    "by itself": (lambda: nn.Softshrink(), "the model is a Softshrink"),
    "frozen": (frozen, "0 is a Linear with frozen parameters"),
    "tied": (tied, "1 is a Linear that shares parameters"),
    "used twice": (
        lambda: linear_of(lambda m, x: m.a(torch.relu(m.a(x)))),
        "a is a Linear, which is used twice",
    ),
    "not used": (
        lambda: OwnForward(lambda m, x: m.a(x), a=nn.Linear(3, 3), b=nn.Linear(3, 3)),
        "b.bias is not used by any layer",
    ),
    "its result is not used": (
        lambda: linear_of(lambda m, x: (torch.relu(x), m.a(x))[1]),
        "the model is a OwnForward, whose relu is not used",
    ),
    "forward hook": (
        lambda: hooked(lambda m: m.register_forward_hook(lambda *_: None)),
        "0 has hooks",
    ),
    "forward pre-hook": (
        lambda: hooked(lambda m: m.register_forward_pre_hook(lambda *_: None)),
        "0 has hooks",
    ),
    "backward hook": (
        lambda: hooked(lambda m: m.register_full_backward_hook(lambda *_: None)),
        "0 has hooks",
    ),
    "backward pre-hook": (
        lambda: hooked(lambda m: m.register_full_backward_pre_hook(lambda *_: None)),
        "0 has hooks",
    ),
    "hook of a parameter": (
        lambda: hooked(lambda m: m.weight.register_hook(lambda g: 2 * g)),
        "0.weight has hooks",
    ),
    "parametrised": (
        lambda: hooked(nn.utils.parametrizations.orthogonal),
        "0 is a ParametrizedLinear",
    ),
    "forward put in place": (
        lambda: hooked(lambda m: setattr(m, "forward", lambda x: x)),
        "0 has a replaced forward method",
    ),
    "a branch on a value": (
        lambda: linear_of(lambda m, x: m.a(x) if x.sum() > 0 else x),
        "its forward pass cannot be traced",
    ),
    "unknown function": (
        lambda: linear_of(lambda m, x: torch.sin(m.a(x))),
        "the model is a OwnForward, whose sin is not a known layer",
    ),
    "own parameter": (
        lambda: linear_of(lambda m, x: F.linear(x, m.a.weight)),
        "the model is a OwnForward, whose linear is not a known layer",
    ),
    "dropout as a function": (
        lambda: linear_of(lambda m, x: F.dropout(m.a(x), 0.5, m.training)),
        "the model is a OwnForward, whose dropout is not a known layer",
    ),
    "sum with a weight": (
        lambda: linear_of(lambda m, x: torch.add(x, m.a(x), alpha=2)),
        "the model is a OwnForward, whose add has unusual options",
    ),
    "branches that meet twice": (
        lambda: OwnForward(
            lambda m, x: (lambda y, z: (y + z) + y.relu())(m.a(x), m.b(x)),
            a=nn.Linear(3, 3),
            b=nn.Linear(3, 3),
        ),
        "OwnForward, whose",
    ),
    "dropout in two branches": (
        lambda: OwnForward(
            lambda m, x: m.b(m.a(x)) + m.c(x), a=nn.Linear(3, 3), b=nn.Dropout(), c=nn.Dropout()
        ),
        "which has dropout in several branches",
    ),
    "product of weights": (
        lambda: linear_of(lambda m, x: m.a(x) @ m.a.weight),
        "whose matmul is not a known layer",
    ),
    "attention with a mask": (
        lambda: OwnForward(
            lambda m, x: m.mix(x, x, x, attn_mask=torch.ones(5, 5))[0],
            mix=nn.MultiheadAttention(4, 2, batch_first=True),
        ),
        "mix is a MultiheadAttention, which is more than self-attention",
    ),
    "attention of two tensors": (
        lambda: OwnForward(
            lambda m, x: m.mix(x, torch.relu(x), x)[0],
            mix=nn.MultiheadAttention(4, 2, batch_first=True),
        ),
        "mix is a MultiheadAttention, which is more than self-attention",
    ),
    "weights of attention": (
        lambda: OwnForward(
            lambda m, x: m.mix(x, x, x)[1], mix=nn.MultiheadAttention(4, 2, batch_first=True)
        ),
        "mix is a MultiheadAttention, which is more than self-attention",
    ),
    "attention, time first": (
        lambda: OwnForward(lambda m, x: m.mix(x, x, x)[0], mix=nn.MultiheadAttention(4, 2)),
        "has the samples in the second axis",
    ),
    "attention with dropout": (
        lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True),
        "that has dropout of its weights",
    ),
    "attention that drops": (
        lambda: linear_of(lambda m, x: F.scaled_dot_product_attention(m.a(x), x, x, dropout_p=0.5)),
        "whose scaled_dot_product_attention",
    ),
    "mean over everything": (
        lambda: linear_of(lambda m, x: m.a(x).mean()),
        "whose mean is not a known layer",
    ),
    "samples turned": (
        lambda: linear_of(lambda m, x: m.a(x).permute(1, 0)),
        "whose permute is not a known layer",
    ),
    "every second sample": (
        lambda: linear_of(lambda m, x: m.a(x)[::2]),
        "which indexes a tensor",
    ),
    "largest of a bag": (lambda: nn.EmbeddingBag(5, 3, mode="max"), "has the mode 'max'"),
    "more than one output": (
        lambda: linear_of(lambda m, x: (m.a(x), x)),
        "whose output is not computed from one tensor",
    ),
    "flatten samples": (lambda: nn.Sequential(nn.Flatten(0)), "0 is a Flatten that does not"),
    "torch.flatten": (
        lambda: linear_of(lambda m, x: m.a(torch.flatten(x))),
        "does not flatten all but the samples",
    ),
    "view": (
        lambda: linear_of(lambda m, x: m.a(x.view(-1, 2, 3))),
        "the model is a OwnForward, whose view does not flatten",
    ),
    "embedding, padded": (lambda: nn.Embedding(3, 3, padding_idx=0), "has padding_idx"),
    "embedding, bounded": (lambda: nn.Embedding(3, 3, max_norm=1.0), "has max_norm"),
    "embedding, sparse": (lambda: nn.Embedding(3, 3, sparse=True), "has sparse"),
    "embedding, scaled": (
        lambda: nn.Embedding(3, 3, scale_grad_by_freq=True),
        "has scale_grad_by_freq",
    ),
    "lstm, time first": (
        lambda: own_lstm(batch_first=False),
        "lstm is a LSTM that has the samples",
    ),
    "lstm, both ways": (lambda: own_lstm(bidirectional=True), "is bidirectional"),
    "lstm, projected": (lambda: own_lstm(proj_size=2), "has projections"),
    "lstm, dropout": (lambda: own_lstm(num_layers=2, dropout=0.5), "has dropout between"),
    "lstm, first output": (
        lambda: of_lstm(lambda m, x: m.out(m.lstm(x)[0][:, 0]))[0],
        "which indexes a tensor",
    ),
    "lstm, its cells": (
        lambda: of_lstm(lambda m, x: m.out(m.lstm(x)[1][1][-1]))[0],
        "which indexes a tensor",
    ),
    "lstm, all of it": (
        lambda: nn.LSTM(3, 3, batch_first=True),
        "whose outputs and states are not separated",
    ),
    "lstm, given states": (
        lambda: of_lstm(lambda m, x: m.out(m.lstm(x, (x, x))[0]))[0],
        "lstm is a LSTM, which takes more than one input",
    ),
    "convolution in groups": (lambda: nn.Conv2d(2, 2, 3, groups=2), "has groups"),
    "convolution, reflected": (
        lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        "has a padding other than a number of zeros",
    ),
    "pooling with indices": (lambda: nn.MaxPool2d(2, return_indices=True), "returns indices"),
    "adaptive pooling": (lambda: nn.AdaptiveAvgPool2d(2), "returns more than one pixel"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_module_that_is_not_a_chain_is_named_with_the_reason(case):
    build, sentence = REFUSALS[case]
    module = build()
    found = stacked_layers(module, names_of(module))
    assert isinstance(found, str)
    assert sentence in found


def test_dropout_is_the_same_in_any_order_of_memory():
    x = torch.ones(2, 3, 4, 5, 5, dtype=torch.float64)
    found = []
    for turned in (x, x.permute(1, 0, 3, 4, 2).contiguous().permute(1, 0, 4, 2, 3)):
        masks = RandomMasks([1, 2], x.device)
        masks.sizes = [3, 2]
        found.append(Dropout(0.5).forward(turned, [], masks))
    assert torch.equal(found[0], found[1])


def test_identities_leave_no_layer():
    module = nn.Sequential(nn.Identity(), nn.Dropout(0.0), nn.Linear(3, 3))
    (layer,) = stacked_layers(module, names_of(module))
    assert isinstance(layer, Linear)
