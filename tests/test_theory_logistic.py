"""Logistic regression against torch's own, finite differences and scipy."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from undrift.theory import LogisticRegression


def data(seed=0, sizes=(5, 12, 1), d=4, classes=3, scale=1.0):
    rng = torch.Generator().manual_seed(seed)
    features = [scale * torch.randn(n, d, generator=rng) for n in sizes]
    labels = [torch.randint(classes, (n,), generator=rng) for n in sizes]
    return features, labels


def make(seed=0, weight_decay=0.1, classes=3, **kw):
    features, labels = data(seed, classes=classes, **kw)
    return LogisticRegression(features, labels, classes, weight_decay)


def test_is_nn_linear_with_cross_entropy_and_weight_decay():
    features, labels = data()
    p = LogisticRegression(features, labels, 3, 0.1)
    model = nn.Linear(4, 3).double()
    flat = torch.cat([model.weight.detach().flatten(), model.bias.detach()])
    assert p.dimension == flat.numel() and len(p) == 3 and p.sizes.tolist() == [5, 12, 1]
    for k, (u, y) in enumerate(zip(features, labels, strict=True)):
        loss = nn.functional.cross_entropy(model(u.double()), y)
        assert p.value(k, flat) == pytest.approx(float(loss.detach() + 0.05 * flat.square().sum()))
        grads = torch.autograd.grad(loss, [model.weight, model.bias])
        expected = torch.cat([grads[0].flatten(), grads[1]]) + 0.1 * flat
        assert torch.allclose(p.gradient(k, flat), expected, atol=1e-14)
    # One step of torch's SGD with weight decay is one step on f_k.
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3, weight_decay=0.1)
    nn.functional.cross_entropy(model(features[1].double()), labels[1]).backward()
    optimiser.step()
    after = torch.cat([model.weight.detach().flatten(), model.bias.detach()])
    assert torch.allclose(after, flat - 0.3 * p.gradient(1, flat), atol=1e-14)


def test_gradient_is_the_derivative_of_the_value():
    p = make()
    x = torch.randn(p.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for k in range(len(p)):
        for i in range(p.dimension):
            e = 1e-5 * torch.eye(p.dimension, dtype=torch.float64)[i]
            slope = (p.value(k, x + e) - p.value(k, x - e)) / 2e-5
            assert float(p.gradient(k, x)[i]) == pytest.approx(slope, abs=1e-8)
    assert p.gradient(0, x.float()).dtype == torch.float32


def test_curvature_lies_between_the_stated_constants():
    for seed in range(3):
        p = make(seed, scale=2.0)
        L, mu = p.smoothness(), p.convexity()
        rng = torch.Generator().manual_seed(seed)
        for scale in (0.0, 0.3, 3.0):
            x = scale * torch.randn(p.dimension, dtype=torch.float64, generator=rng)
            for k in range(len(p)):
                H = torch.stack(
                    [
                        (p.gradient(k, x + e) - p.gradient(k, x - e)) / 2e-5
                        for e in 1e-5 * torch.eye(p.dimension, dtype=torch.float64)
                    ]
                )
                eigenvalues = torch.linalg.eigvalsh((H + H.T) / 2)
                assert mu - 1e-7 <= float(eigenvalues[0]) and float(eigenvalues[-1]) <= L + 1e-7


def test_smoothness_is_attained_with_two_classes():
    """At x = 0 with two classes diag(p) − ppᵀ has the eigenvalue ½, so the bound is exact."""
    p = make(classes=2, sizes=(9,), weight_decay=0.2)
    e = 1e-5 * torch.eye(p.dimension, dtype=torch.float64)
    H = torch.stack([(p.gradient(0, v) - p.gradient(0, -v)) / 2e-5 for v in e])
    largest = float(torch.linalg.eigvalsh((H + H.T) / 2)[-1])
    assert largest == pytest.approx(p.smoothness(), rel=1e-6)


@pytest.mark.parametrize("weight_decay", [1e-4, 0.1])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_optimum_has_no_gradient_and_scipy_agrees(weight_decay, scale):
    p = make(3, weight_decay, sizes=(20, 7, 30), scale=scale)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    best = p.optimum(q)
    total = sum(q[k] * p.gradient(k, best) for k in range(3))
    assert float(total.norm()) <= 2e-12

    def objective(x):
        x = torch.tensor(x)
        value = sum(float(q[k]) * p.value(k, x) for k in range(3))
        return value, sum(q[k] * p.gradient(k, x) for k in range(3)).numpy()

    found = minimize(
        objective, np.zeros(p.dimension), jac=True, method="BFGS", options={"gtol": 1e-8}
    )
    value = objective(best.numpy())[0]
    assert value <= found.fun + 1e-12
    assert value == pytest.approx(found.fun, abs=1e-6)


def test_local_optimum_is_the_optimum_with_all_weight_on_one_client():
    p = make()
    for k in range(len(p)):
        one_hot = torch.eye(3, dtype=torch.float64)[k]
        best = p.local_optimum(k)
        assert float(p.gradient(k, best).norm()) <= 1e-12
        assert torch.allclose(best, p.optimum(one_hot), atol=1e-9)


def test_optimum_by_samples_is_the_pooled_optimum():
    features, labels = data()
    q = torch.tensor([5.0, 12.0, 1.0], dtype=torch.float64) / 18
    pooled = LogisticRegression([torch.cat(features)], [torch.cat(labels)], 3, 0.1)
    apart = LogisticRegression(features, labels, 3, 0.1)
    assert torch.allclose(apart.optimum(q), pooled.local_optimum(0), atol=1e-10)


def test_bias_only_problem_has_a_known_optimum():
    """With zero features only the bias counts: softmax(c) − frequencies + weight_decay·c = 0."""
    labels = torch.tensor([0, 0, 0, 1])
    p = LogisticRegression([torch.zeros(4, 2)], [labels], 2, 0.01)
    best = p.local_optimum(0)
    c = best[-2:]
    frequencies = torch.tensor([0.75, 0.25], dtype=torch.float64)
    assert torch.allclose(torch.softmax(c, 0) + 0.01 * c, frequencies, atol=1e-12)
    assert best[:-2].tolist() == [0.0] * 4


def test_refuses_what_is_not_a_problem():
    u, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    cases = [
        ("client 1 has no samples", [u, torch.zeros(0, 2)], [y, y[:0]], 2),
        ("client 0 has labels from 0 to 1", [u], [y], 1 + 1 - 1),
        ("client 1 has labels from 0 to 5", [u, u], [y, torch.tensor([0, 5, 1])], 2),
        ("client 0 has labels from -1 to 1", [u], [torch.tensor([0, -1, 1])], 2),
        ("whole numbers", [u], [y.float()], 2),
        ("client 1 has features of shape [3, 4]", [u, torch.zeros(3, 4)], [y, y], 2),
        ("labels of shape [2]", [u], [y[:2]], 2),
        ("features of 1 clients and labels of 2", [u], [y, y], 2),
        ("features of 0 clients", [], [], 2),
    ]
    for words, features, labels, classes in cases:
        with pytest.raises(ValueError) as error:
            LogisticRegression(features, labels, classes, 0.1)
        expected = "at least 2 classes" if classes < 2 else words
        assert expected in str(error.value)
    with pytest.raises(ValueError, match="weight decay of at least 0"):
        LogisticRegression([u], [y], 2, -0.1)


def test_optimum_needs_weight_decay_and_weights():
    with pytest.raises(ValueError, match="weight_decay must be above 0"):
        make(weight_decay=0.0).local_optimum(0)
    with pytest.raises(ValueError, match="one per client"):
        make().optimum(torch.ones(2) / 2)
