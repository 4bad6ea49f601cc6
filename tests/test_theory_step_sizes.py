"""FedDR's step-size rules: the constants against the algorithm itself, run with exact proxes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undrift.theory import step_sizes as s

LAMBDA = 0.05  # g = λ|x|₁ in the simulations


class Run:
    """FedDR's state on f_k = ½xᵀH_k x − b_kᵀx with eigenvalues in [−L, L], F bounded below."""

    def __init__(self, seed, eta, n=6, P=4, L=1.0):
        rng = np.random.default_rng(seed)
        self.H, self.L = [], L
        turn = np.linalg.qr(rng.normal(size=(P, P)))[0]
        for k in range(n):  # every third client is concave somewhere, their sum is convex
            eigenvalues = np.full(P, -L) if k % 3 == 0 else rng.uniform(0.8 * L, L, P)
            self.H.append(turn @ np.diag(eigenvalues) @ turn.T)
        self.b = rng.normal(size=(n, P))
        self.eta, self.n = eta, n
        self.y = rng.normal(size=(n, P))
        self.x = np.stack([self.prox(k, self.y[k]) for k in range(n)])
        self.bar = self.server()

    def prox(self, k, y):
        return np.linalg.solve(np.eye(len(y)) + self.eta * self.H[k], y + self.eta * self.b[k])

    def gradient(self, k, x):
        return self.H[k] @ x - self.b[k]

    def threshold(self, z):
        return np.sign(z) * np.maximum(np.abs(z) - self.eta * LAMBDA, 0)

    def server(self):
        return self.threshold(np.mean(2 * self.x - self.y, 0))

    def potential(self):
        total = LAMBDA * np.abs(self.bar).sum()
        for k, x in enumerate(self.x):
            f, apart = x @ self.H[k] @ x / 2 - self.b[k] @ x, self.bar - x
            term = f + self.gradient(k, x) @ apart + apart @ apart / (2 * self.eta)
            total += term / self.n
        return total

    def update(self, k, alpha, bar):
        """One client's step; returns |x_k⁺ − x_k|²."""
        self.y[k] += alpha * (bar - self.x[k])
        before = self.x[k].copy()
        self.x[k] = self.prox(k, self.y[k])
        return float(((self.x[k] - before) ** 2).sum())

    def mapping(self):
        """|G_η(x̄)|², the squared gradient mapping of F at the server's model."""
        mean = np.mean([self.gradient(k, self.bar) for k in range(self.n)], 0)
        step = (self.bar - self.threshold(self.bar - self.eta * mean)) / self.eta
        return float(step @ step)


@given(L=st.floats(0.01, 100), alpha=st.floats(0.01, 1.99))
def test_feddr_descent_changes_sign_at_the_limit(L, alpha):
    limit = s.feddr_limit(L, alpha)
    scale = 1 / (alpha * limit)
    assert abs(s.feddr_descent(L, alpha, limit)) <= 1e-12 * scale
    assert s.feddr_descent(L, alpha, 0.999 * limit) > 0 > s.feddr_descent(L, alpha, 1.001 * limit)
    assert limit < 1 / L  # so the prox is single-valued
    assert s.feddr_descent(L, alpha, s.feddr(L, alpha)) > 0
    assert s.check_feddr(L, alpha, s.feddr(L, alpha)) is None


def test_corollary_3_1():
    for L, n in ((1.0, 10), (3.0, 7)):
        assert s.check_feddr(L, 1.0, 1 / (3 * L)) is None
        constant = s.feddr_constant(L, 1.0, 1 / (3 * L), 1 / n)
        assert constant == pytest.approx(160 * L * n / 3)


@pytest.mark.parametrize("fraction", [0.5, 0.99, 1.0, 1.2])
def test_feddr_descent_is_exact_on_the_worst_function(fraction):
    """On f = −(L/2)|x|² with x̄ held fixed, V changes by exactly −β|x⁺ − x|²."""
    L, alpha = 1.3, 0.9
    eta = fraction * s.feddr_limit(L, alpha)

    def potential(x, bar):
        return -L / 2 * x * x - L * x * (bar - x) + (bar - x) ** 2 / (2 * eta)

    y, bar = 0.7, -1.1
    x = y / (1 - eta * L)
    after = (y + alpha * (bar - x)) / (1 - eta * L)
    change = potential(after, bar) - potential(x, bar)
    beta = s.feddr_descent(L, alpha, eta)
    assert change == pytest.approx(-beta * (after - x) ** 2, abs=1e-12)
    assert np.sign(round(beta, 12)) == np.sign(round(1 - fraction, 12))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.8])
@pytest.mark.parametrize("seed", range(3))
def test_feddr_descends_by_beta_every_round(alpha, seed):
    run = Run(seed, s.feddr(1.0, alpha))
    beta = s.feddr_descent(1.0, alpha, run.eta)
    rng = np.random.default_rng(seed)
    for _ in range(100):
        before = run.potential()
        cohort = rng.permutation(run.n)[: rng.integers(1, run.n + 1)]
        moved = sum(run.update(k, alpha, run.bar) for k in cohort)
        run.bar = run.server()
        assert run.potential() <= before - beta * moved / run.n + 1e-9 * abs(before)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
def test_feddr_constant_bounds_the_gradient_mapping(alpha):
    run = Run(1, 0.5 * s.feddr_limit(1.0, alpha))
    start, total, rounds = run.potential(), 0.0, 400
    for _ in range(rounds):
        total += run.mapping()
        for k in range(run.n):
            run.update(k, alpha, run.bar)
        run.bar = run.server()
    # V is above F(x̄), so its final value stands in for F* from above; run on to get there.
    for _ in range(3000):
        for k in range(run.n):
            run.update(k, alpha, run.bar)
        run.bar = run.server()
    assert run.mapping() < 1e-20
    bound = s.feddr_constant(1.0, alpha, run.eta, 1.0) * (start - run.potential()) / rounds
    assert total / rounds <= bound


ASYNC = dict(
    n=st.integers(1, 60),
    delay=st.integers(0, 15),
    L=st.floats(0.01, 100),
    share=st.floats(0.02, 0.98),
)


@given(**ASYNC)
def test_async_descent_changes_sign_at_the_limit(n, delay, L, share):
    alpha = share * s.async_alpha_limit(n, delay)
    limit = s.async_limit(L, n, delay, alpha)
    assert 0 < limit < 1 / L
    scale = 1 / (alpha * limit * n)
    assert abs(s.async_descent(L, n, delay, alpha, limit)) <= 1e-9 * scale
    assert s.async_descent(L, n, delay, alpha, 0.999 * limit) > 0
    assert s.async_descent(L, n, delay, alpha, 1.001 * limit) < 0
    # No η is left at the limit of α.
    assert s.async_limit(L, n, delay, (1 - 1e-9) * s.async_alpha_limit(n, delay)) < 1e-3 / L


@given(**ASYNC)
def test_async_step_sizes_are_inside_and_positive(n, delay, L, share):
    for alpha in (None, share * s.async_alpha_limit(n, delay)):
        sizes = s.async_feddr(L, n, delay, alpha)
        assert 0 < sizes.alpha < sizes.alpha_limit and 0 < sizes.eta < sizes.eta_limit
        assert sizes.rho > 0
        assert s.check_async_feddr(L, n, delay, sizes.alpha, sizes.eta) is None
    longer = s.async_feddr(L, n, delay + 1)
    assert longer.alpha_limit <= s.async_alpha_limit(n, delay)


def test_async_descent_by_hand():
    # c = (2·16 − 10)/10 = 2.2, z = Lη = 0.1
    undelayed = 2 * 0.9 - 2.1 * 0.01 - 0.1 * 0.1
    expected = (undelayed - 2.2 * 0.1 * 1.01) / (0.1 * 0.05 * 10)
    assert s.async_descent(2.0, 10, 4, 0.1, 0.05) == pytest.approx(expected)
    assert s.async_descent(2.0, 40, 4, 0.1, 0.05) == pytest.approx(undelayed / (0.1 * 0.05 * 40))
    sizes = s.async_feddr(2.0, 10, 4)
    assert sizes.alpha == sizes.alpha_limit / 2 == pytest.approx(1 / 4.2)
    assert sizes.eta == pytest.approx(0.99 * sizes.eta_limit)


def test_the_printed_discriminant_would_give_a_negative_rho():
    L, n, delay = 1.0, 10, 5
    c, alpha = (2 * 25 - 10) / 10, 0.15
    root = math.sqrt(16 - 8 * alpha - (7 + 4 * c + 4 * c * c) * alpha**2)
    printed = (root - alpha) / (2 * L * (2 + (1 + c) * alpha))
    assert s.async_descent(L, n, delay, alpha, 0.99 * printed) < 0
    assert s.check_async_feddr(L, n, delay, alpha, 0.99 * printed) is not None


def test_limits_of_the_two_cases_agree_where_they_meet():
    assert s.async_alpha_limit(18, 3) == 1.0  # 2τ² = n
    alpha = 0.6
    expected = (math.sqrt(16 - 8 * alpha - 7 * alpha**2) - alpha) / (2 * 2.0 * (2 + alpha))
    assert s.async_limit(2.0, 18, 3, alpha) == pytest.approx(expected)
    assert s.async_limit(2.0, 100, 3, alpha) == pytest.approx(expected)
    assert s.async_alpha_limit(9, 3) == pytest.approx(2 / 3)  # c = 1


@pytest.mark.parametrize("delay", [0, 1, 3, 6])
@pytest.mark.parametrize("seed", range(3))
def test_asynchronous_runs_descend_by_rho_and_converge(delay, seed):
    n = 6
    sizes = s.async_feddr(1.0, n, delay)
    run, rng = Run(seed, sizes.eta, n=n), np.random.default_rng(seed)
    start, moved, past = run.potential(), 0.0, [run.bar]
    for step in range(6000):
        stale = past[-1 - min(rng.integers(delay + 1), len(past) - 1)]
        moved += run.update(rng.integers(n), sizes.alpha, stale)
        run.bar = run.server()
        past = [*past[-delay:], run.bar] if delay else [run.bar]
        if step % 50 == 0:
            assert run.potential() <= start - sizes.rho / 2 * moved + 1e-9 * abs(start)
    assert run.mapping() < 1e-9  # from about 1; long delays allow small steps only


def test_the_error_of_a_prox_from_its_gradient():
    L, eta = 1.3, 0.4
    # On f = −(L/2)x² the bound is attained: x* = y/(1 − ηL).
    y, x = 0.7, -0.2
    gradient = -L * x + (x - y) / eta
    exact = y / (1 - eta * L)
    assert s.prox_error(L, eta, abs(gradient)) == pytest.approx(abs(x - exact))
    run = Run(0, eta, L=L)
    for k in range(run.n):  # and it holds for others
        point = run.y[k] + 0.3
        off = run.gradient(k, point) + (point - run.y[k]) / eta
        apart = np.linalg.norm(point - run.prox(k, run.y[k]))
        assert apart <= s.prox_error(L, eta, np.linalg.norm(off)) * (1 + 1e-12)
    with pytest.raises(ValueError, match="eta in"):
        s.prox_error(2.0, 0.5, 1.0)


def test_sentences():
    assert s.check_feddr(1.0, 2.0, 0.1) == (
        "FedDR's alpha = 2 has no convergence guarantee, which needs 0 < alpha < 2 for any L."
    )
    assert "0 < eta < 0.5" in s.check_feddr(1.0, 1.0, 0.5)
    # The paper's own setting: 20 users, α = 1.
    assert "0 < alpha < 1 " in s.check_async_feddr(1.0, 20, 3, 1.0, 0.1)
    assert "needs 0 < eta" in s.check_async_feddr(1.0, 20, 3, 0.5, 50.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: s.feddr(0.0, 1.0),
        lambda: s.feddr(1.0, 2.0),
        lambda: s.feddr_constant(1.0, 1.0, 0.6, 1.0),
        lambda: s.async_feddr(1.0, 0, 1),
        lambda: s.async_feddr(1.0, 5, -1),
        lambda: s.async_feddr(1.0, 5, 1, alpha=1.0),
        lambda: s.async_feddr(-1.0, 5, 1),
    ],
)
def test_bad_input_gets_a_sentence(call):
    with pytest.raises(ValueError, match=r"^\w+: .*\.$"):
        call()
