"""Dropout masks are functions of keys, and drop as often as they should."""

import pytest
import torch
from torch import nn

from undrift.nets.dropout import KeyedDropout, MaskGenerator, use_keyed_dropout

CPU = torch.device("cpu")


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_it_drops_as_often_as_it_should_and_keeps_the_mean(p):
    found = MaskGenerator(CPU, 3).mask((400, 250), p, torch.float64)
    share = float((found == 0).double().mean())
    assert share == pytest.approx(p, abs=4 * (p * (1 - p) / 100_000) ** 0.5)
    assert set(found.unique().tolist()) == {0.0, 1 / (1 - p)}


def test_masks_are_a_function_of_the_key():
    one, other = (MaskGenerator(CPU, number) for number in (5, 5))
    for shape in ((3, 3), (7,), (2, 5)):
        first = one.mask(shape, 0.5, torch.float32)
        assert torch.equal(first, other.mask(shape, 0.5, torch.float32))
    one.seed(5)
    again = MaskGenerator(CPU, 5)
    assert torch.equal(*(each.mask((50,), 0.5, torch.float32) for each in (one, again)))
    assert not torch.equal(*(MaskGenerator(CPU, n).mask((50,), 0.5, torch.float32) for n in (5, 6)))


def test_all_is_dropped_or_nothing():
    x = torch.ones(4, 4)
    everything = KeyedDropout(1.0, MaskGenerator(CPU)).train()
    assert not everything(x).any()
    assert torch.equal(KeyedDropout(0.0, MaskGenerator(CPU)).train()(x), x)
    assert torch.equal(KeyedDropout(0.5, MaskGenerator(CPU)).eval()(x), x)


def test_it_takes_the_place_of_every_dropout():
    module = nn.Sequential(nn.Dropout(0.3), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
    generator = MaskGenerator(CPU)
    use_keyed_dropout(module, generator)
    found = [each for each in module.modules() if isinstance(each, KeyedDropout)]
    assert [each.p for each in found] == [0.3, 0.1]
    assert all(each.generator is generator for each in found)
