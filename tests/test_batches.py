"""Clients that train at once get the same batches as clients that train alone."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from undrift.core.problem import Work
from undrift.engines.vectorised import batches as side_by_side
from undrift.engines.vectorised.batches import BatchStream, batch_indices
from undrift.local.solvers import batches
from undrift.utils.keys import generator, keys, orders


def part_of(sizes, shape=(2,)):
    """Clients whose samples hold their own numbers."""
    total = sum(sizes)
    x = torch.arange(total).view(-1, *[1] * len(shape)).expand(total, *shape).float()
    first = np.cumsum([0, *sizes])
    pieces = [(x[a:b].clone(), torch.arange(a, b)) for a, b in pairwise(first)]
    return ud.data.FederatedData.from_clients(pieces).train


def works_of(steps):
    drawn = keys(0, "batches", 0, np.arange(len(steps), dtype=np.uint64)).tolist()
    return [
        Work(client=c, round=0, turn=0, steps=s, expected=s, rate=0.1, key=key)
        for c, (s, key) in enumerate(zip(steps, drawn, strict=True))
    ]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([1, 200, 1 << 20]),
)
def test_side_by_side_they_are_what_each_draws_alone(clients, batch, fresh, block):
    clients = sorted(clients, key=lambda client: -client[1])
    sizes, steps = zip(*clients, strict=True)
    part, works = part_of(sizes), works_of(steps)
    solver = ud.SGD(lr=0.1, batch_size=batch, fresh_batches=fresh)
    before, side_by_side.GATHER_BYTES = side_by_side.GATHER_BYTES, block
    try:
        stream = BatchStream(
            part, batch_indices(part, range(len(sizes)), works, solver), torch.empty(1)
        )
        found = [stream.at(step) for step in range(len(stream))]
    finally:
        side_by_side.GATHER_BYTES = before
    assert len(found) == steps[0]
    assert stream.evaluations == sum(sum(batch.sizes) for batch in found)
    for c, (size, work) in enumerate(zip(sizes, works, strict=True)):
        alone = islice(batches(size, batch, work.key, fresh), work.steps)
        first = sum(sizes[:c])
        for step, chosen in enumerate(alone):
            own = np.arange(size) if chosen is None else chosen
            n = found[step].sizes[c]
            assert found[step].y[c, :n].tolist() == (first + own).tolist()
            # Padding comes from the same client, and its weight is zero.
            assert all(first <= y < first + size for y in found[step].y[c].tolist())
            weights = found[step].weights
            if isinstance(weights, torch.Tensor):
                assert weights[c, :n].tolist() == pytest.approx([1 / n] * n)
                assert not weights[c, n:].any()
            else:
                assert weights == 1 / n == 1 / found[step].x.shape[1]
    for step, batch_of_step in enumerate(found):
        assert len(batch_of_step.sizes) == sum(s > step for s in steps)


def test_what_is_gathered_ahead_is_the_same():
    sizes, steps = [9, 7, 7], [8, 6, 1]
    part, works = part_of(sizes, (1, 4, 4)), works_of(steps)
    solver = ud.SGD(lr=0.1, batch_size=4)
    chosen = batch_indices(part, range(3), works, solver)
    changes = (ud.data.RandomCrop(1), ud.data.HorizontalFlip())
    with ThreadPoolExecutor(1) as thread:
        streams = [
            BatchStream(part, chosen, torch.empty(1), changes, (1, 2, 3), ahead)
            for ahead in (None, thread)
        ]
        for step in range(8):
            one, other = (stream.at(step) for stream in streams)
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)


def test_an_order_is_a_function_of_its_key_and_number():
    some = np.array([generator(0, "a").integers(2**63), 7], dtype=np.uint64)
    four = orders(some, 0, 4, 50)
    assert (np.sort(four, axis=-1) == np.arange(50)).all()
    assert (orders(some[1:], 2, 1, 50)[0, 0] == four[1, 2]).all()
    different = {tuple(each) for each in four.reshape(-1, 50)}
    assert len(different) == 8


def test_every_order_is_as_likely_as_any_other():
    drawn = orders(np.arange(6000, dtype=np.uint64) << np.uint64(20), 3, 1, 3)[:, 0]
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 1000).max() < 120  # four standard deviations
