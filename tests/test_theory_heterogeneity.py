"""Γ, gradient dissimilarity and drift, against their definitions on problems solved by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.theory import heterogeneity as h


class Spheres:
    """f_k = ½ s_k|x − e_k|²."""

    def __init__(self, e, s):
        self.e, self.s = e.double(), s.double()
        self.sizes, self.dimension = torch.ones(len(e)), e.shape[1]

    def __len__(self):
        return len(self.e)

    def value(self, k, x):
        return float(self.s[k] / 2 * (x - self.e[k]).square().sum())

    def gradient(self, k, x):
        return self.s[k] * (x - self.e[k])


Q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
E = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]], dtype=torch.float64)


def test_gamma_of_spheres_is_half_the_spread_of_their_centres():
    problem = Spheres(E, torch.ones(3))
    mean = Q @ E
    F_star = sum(float(Q[k]) * problem.value(k, mean) for k in range(3))
    spread = float(Q @ (E - mean).square().sum(1))
    assert h.gamma(problem, Q, F_star, torch.zeros(3)) == pytest.approx(spread / 2)
    # Adding a constant to every loss changes nothing.
    assert h.gamma(problem, Q, F_star + 7, torch.full((3,), 7.0)) == pytest.approx(spread / 2)


def test_dissimilarity_by_hand():
    problem = Spheres(E, torch.tensor([1.0, 2.0, 1.0]))
    got = h.dissimilarity(problem, Q, torch.zeros(2))
    # Gradients at 0: (−1, 0), (0, −4), (1, −1); mean (−.3, −1.4).
    assert got.mean_square == pytest.approx(0.5 * 1 + 0.3 * 16 + 0.2 * 2)
    assert got.square_mean == pytest.approx(0.09 + 1.96)
    assert got.ratio == pytest.approx(5.7 / 2.05)
    assert got.variance == pytest.approx(5.7 - 2.05)


def test_dissimilarity_where_the_mean_gradient_vanishes():
    two = Spheres(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.ones(2))
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    split = h.dissimilarity(two, half, torch.zeros(2))
    assert split.ratio == math.inf and split.variance == 1.0
    agreed = Spheres(torch.ones(2, 2), torch.ones(2))
    assert h.dissimilarity(agreed, half, torch.ones(2)).ratio == 1.0
    assert h.dissimilarity(agreed, half, torch.zeros(2)).ratio == pytest.approx(1.0)


@given(seed=st.integers(0, 10_000), C=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_both_measures_split_into_mean_and_spread(seed, C):
    rng = torch.Generator().manual_seed(seed)
    ends, start = torch.randn(C, 4, generator=rng), torch.randn(4, generator=rng)
    w = torch.rand(C, dtype=torch.float64, generator=rng) + 0.1
    w = w / w.sum()
    d = h.drift(ends, start, w)
    assert d.moved == pytest.approx(d.apart + d.together, rel=1e-9)
    pairs = (ends[:, None].double() - ends[None].double()).square().sum(2)
    assert d.apart == pytest.approx(float(w @ pairs @ w) / 2, abs=1e-9)  # no mean needed
    shifted = h.drift(ends + 1.0, start + 1.0, w)
    assert shifted == pytest.approx(d, rel=1e-4, abs=1e-5)
    g = h.dissimilarity(Spheres(ends, torch.ones(C)), w, start.double())
    assert g.mean_square == pytest.approx(g.square_mean + g.variance, rel=1e-9)


def test_drift_of_gradient_descent_grows_with_the_steps_and_obeys_lemma_3():
    problem, lr, x = Spheres(E, torch.ones(3)), 0.05, torch.tensor([3.0, 3.0]).double()
    before = 0.0
    for steps in (2, 4, 8):
        ends, G2 = [], 0.0
        for k in range(3):
            y = x
            for _ in range(steps):
                g = problem.gradient(k, y)
                G2 = max(G2, float(g @ g))
                y = y - lr * g
            ends.append(y)
        d = h.drift(torch.stack(ends), x, Q)
        assert before < d.apart <= 4 * lr**2 * steps**2 * G2
        before = d.apart
    nobody = h.drift(x.expand(3, 2), x, Q)
    assert nobody == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda p: h.gamma(p, Q[:2], 0.0, torch.zeros(3)),
        lambda p: h.gamma(p, Q, 0.0, torch.zeros(2)),
        lambda p: h.dissimilarity(p, 2 * Q, torch.zeros(2)),
        lambda p: h.drift(torch.zeros(3, 2), torch.zeros(3), Q),
        lambda p: h.drift(torch.zeros(2, 2), torch.zeros(2), Q),
    ],
)
def test_bad_input_gets_a_sentence(call):
    with pytest.raises(ValueError, match=r"^\w+: .*\.$"):
        call(Spheres(E, torch.ones(3)))
