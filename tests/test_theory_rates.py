"""FedDyn's, FedNova's, FedLGA's and FedDR's rates: the proofs' algebra, and runs that obey it."""

from itertools import combinations

import numpy as np
import pytest
import torch

import undrift as ud
from undrift.theory import bounds, consistency, feddyn, fedlga, step_sizes

M, COHORT, LARGEST = 4, 2, 1.5


def solved(rows, right):
    return np.linalg.solve(np.array(rows), np.array(right))


@pytest.mark.parametrize(("m", "P"), [(4, 2), (7, 1), (3, 3)])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_feddyns_convex_constants_make_the_lemmas_of_its_proof_add_up(m, P, mu):
    """Lemmas 4 and 5 with the factors s and rκ cancel ε_t and C_{t−1} in inequality 13."""
    L, p = LARGEST, P / m
    alpha = max(5 * max(mu, 0.1) / p, 30 * L)
    r = 1 + mu / alpha
    s, kappa = solved(
        [[8 / alpha**2, r * (1 - p) - 1], [1 - 4 * L**2 / alpha**2, -2 * L**2 * r * p]],
        [0, 1 + L / alpha],
    )
    kappa0 = 2 / alpha - 8 * L / alpha**2 * s - 4 * L * p * r * kappa
    convex = feddyn.convex(L, alpha, m, P)
    found = feddyn.strongly_convex(L, mu, alpha, m, P) if mu else convex
    assert found == pytest.approx((kappa, kappa0, r), rel=1e-12)


@pytest.mark.parametrize(("m", "P"), [(4, 2), (7, 1), (3, 3)])
def test_feddyns_nonconvex_constants_make_the_lemmas_of_its_proof_add_up(m, P):
    """Lemmas 11 and 12 with the factors s and κ cancel ε_t and C_{t−1} in inequality 14."""
    L = LARGEST
    alpha = 25 * L * m / P
    s, kappa = solved(
        [
            [8 * L**2 / alpha**2, -P / (2 * m - P)],
            [1 - 4 * L**2 / alpha**2, -(2 * P / (2 * m - P) + 2 * m / P)],
        ],
        [0, L / 2 + L**2 / (2 * alpha)],
    )
    expected = kappa, 1 / (2 * alpha) - 4 * s / alpha**2, 1.0
    assert feddyn.nonconvex(L, alpha, m, P) == pytest.approx(expected, rel=1e-12)


class Dyn:
    """FedDyn with exact minima on quadratics, from h = 0: γ, and a stored θ_k for every client."""

    def __init__(self, problem, alpha):
        self.problem, self.alpha = problem, alpha
        self.gamma = problem.initial()
        self.theta = torch.stack([problem.local_optimum(k) for k in range(M)])  # ∇f_k = h_k = 0

    def gradients(self, at):
        return torch.stack([self.problem.gradient(k, x) for k, x in enumerate(at)])

    def after(self, cohort):
        h_k = self.gradients(self.theta)
        x = self.gamma - h_k.mean(0) / self.alpha
        new = Dyn(self.problem, self.alpha)
        new.theta = self.theta.clone()
        eye = torch.eye(len(x), dtype=torch.float64)
        for k in cohort:
            right = self.problem.b[k] + h_k[k] + self.alpha * x
            new.theta[k] = torch.linalg.solve(self.problem.H[k] + self.alpha * eye, right)
        new.gamma = new.theta[list(cohort)].mean(0)
        return new


def quadratics(least):
    drawn = ud.theory.random_quadratics(M, 3, 0.3, LARGEST, spread=2.0, seed=4)
    values, turn = torch.linalg.eigh(drawn.H)
    values = values.clone()
    if least < 0:
        values[0, 0] = least  # one client is concave in a direction
    H = turn @ torch.diag_embed(values) @ turn.mT
    return ud.theory.Quadratics(H, drawn.b, initial=torch.tensor([2.0, -1.0, 3.0]))


@pytest.mark.parametrize("kind", ["convex", "strongly convex", "nonconvex"])
def test_every_round_of_feddyn_obeys_the_inequality_of_its_theorem(kind):
    problem = quadratics(-0.3 if kind == "nonconvex" else 0.3)
    q = torch.full((M,), 1 / M, dtype=torch.float64)
    optimum, L, mu = problem.optimum(q), problem.smoothness(), problem.convexity()
    smooth = float(torch.linalg.eigvalsh(problem.H).abs().max())
    rate = {
        "convex": lambda: feddyn.convex(L, 25 * L, M, COHORT),
        "strongly convex": lambda: feddyn.strongly_convex(L, mu, 30 * L, M, COHORT),
        "nonconvex": lambda: feddyn.nonconvex(smooth, 20 * smooth * M / COHORT, M, COHORT),
    }[kind]()
    alpha = {"convex": 25 * L, "strongly convex": 30 * L}.get(kind, 20 * smooth * M / COHORT)

    def F(x):
        return sum(problem.value(k, x) for k in range(M)) / M - best

    best = 0.0
    best = float(F(optimum))

    def terms(run):
        if kind == "nonconvex":
            apart = (run.theta - run.gamma).square().sum(1).mean()
            return (
                F(run.gamma),
                float(apart),
                float(problem.total_gradient(run.gamma, q).norm()) ** 2,
            )
        there = run.gradients(optimum.expand(M, -1))
        apart = (run.gradients(run.theta) - there).square().sum(1).mean()
        return float((run.gamma - optimum).square().sum()), float(apart), F(run.gamma)

    run, gaps = Dyn(problem, alpha), []
    D0, C0, _ = terms(run)
    cohorts = list(combinations(range(M), COHORT))
    for t in range(60):
        D, C, G = terms(run)
        later = [terms(run.after(cohort)) for cohort in cohorts]  # every cohort: an exact mean
        left = rate.growth * np.mean([d + rate.kappa * c for d, c, _ in later])
        assert left <= D + rate.kappa * C - rate.kappa0 * G + 1e-12
        gaps.append(G)
        run = run.after(cohorts[t % len(cohorts)])
    growth = rate.growth ** np.arange(60)
    assert growth @ gaps / growth.sum() <= rate.bound(60, D0, C0)
    first, r = (2 + 3 * rate.kappa) / rate.kappa0, rate.growth
    assert rate.bound(1, 2.0, 3.0) == pytest.approx(first)
    assert rate.bound(3, 2.0, 3.0) == pytest.approx(first / (1 + r + r * r))


def test_feddyns_alpha_must_be_large_enough():
    with pytest.raises(ud.UndriftError, match=r"alpha at least 37\.5"):
        feddyn.convex(1.5, 30.0, 4, 2)


def test_fednovas_theorem_3_in_every_round():
    """GD with other steps in every round: each round descends by its bracket's promise."""
    problem = ud.theory.random_quadratics(5, 3, 0.5, 1.0, spread=2.0, sizes=[1] * 5, seed=2)
    q = torch.full((5,), 0.2, dtype=torch.float64)
    L, lr, rng = problem.smoothness(), 0.004, np.random.default_rng(0)
    x, pairs, squares = problem.initial() + 3, [], []

    def F(at):
        return float(sum(problem.value(k, at) for k in range(5)) / 5)

    start, best = F(x), F(problem.optimum(q))
    for _ in range(30):
        tau = rng.integers(1, 20, 5)
        a = [torch.ones(int(t), dtype=torch.float64) for t in tau]
        tau_eff = float(tau.mean())
        constants = consistency.theorem1(q, a, tau_eff)
        update = torch.zeros_like(x)
        for k in range(5):
            own = x.clone()
            for _ in range(tau[k]):
                own = own - lr * problem.gradient(k, own)
            update += 0.2 * (own - x) / tau[k]
        square = float(problem.total_gradient(x, q).square().sum())
        # Assumption 3 holds along the run with β² = 1 and this κ².
        kappa2 = 60.0
        options = {"lr": lr, "clients": 5, "L": L, "kappa2": kappa2}
        bracket = consistency.theorem3_bound([(constants, tau_eff)], gap=0.0, **options)
        new = x + tau_eff * update
        assert F(new) <= F(x) + lr * tau_eff / 4 * (bracket - square) + 1e-12
        pairs.append((constants, tau_eff))
        squares.append(square)
        x = new
    whole = consistency.theorem3_bound(pairs, gap=start - best, **options)
    assert min(squares) <= whole
    same = [pairs[0]] * 7
    one = consistency.theorem1_bound(
        pairs[0][0], tau_eff=pairs[0][1], rounds=7, gap=1.3, sigma2=0.2, **options
    )
    assert consistency.theorem3_bound(same, gap=1.3, sigma2=0.2, **options) == pytest.approx(one)
    by_hand = 4 * 1.3 / lr / 30 + (10 * 12 * (lr * L) ** 2 * kappa2 * 90 + 0) / 30
    parts = [(consistency.Theorem1Constants(0, 0, 90.0), 10.0)]
    parts.append((consistency.Theorem1Constants(0, 0, 0.0), 20.0))
    assert consistency.theorem3_bound(parts, gap=1.3, **options) == pytest.approx(by_hand)


def test_fedlgas_theorem_1_in_every_round():
    N, E, sigma2 = 5, 3, 0.0
    problem = ud.theory.random_quadratics(N, 3, 0.9, 1.0, spread=2.0, sizes=[1] * N, seed=2)
    q = torch.full((N,), 1 / N, dtype=torch.float64)
    L = problem.smoothness()
    lr, server_lr, x = 0.15 / (L * E), 2.0, problem.initial() + 4
    c1 = fedlga.descent(L, lr, server_lr, E)
    best = float(sum(problem.value(k, problem.optimum(q)) for k in range(N)) / N)
    gap = squares = 0.0
    for _ in range(25):
        before = float(sum(problem.value(k, x) for k in range(N)) / N)
        gap = gap or before - best
        spread2 = ud.theory.heterogeneity.dissimilarity(problem, q, x).variance
        rest = fedlga.noise(L, lr, server_lr, E, N, sigma2, spread2)
        square = float(problem.total_gradient(x, q).square().sum())
        ends = []
        for k in range(N):
            own = x.clone()
            for _ in range(E):
                own = own - lr * problem.gradient(k, own)
            ends.append(own)
        x = x + server_lr * (torch.stack(ends).mean(0) - x)
        after = float(sum(problem.value(k, x) for k in range(N)) / N)
        promised = server_lr * lr * E * (c1 * square - rest)
        assert after <= before - promised + 1e-12
        squares += square / 25
    options = {"L": L, "lr": lr, "server_lr": server_lr, "steps": E, "clients": N}
    assert squares <= fedlga.bound(25, gap, spread2=50.0, **options)


def test_fedlgas_terms_by_hand():
    L, lr, g, E, N, s2, d2 = 2.0, 0.01, 3.0, 4, 7, 0.5, 0.3
    c1 = 0.5 - 15 * 16 * 1e-4 * 4
    assert fedlga.descent(L, lr, g, E) == pytest.approx(c1)
    phi = 2 * 3 * 0.01 * 0.5 / 14 + 2.5 * 1e-4 * 4 * 4 * (0.5 + 6 * 4 * 0.3)
    assert fedlga.noise(L, lr, g, E, N, s2, d2) == pytest.approx(phi)
    options = {"L": L, "lr": lr, "server_lr": g, "steps": E, "clients": N}
    expected = 1.7 / (c1 * 3 * 0.01 * 4 * 9) + phi / c1
    assert fedlga.bound(9, 1.7, sigma2=s2, spread2=d2, **options) == pytest.approx(expected)
    with pytest.raises(ud.UndriftError, match="Theorem 1 needs"):
        fedlga.descent(L, 0.1, g, E)
    # Corollary 1: a hundred times the rounds, a tenth of the bound.
    few, many = (
        fedlga.bound(
            T, 1.0, sigma2=1.0, L=L, steps=E, clients=N,
            **dict(zip(("lr", "server_lr"), fedlga.corollary1(L, E, N, T), strict=True)),
        )
        for T in (10**6, 10**8)
    )  # fmt: skip
    assert few / many == pytest.approx(10, rel=0.02)


def test_fedlgas_corollaries_by_hand():
    assert fedlga.corollary1(2.0, 4, 9, 100) == pytest.approx((1 / 80, 6.0))
    assert fedlga.corollary2(2.0, 4, 25, 100) == pytest.approx((1 / 80, 10.0))
    # A hundred times the rounds, a tenth of the bound, also for a cohort.
    few, many = (
        fedlga.bound(T, 1.0, L=2.0, lr=lr, server_lr=g, steps=4, clients=3, sigma2=1.0)
        for T in (10**6, 10**8)
        for lr, g in [fedlga.corollary2(2.0, 4, 3, T)]
    )
    assert few / many == pytest.approx(10, rel=0.02)


def test_feddrs_rate_is_the_sharper_constant_and_holds():
    """From x_k = x⁰, y_k = x⁰ + η∇f_k(x⁰), on clients of which one is not convex."""
    problem = quadratics(-0.3)
    q = torch.full((M,), 1 / M, dtype=torch.float64)
    L = float(torch.linalg.eigvalsh(problem.H).abs().max())
    alpha = 1.2
    eta = step_sizes.feddr(L, alpha) / 2
    constant = step_sizes.feddr_rate(L, alpha, eta, COHORT / M)
    z = L * eta
    beta = (1 + z) * (2 * (1 - z) - alpha) / (2 * alpha * eta)
    assert constant == pytest.approx((1 + z) ** 4 / (eta**2 * alpha**2 * beta * COHORT / M))
    assert constant < step_sizes.feddr_constant(L, alpha, eta, COHORT / M)
    x0 = problem.initial()
    y = torch.stack([x0 + eta * problem.gradient(k, x0) for k in range(M)])
    x = x0.repeat(M, 1)
    eye = torch.eye(3, dtype=torch.float64)
    rng, squares = np.random.default_rng(1), []
    for _ in range(60):
        bar = (2 * x - y).mean(0)
        squares.append(float(problem.total_gradient(bar, q).square().sum()))
        for k in rng.choice(M, COHORT, replace=False):
            y[k] += alpha * (bar - x[k])
            x[k] = torch.linalg.solve(eye + eta * problem.H[k], y[k] + eta * problem.b[k])
    optimum = problem.optimum(q)
    gap = float(sum(problem.value(k, x0) - problem.value(k, optimum) for k in range(M)) / M)
    for K in range(60):
        assert np.mean(squares[: K + 1]) <= constant * gap / (K + 1)


def test_fedavgs_best_number_of_steps_minimises_the_rounds():
    c = bounds.Constants(
        L=4.0, mu=0.5, E=1, q=torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
        sigma=torch.tensor([3.0, 5.0, 2.0]), G=2.0, Gamma=1.1, distance=4.0,
    )  # fmt: skip

    def rounds(E):
        """Proportional to the rounds until Theorem 2's bound is small, γ = 8κ."""
        bound = bounds.scheme_one(c._replace(E=E), 3)
        assert bound.gamma == 8 * bound.kappa
        return ((bound.B + bound.C) / c.mu + 2 * c.L * c.distance**2) / E

    grid = np.arange(1.0, 8.0, 0.001)
    fewest = grid[np.argmin([rounds(E) for E in grid])]
    assert bounds.best_steps(c, 3) == pytest.approx(fewest, abs=2e-3)


def test_fedavgs_best_number_of_steps_as_printed():
    q = torch.tensor([0.5, 0.5], dtype=torch.float64)
    c = bounds.Constants(
        L=4.0, mu=0.5, E=1, q=q, sigma=torch.tensor([2.0, 4.0]), G=3.0, Gamma=0.5, distance=1.0
    )
    by_hand = ((0.25 * 4 + 0.25 * 16 + 4 * 0.5 + 8 * 9) / (1.25 * 9)) ** 0.5
    assert bounds.best_steps_as_printed(c, 4) == pytest.approx(by_hand)


@pytest.mark.parametrize("call", [bounds.best_steps, bounds.best_steps_as_printed])
def test_the_best_number_of_steps_needs_a_cohort_and_gradients(call):
    q = torch.ones(1, dtype=torch.float64)
    c = bounds.Constants(
        L=4.0, mu=0.5, E=1, q=q, sigma=torch.zeros(1), G=0.0, Gamma=0.5, distance=1.0
    )
    with pytest.raises(ud.UndriftError, match="G = 0"):
        call(c, 1)
    with pytest.raises(ud.UndriftError, match="cohort is 0"):
        call(c._replace(G=1.0), 0)
