"""Large products through oneDNN, and the algebra of methods in pieces: the same results."""

import inspect

import pytest
import torch

import undrift as ud
from agreement import assert_same
from test_factored import MORE_METHODS, run
from test_vectorised import METHODS, engine
from undrift.engines import SerialEngine
from undrift.engines.vectorised import engine as vectorised
from undrift.engines.vectorised import pieces
from undrift.engines.vectorised.steps import FusedStep
from undrift.utils import products

KEEPING = [each for each in [*METHODS, *MORE_METHODS] if each.kept()]


def has_onednn():
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        products.product(torch.ones(2, 3), torch.ones(2, 3))
    except (AttributeError, RuntimeError):
        return False
    return True


needs_onednn = pytest.mark.skipif(not has_onednn(), reason="torch has no oneDNN here")


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(products, "LARGE_PRODUCT", 0)
    monkeypatch.setattr(products, "available", lambda: True)


@needs_onednn
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_products_are_those_of_torch(always, shared, bias):
    x, w, b = torch.randn(3, 5, 7), torch.randn(3, 4, 7), torch.randn(3, 4)
    if shared:
        w, b = w[:1].expand(3, 4, 7), b[:1].expand(3, 4)
    expected = torch.bmm(x, w.transpose(1, 2)) + (b[:, None] if bias else 0)
    assert torch.allclose(products.products(x, w, b if bias else None), expected, atol=1e-5)
    assert torch.allclose(
        products.products(expected, w.transpose(1, 2)), torch.bmm(expected, w), atol=1e-4
    )


def test_double_precision_and_small_products_stay_with_torch():
    large = torch.ones(1, dtype=torch.float64)
    assert not products.pays(1000, 1000, 1000, large)
    assert not products.pays(10, 10, 10, torch.ones(1))


@needs_onednn
@pytest.mark.parametrize("first", [False, True], ids=["later step", "first step"])
@pytest.mark.parametrize("constant", [False, True], ids=["no constant", "constant"])
@pytest.mark.parametrize(
    "decay", [0.0, 0.3, torch.tensor([0.1, 0.0, 0.7])], ids=["none", "same", "of each"]
)
def test_a_large_step_is_a_step(always, monkeypatch, first, constant, decay):
    monkeypatch.setattr("undrift.engines.vectorised.steps.PIECE_BYTES", 40)
    g = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=g)

    x, start, K = random(3, 6, 4), random(1, 6, 4), random(3, 6, 4)
    outputs, inputs = random(3, 5, 6), random(3, 5, 4)
    before = start.expand(3, 6, 4) if first else x.clone()
    gradient = torch.bmm(outputs.transpose(1, 2), inputs) + (K if constant else 0)
    d = decay.view(-1, 1, 1) if isinstance(decay, torch.Tensor) else decay
    step = FusedStep([x], [start], decay, [K] if constant else None)
    if not first:
        step.finish()
    step.rate = 0.2
    step.product(0, outputs.transpose(1, 2), inputs)
    assert torch.allclose(x, (1 - 0.2 * d) * before - 0.2 * gradient, atol=1e-5)


@pytest.mark.parametrize("method", KEEPING, ids=lambda method: method.name)
def test_algebra_in_pieces_agrees_with_the_serial_engine(method, monkeypatch):
    """With pieces of a few columns; the last one is narrower."""
    for module in (pieces, vectorised):
        monkeypatch.setattr(module, "PIECE_NUMBERS", 7 * 4)
    used = []
    finish = vectorised.finished_in_pieces
    monkeypatch.setattr(vectorised, "finished_in_pieces", lambda *a: used.append(a) or finish(*a))
    local = ud.SGD(lr=0.05, batch_size=9, steps=3)
    assert_same(run(method, local, engine(chunk=4, threads=2)), run(method, local, SerialEngine))
    whole = method.problems > 1 or not method.elementwise or not all(method.sums().values())
    assert bool(used) != whole


def test_methods_that_keep_vectors_are_elementwise():
    """All but those that solve several problems; a new method must say which it is."""
    several = [
        name
        for name in ud.methods.__all__
        if inspect.isclass(kind := getattr(ud.methods, name))
        and issubclass(kind, ud.Method)
        and kind.keeps
        and not kind.elementwise
    ]
    assert sorted(several) == ["Ditto", "PFedMe"]


@needs_onednn
def test_evaluation_computes_the_linear_layers_of_any_module_with_onednn(always, monkeypatch):
    calls = []

    def counted(*args):
        calls.append(args)
        return product(*args)

    product = products.product
    monkeypatch.setattr(products, "product", counted)

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(7, 4)
            self.plain = torch.nn.Parameter(torch.randn(3, 4))

        def forward(self, x):
            hidden = self.layer(x).relu()
            return torch.nn.functional.linear(hidden, self.plain)

    module, x = Own(), torch.randn(2, 5, 7)
    with torch.no_grad():
        expected = module(x)
        with products.LinearByOneDNN():
            found = module(x)
    assert len(calls) == 2
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5)
    with products.LinearByOneDNN():  # with gradients, torch computes
        module(x).sum().backward()
    assert len(calls) == 2
    assert module.layer.weight.grad is not None
    with torch.no_grad(), products.LinearByOneDNN():
        with torch.autocast("cpu", torch.bfloat16):
            assert module(x).dtype == torch.bfloat16
        assert torch.allclose(torch.func.vmap(module)(x), expected, atol=1e-5)
    assert len(calls) == 2
    with torch.no_grad(), products.LinearByOneDNN():  # in double precision, too
        module.double()(x.double())
    assert len(calls) == 2
