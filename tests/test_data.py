"""Federated data, and the synthetic generator."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud


def test_a_clients_data_do_not_depend_on_how_many_there_are():
    few, many = (
        ud.data.synthetic(1, 1, clients=3, seed=4),
        ud.data.synthetic(1, 1, clients=6, seed=4),
    )
    for k in range(3):
        for a, b in zip(few.train.client(k), many.train.client(k), strict=True):
            assert torch.equal(a, b)
    other = ud.data.synthetic(1, 1, clients=3, seed=5)
    assert few.train.sizes.tolist() != other.train.sizes.tolist()


def test_sizes_follow_the_papers_law():
    data = ud.data.synthetic(0, 0, clients=400, seed=1)
    n = (data.train.sizes + data.test.sizes).numpy()
    assert n.min() >= 50
    logs = np.log(np.maximum(n - 50, 1))
    assert np.median(logs) == pytest.approx(4, abs=0.35)
    assert logs.std() == pytest.approx(2, abs=0.3)
    share = data.train.sizes.numpy() / n
    assert share == pytest.approx(np.full(400, 0.9), abs=0.02)


def test_inputs_have_the_papers_variances_and_labels_a_linear_rule():
    data = ud.data.synthetic(1, 1, clients=40, seed=2)
    k = int(data.train.sizes.argmax())
    x, y = data.train.client(k)
    assert x.shape[1] == 60
    expected = np.arange(1, 61) ** -1.2
    assert x.numpy().var(0) == pytest.approx(expected, rel=0.25)
    assert set(y.tolist()) <= set(range(10))
    fit = ud.theory.LogisticRegression([x], [y], 10, weight_decay=1e-4)
    w = fit.optimum(torch.ones(1, dtype=torch.float64), tolerance=1e-4)
    scores = x.double() @ w[:600].view(10, 60).T + w[600:]
    assert float((scores.argmax(1) == y).double().mean()) > 0.97


def test_heterogeneity_grows_with_alpha_and_beta():
    def spread(alpha, beta, **options):
        data = ud.data.synthetic(alpha, beta, clients=40, seed=0, most=400, **options)
        means = torch.stack([data.train.client(k)[0].mean(0).mean() for k in range(40)])
        return float(means.std())

    assert spread(0, 0, iid=True) < spread(0, 0) < spread(1, 1) < spread(3, 3)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    seed=st.integers(0, 10),
)
@settings(max_examples=40, deadline=None)
def test_arrays_with_parts_and_lists_of_clients_are_the_same(sizes, seed):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    x, y = rng.normal(size=(n, 2)), rng.integers(0, 3, n)
    order = rng.permutation(n)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    by_parts = ud.data.FederatedData.from_arrays(x, y, parts)
    by_clients = ud.data.FederatedData.from_clients([(x[part], y[part]) for part in parts])
    assert by_parts.train.sizes.tolist() == by_clients.train.sizes.tolist() == sizes
    for k in range(len(sizes)):
        for a, b in zip(by_parts.train.client(k), by_clients.train.client(k), strict=True):
            assert torch.equal(a, b)
    pooled = by_parts.pooled()
    assert pooled.train.sizes.tolist() == [n]
    assert torch.equal(pooled.train.client(0)[1], torch.as_tensor(y[order]))


def test_test_data_may_be_common_or_per_client():
    own = {"a": (torch.ones(2, 1), [0, 1]), "b": (torch.ones(3, 1), [0, 1, 1])}
    common = ud.data.FederatedData.from_clients(own, (torch.ones(4, 1), [0, 1, 0, 1]))
    assert not common.test.by_client
    each = ud.data.FederatedData.from_clients(own, {"a": (torch.ones(1, 1), [0]), "b": own["b"]})
    assert each.test.sizes.tolist() == [1, 3]
    assert "2 clients, 5 + 4 samples" in repr(common)
    with pytest.raises(ud.UndriftError, match="nothing for client 'b'"):
        ud.data.FederatedData.from_clients(own, {"a": own["a"]})
