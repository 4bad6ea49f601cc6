"""Objects arrive unchanged at Ray's workers, and blocks depend on the cohort only."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import undrift as ud
from undrift.core.problem import Keep

pytest.importorskip("ray", reason="Ray is not installed")
from undrift.engines.ray import blocks
from undrift.engines.ray.serialization import deserialize, serialize

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


@given(st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=3))))
def test_tensors_of_every_type_and_shape_arrive(kinds):
    g = torch.Generator().manual_seed(0)
    sent = [(torch.randn(shape, generator=g) * 9).to(dtype) for dtype, shape in kinds]
    for mine, theirs in zip(sent, deserialize(serialize(sent)), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert torch.equal(mine, theirs)


def test_a_tensor_travels_once_and_stays_one():
    x = torch.arange(6.0)
    serialized = serialize([Keep(a=x, b=2.0), {"again": x}, x[::2]])
    assert len(serialized.arrays) == 2
    keep, named, view = deserialize(serialized)
    assert keep.a is named["again"] and keep.b == 2.0
    assert torch.equal(view, x[::2])


def test_what_arrives_may_be_written_to_unless_it_is_shared():
    serialized = serialize(torch.zeros(3))
    serialized.arrays[0].flags.writeable = False  # as Ray's shared memory is
    deserialize(serialized).add_(1)
    assert not serialized.arrays[0].any()
    assert deserialize(serialized, shared=True).data_ptr() == serialized.arrays[0].ctypes.data


def test_models_and_what_is_tied_in_them():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    found = deserialize(serialize(model))
    assert found[2].weight is found[0].weight
    assert found[0].weight.requires_grad
    x = torch.randn(4, 3)
    assert torch.equal(model.eval()(x), found.eval()(x))


def test_what_comes_from_the_users_files_is_sent_with_its_code():
    body = serialize(helper).body
    assert b"twice" in body
    assert deserialize(serialize(helper))(4) == 9
    assert b"SCAFFOLD" in serialize(ud.SCAFFOLD()).body  # an installed one by its name
    assert len(serialize(ud.SCAFFOLD()).body) < 500


def helper(x):
    return twice(x) + 1


def twice(x):
    return 2 * x


# Blocks


def assignments(costs):
    return [
        SimpleNamespace(client=SimpleNamespace(id=k, samples=1), work=SimpleNamespace(steps=cost))
        for k, cost in enumerate(costs)
    ]


JOB = SimpleNamespace(local=SimpleNamespace(of=lambda id: ud.GD(lr=0.1, steps=1)))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=80), st.integers(1, 20))
def test_every_client_is_in_one_block_and_the_longest_work_comes_first(costs, size):
    found = blocks.make_blocks(JOB, assignments(costs), size)
    clients = [assignment.client.id for block in found for assignment in block.assignments]
    assert sorted(clients) == list(range(len(costs)))
    wanted = math.ceil(len(costs) / size)
    assert len(found) == len(costs) or len(found) % blocks.BLOCK_MULTIPLE == 0
    assert wanted <= len(found) < wanted + blocks.BLOCK_MULTIPLE
    in_order = [costs[client] for client in clients]
    assert in_order == sorted(costs, reverse=True)
    assert [block.cost for block in found] == [
        sum(costs[e.client.id] for e in block.assignments) for block in found
    ]
    for k in set(costs):  # clients with equal cost keep their order
        same = [client for client in clients if costs[client] == k]
        assert same == sorted(same)


@given(st.integers(1, 600), st.integers(1, 500), st.integers(1, 999))
def test_blocks_are_worth_their_way_but_there_are_several(clients, together, cost):
    size = blocks.block_size(JOB, assignments([cost] * clients), together)
    found = blocks.make_blocks(JOB, assignments([cost] * clients), size)
    assert len(found) >= min(clients, blocks.MIN_BLOCKS) // 2
    few = size == math.ceil(clients / blocks.MIN_BLOCKS)
    assert few or size * cost >= min(blocks.MIN_BLOCK_GRADIENTS, cost * together)
    assert few or size <= max(together, math.ceil(blocks.MIN_BLOCK_GRADIENTS / cost))
    sizes = {len(block.assignments) for block in found}
    assert max(sizes) <= size and max(sizes) - min(sizes) <= 1
