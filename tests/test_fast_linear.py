"""Linear layers and LSTMs with the faster library of matrix products agree with torch's own."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import undrift as ud
from looping import synchronous
from undrift.bench.networks import adapted_transformer, transformer
from undrift.engines import SerialEngine
from undrift.engines.fast_linear import FastLinear, use_fast_linear
from undrift.engines.strategies import Strategy
from undrift.engines.vectorised.networks import ModuleNetwork
from undrift.nets.module_losses import ModuleLosses
from undrift.utils import products


@pytest.fixture
def fast(monkeypatch):
    """Uses the library for products of every size; gives the list of the products' shapes."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("This torch has no oneDNN.")
    multiplied = []
    product = products.product

    def watched(a, b, bias=None):
        multiplied.append((*a.shape, len(b)))
        return product(a, b, bias)

    monkeypatch.setattr(products, "available", lambda: True)
    monkeypatch.setattr(products, "LARGE_PRODUCT", 1)
    monkeypatch.setattr(products, "product", watched)
    return multiplied


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 3, 4, 7)])
def test_outputs_and_gradients_are_those_of_a_linear_layer(shape, bias, fast):
    torch.manual_seed(0)
    plain = nn.Linear(7, 6, bias=bias)
    layer = deepcopy(plain)
    use_fast_linear(layer)
    assert type(layer) is FastLinear
    found = []
    for each in (plain, layer):
        x = torch.linspace(-1, 1, 7).repeat(*shape[:-1], 1).requires_grad_()
        y = each(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), [x, *each.parameters()])))
    assert len(fast) == 3
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, atol=1e-5)


def test_frozen_parameters_get_no_product(fast):
    layer = nn.Linear(7, 6).requires_grad_(False)
    use_fast_linear(layer)
    layer(torch.ones(5, 7, requires_grad=True)).sum().backward()
    assert fast == [(5, 7, 6), (5, 6, 7)]


def test_double_precision_and_subclasses_are_left_alone(fast):
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    own = Own(7, 6)
    use_fast_linear(own)
    assert type(own) is Own
    double = nn.Linear(7, 6).double()
    use_fast_linear(double)
    double(torch.ones(5, 7).double())
    assert not fast


TOKENS = torch.arange(4 * 6 * 64).view(24, 64) % 256
TEXT = ud.data.FederatedData.from_clients(
    {k: (TOKENS[6 * k : 6 * k + 6], torch.arange(6) % 10) for k in range(4)}
)
CHARACTERS = ud.data.FederatedData.from_clients(
    {k: (TOKENS[6 * k : 6 * k + 6, :5] % 80, torch.arange(6) % 80) for k in range(4)}
)
MODELS = {
    "transformer": (transformer, TEXT, Strategy("module", 1, 2)),
    "adapters": (adapted_transformer, TEXT, Strategy("module", 1, 2)),
    "lstm": (ud.models.char_lstm, CHARACTERS, Strategy("stacked", 3, 2)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_with_the_serial_engine(name, fast):
    make, data, strategy = MODELS[name]
    losses = ModuleLosses(make(), data)
    local = ud.SGD(lr=0.1, batch_size=4, epochs=1)
    found = []
    for engine in (SerialEngine, strategy.engine):
        loop = synchronous(ud.SCAFFOLD(), losses, local, ud.All(), 2, engine=engine)
        list(loop.rounds())
        found.append(loop.server.x)
    assert fast
    assert torch.allclose(*found, atol=2e-5)


def test_threads_share_frozen_parameters():
    losses = ModuleLosses(adapted_transformer(), TEXT)
    network = ModuleNetwork(losses)
    of_each = [
        [p for p in each._module.parameters() if not p.requires_grad]
        for each in (network, network.copy())
    ]
    own = [p for p in losses.flat.module.parameters() if not p.requires_grad]
    assert len(own) > 50
    for several in zip(own, *of_each, strict=True):
        assert len({p.data_ptr() for p in several}) == 1
    trained = {p.data_ptr() for p in network._parameters}
    assert trained.isdisjoint(p.data_ptr() for p in network.copy()._parameters)
    sizes = [p.numel() for p in network._parameters]
    assert sum(sizes) == losses.dimension == 8192
