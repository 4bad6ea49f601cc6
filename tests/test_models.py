"""The papers' models: sizes, seeds, outputs, and that they learn."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import undrift as ud
from undrift.nets import models
from undrift.nets.models import MODELS, ResidualBlock, parameter_count
from undrift.utils.keys import key


def images(n=6, channels=3, side=32):
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, channels, side, side, generator=g)


def text(n=6, length=9, characters=80):
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, characters, (n, length), generator=g)


# a small call of each function, inputs that fit it, and a rate at which it learns
SMALL = {
    "logistic": (lambda **o: models.logistic(3 * 36, 4), images(side=6), 0.05),
    "mlp": (lambda **o: models.mlp(3 * 36, 9, 7, classes=4, **o), images(side=6), 0.1),
    "cifar_cnn": (lambda **o: models.cifar_cnn(4, side=16, **o), images(side=16), 0.05),
    "lenet": (lambda **o: models.lenet(4, side=16, **o), images(side=16), 0.05),
    "pfl_cnn": (lambda **o: models.pfl_cnn(4, side=8, **o), images(side=8), 0.02),
    "vgg11": (lambda **o: models.vgg11(4, **o), images(4), 0.05),
    "resnet18": (lambda **o: models.resnet18(4, **o), images(side=8), 0.001),
    "char_lstm": (lambda **o: models.char_lstm(12, 3, 8, **o), text(characters=12), 0.5),
}
every_model = pytest.mark.parametrize("name", MODELS)


def vector(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_every_model_has_a_name_and_is_tried_here():
    assert set(SMALL) == set(MODELS)
    assert all(getattr(models, name) is model for name, model in MODELS.items())


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda: models.logistic(784, 10), 7_850),
        (lambda: models.mlp(784, 200, 100, classes=10), 178_110),
        (lambda: models.mlp(784, 200, 200, classes=10), 199_210),  # as McMahan et al. print it
        (lambda: models.mlp(784, 400, classes=10), 784 * 400 + 400 + 400 * 10 + 10),
        (lambda: models.mlp(60, 32, classes=10), 60 * 32 + 32 + 32 * 10 + 10),
        (lambda: models.mlp(60, classes=10), 610),
        (lambda: models.cifar_cnn(), 797_962),
        (
            lambda: models.cifar_cnn(100),
            (3 * 64 * 25 + 64)
            + (64 * 64 * 25 + 64)
            + (1600 * 384 + 384)
            + (384 * 192 + 192)
            + (192 * 100 + 100),
        ),
        (lambda: models.lenet(), 62_006),
        (lambda: models.pfl_cnn(), 1_626_442),
        (lambda: models.vgg11(), 9_750_922),
        (lambda: models.resnet18(), 11_173_962),
        (lambda: models.char_lstm(), 133_520),
        (
            lambda: models.char_lstm(50, 5, 20, 3),
            50 * 5 + 4 * 20 * (5 + 20 + 2) + 2 * 4 * 20 * (20 + 20 + 2) + 20 * 50 + 50,
        ),
    ],
)
def test_sizes_are_those_of_the_papers(make, parameters):
    assert parameter_count(make()) == parameters


def test_parameters_are_counted_as_methods_see_them():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    clients = ud.data.FederatedData.from_clients([(torch.randn(5, 4), torch.arange(5) % 3)])
    result = ud.train(ud.FedAvg(), model=model, data=clients, local=ud.GD(0.1, 1), rounds=0)
    assert parameter_count(model) == len(result.x) == 16 + 4 + 4 + 12


@pytest.mark.parametrize(
    ("make", "inputs", "outputs"),
    [
        (lambda: models.logistic(48, 7), images(channels=3, side=4), 7),
        (lambda: models.mlp(48, 5, classes=7), images(channels=3, side=4), 7),
        (lambda: models.cifar_cnn(), images(2), 10),
        (lambda: models.cifar_cnn(47, channels=1, side=28), images(2, 1, 28), 47),
        (lambda: models.cifar_cnn(side=16), images(2, side=16), 10),
        (lambda: models.pfl_cnn(), images(2), 10),
        (lambda: models.pfl_cnn(62, channels=1, side=28), images(2, 1, 28), 62),
        (lambda: models.pfl_cnn(side=6), images(2, side=6), 10),
        (lambda: models.vgg11(), images(2), 10),
        (lambda: models.vgg11(100, channels=1), images(2, 1), 100),
        (lambda: models.resnet18(), images(2), 10),
        (lambda: models.resnet18(100, channels=1, groups=32), images(2, 1, 28), 100),
        (lambda: models.char_lstm(), text(2, 80), 80),
        (lambda: models.char_lstm(5, 2, 3, layers=1), text(2, 1, 5), 5),
    ],
)
def test_a_batch_goes_to_a_row_for_each_sample(make, inputs, outputs):
    model = make().eval()
    with torch.no_grad():
        found = model(inputs)
        assert found.shape == (len(inputs), outputs)
        torch.testing.assert_close(found[1:], model(inputs[1:]), rtol=1e-4, atol=1e-5)


@every_model
def test_weights_are_a_function_of_the_seed_and_no_global_generator_moves(name):
    make, *_ = SMALL[name]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = vector(make())
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(11)
    assert torch.equal(vector(make(seed=0)), first)
    assert torch.equal(vector(make(seed=1)), first) == (name == "logistic")


def test_an_mlp_is_linear_layers_drawn_one_after_the_other():
    with torch.random.fork_rng():
        torch.manual_seed(key(7, "model") % 2**63)
        wanted = [nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)]
    found = vector(models.mlp(6, 5, 4, classes=3, seed=7))
    assert torch.equal(found, torch.cat([vector(layer) for layer in wanted]))


def test_logistic_regression_starts_at_zero():
    assert not vector(models.logistic(60, 10)).any()


def test_vgg_starts_as_fednova_has_it():
    convolutions = [layer for layer in models.vgg11() if isinstance(layer, nn.Conv2d)]
    widths = [64, 128, 256, 256, 512, 512, 512, 512]
    assert [layer.out_channels for layer in convolutions] == widths
    for layer, width in zip(convolutions, widths, strict=True):
        assert not layer.bias.any()
        deviation = math.sqrt(2 / (9 * width))
        error = 4 * deviation / math.sqrt(2 * layer.weight.numel())
        assert float(layer.weight.detach().std()) == pytest.approx(deviation, abs=error)


def test_the_pfl_network_starts_within_glorots_bounds():
    layers = [x for x in models.pfl_cnn() if isinstance(x, nn.Conv2d | nn.Linear)]
    fans = [(3 * 9, 32 * 9), (32 * 9, 64 * 9), (12544, 128), (128, 10)]
    for layer, (before, after) in zip(layers, fans, strict=True):
        bound = math.sqrt(6 / (before + after))
        assert 0.97 * bound < float(layer.weight.detach().abs().max()) <= bound


def clients_of(inputs):
    labels = torch.arange(len(inputs)) % 3
    half = len(inputs) // 2
    return ud.data.FederatedData.from_clients(
        [(inputs[:half], labels[:half]), (inputs[half:], labels[half:])]
    )


@every_model
def test_every_model_learns(name):
    make, inputs, lr = SMALL[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor are there buffers to be warned about
        result = ud.train(
            ud.FedAvg(),
            model=make(),
            data=clients_of(inputs),
            local=ud.GD(lr, steps=2),
            rounds=2,
            evaluate=ud.Evaluation(every=1),
            engine="serial",
        )
    losses = [record.metrics["train_loss"] for record in result.records]
    assert losses[2] < losses[1] < losses[0]
    assert set(result.records[1].bytes_up) == {"moved"}


@every_model
def test_nothing_has_buffers(name):
    assert not list(SMALL[name][0]().buffers())


@every_model
def test_dropout_only_in_training(name):
    make, inputs, _ = SMALL[name]
    model = make()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        trained = [model.train()(inputs) for _ in range(2)]
        judged = [model.eval()(inputs) for _ in range(2)]
    assert torch.equal(*judged)
    drops = name in ("pfl_cnn", "vgg11")
    assert torch.equal(*trained) != drops
    assert torch.equal(trained[0], judged[0]) != drops


def group_norm(x, groups, scale, shift):
    """Wu & He, ECCV 2018, equation 1, from the definition."""
    pieces = []
    for piece in x.chunk(groups, dim=1):
        mean = piece.mean(dim=(1, 2, 3), keepdim=True)
        variance = (piece - mean).square().mean(dim=(1, 2, 3), keepdim=True)
        pieces.append((piece - mean) / (variance + 1e-5).sqrt())
    return torch.cat(pieces, dim=1) * scale[:, None, None] + shift[:, None, None]


def block(x, weights, groups, stride, shape_changes):
    """A basic block of He et al., CVPR 2016, figure 5, with a projection where it must."""
    first, a, b, second, c, d = (next(weights) for _ in range(6))
    y = group_norm(F.conv2d(x, first, stride=stride, padding=1), groups, a, b).clamp(min=0)
    y = group_norm(F.conv2d(y, second, padding=1), groups, c, d)
    if shape_changes:
        projection, e, f = (next(weights) for _ in range(3))
        x = group_norm(F.conv2d(x, projection, stride=stride), groups, e, f)
    return (x + y).clamp(min=0)


def shaken(model):
    """In double precision, with scales and shifts that are not one and zero."""
    g = torch.Generator().manual_seed(2)
    model = model.double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype) * (p.dim() == 1)
    return model


@pytest.mark.parametrize(("before", "width", "stride"), [(8, 8, 1), (4, 8, 2), (4, 8, 1)])
def test_a_residual_block_is_the_papers(before, width, stride):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = shaken(ResidualBlock(before, width, groups=2, stride=stride))
    x = images(3, before, 7).double()
    wanted = block(x, iter(found.parameters()), 2, stride, before != width)
    torch.testing.assert_close(found(x), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("groups", [2, 32])
def test_resnet18_is_four_stages_of_two_blocks(groups):
    model = shaken(models.resnet18(groups=groups))
    x = images(2, side=16).double()
    with torch.no_grad():
        weights = iter(model.parameters())
        stem, a, b = (next(weights) for _ in range(3))
        y = group_norm(F.conv2d(x, stem, padding=1), groups, a, b).clamp(min=0)
        for stage in range(4):
            y = block(y, weights, groups, 1 if stage == 0 else 2, stage > 0)
            y = block(y, weights, groups, 1, False)
        assert y.shape == (2, 512, 2, 2)
        last, bias = weights
        torch.testing.assert_close(model(x), y.mean((2, 3)) @ last.T + bias, rtol=0, atol=1e-9)


def lstm(x, weights):
    """One layer over `[length, inputs]`, by Hochreiter & Schmidhuber's gates with forgetting.

    i, f, o = σ(·), g = tanh(·);  c ← f c + i g;  h ← o tanh(c)
    """
    of_input, of_state, bias, other_bias = weights
    state = memory = np.zeros(of_state.shape[1])
    outputs = []
    for step in x:
        gates = of_input @ step + of_state @ state + bias + other_bias
        i, f, g, o = np.split(gates, 4)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        memory = f * memory + i * np.tanh(g)
        state = o * np.tanh(memory)
        outputs.append(state)
    return np.array(outputs)


def test_the_lstm_is_the_textbooks():
    model = models.char_lstm(7, 3, 5, layers=2, seed=4)
    inputs = text(4, 6, 7)
    embedding, *stacked, last, bias = (p.detach().double().numpy() for p in model.parameters())
    for row, found in zip(inputs.numpy(), model(inputs), strict=True):
        wanted = lstm(lstm(embedding[row], stacked[:4]), stacked[4:])
        wanted = last @ wanted[-1] + bias
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=0, atol=1e-5)


def test_characters_may_be_int32_or_int64():
    make, inputs, lr = SMALL["char_lstm"]
    found = [
        ud.train(
            ud.FedAvg(),
            model=make(),
            data=clients_of(inputs.to(kind)),
            local=ud.GD(lr, steps=2),
            rounds=1,
            engine="vectorised",
        ).x
        for kind in (torch.int64, torch.int32)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.logistic(0, 10), "logistic's features is 0"),
        (lambda: models.logistic(60, 2.5), "logistic's classes is 2.5"),
        (lambda: models.mlp(-1, 5, classes=3), "mlp's features is -1"),
        (lambda: models.mlp(4, 5, 0, classes=3), "mlp's hidden layer 2 is 0"),
        (lambda: models.mlp(4, (5, 6), classes=3), "mlp's hidden layer 1 is (5, 6)"),
        (lambda: models.mlp(4, 5, classes=True), "mlp's classes is True"),
        (lambda: models.mlp(4, 5, classes=3, seed=0.5), "seed is 0.5"),
        (lambda: models.cifar_cnn(side=15), "cifar_cnn's side is 15"),
        (lambda: models.cifar_cnn(channels=0), "cifar_cnn's channels is 0"),
        (lambda: models.pfl_cnn(side=5), "pfl_cnn's side is 5"),
        (lambda: models.pfl_cnn(classes="ten"), "pfl_cnn's classes is 'ten'"),
        (lambda: models.vgg11(channels=None), "vgg11's channels is None"),
        (lambda: models.resnet18(groups=0), "resnet18's groups is 0"),
        (lambda: models.resnet18(groups=3), "resnet18's groups is 3, but must divide 64"),
        (lambda: models.resnet18(seed=-1), "seed is -1"),
        (lambda: models.char_lstm(layers=0), "char_lstm's layers is 0"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(make, words):
    before = torch.get_rng_state()
    with pytest.raises(ud.UndriftError) as error:
        make()
    assert words in str(error.value)
    assert "must " in str(error.value) and "\n" not in str(error.value)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("mlp", images(side=5)),
        ("cifar_cnn", images(side=32)),
        ("cifar_cnn", images(side=8)),
        ("pfl_cnn", images(channels=1, side=8)),
        ("vgg11", images(side=16)),
        ("vgg11", images(side=64)),
        ("resnet18", images(channels=1, side=8)),
        ("char_lstm", text().float()),
        ("char_lstm", text(characters=80) % 12 + 12),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_a_sentence(name, inputs):
    with pytest.raises(ud.UndriftError) as error:
        ud.train(ud.FedAvg(), model=SMALL[name][0](), data=clients_of(inputs), local=ud.GD(0.1, 1))
    assert f"cannot take inputs of shape {[2, *inputs.shape[1:]]}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "inputs", "classes", "options", "wanted"),
    [
        ("logistic", (1, 8, 8), 3, {}, 64 * 3 + 3),
        ("mlp", (1, 28, 28), 10, {"hidden": [200, 100]}, 178_110),
        ("cifar_cnn", (3, 32, 32), 10, {}, 797_962),
        ("pfl_cnn", (3, 32, 32), 10, {}, 1_626_442),
        ("char_lstm", (80,), 80, {}, 133_520),
    ],
)
def test_a_model_by_its_name_fits_the_inputs(name, inputs, classes, options, wanted):
    model = ud.models.fitting(name, inputs, classes, **options)
    assert ud.models.parameter_count(model) == wanted


@pytest.mark.parametrize(
    ("name", "inputs", "options", "words"),
    [
        ("cifar_cnn", (60,), {}, "takes images of shape"),
        ("cifar_cnn", (3, 32, 48), {}, "takes square images"),
        ("mlp", (60,), {"hiden": [3]}, "did you mean 'hidden'?"),
        ("mlp", (60,), {"hidden": 3}, "must be a list of widths"),
        ("mpl", (60,), {}, "did you mean 'mlp'?"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(name, inputs, options, words):
    with pytest.raises(ud.UndriftError) as error:
        ud.models.fitting(name, inputs, 10, **options)
    assert words in str(error.value)
