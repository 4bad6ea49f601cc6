"""Theorems 1–4 of FedAvg-nonIID, against FedAvg as it really runs."""

import numpy as np
import pytest
import torch

from undrift.theory import LogisticRegression, bounds, fixed_points, heterogeneity


def constants(**changes):
    base = dict(L=4.0, mu=0.5, E=5, q=torch.full((4,), 0.25, dtype=torch.float64))
    base |= dict(sigma=torch.full((4,), 0.3), G=2.0, Gamma=0.1, distance=1.5)
    return bounds.Constants(**(base | changes))


def recursion(bound, steps):
    """Δ_{t+1} = (1 − η_tμ)Δ_t + η_t²(B + C), the worst case of eq. 11 and 21, times L/2."""
    delta, L = bound.distance**2, bound.kappa * bound.mu
    for t in range(steps):
        rate = bound.learning_rate(t)
        delta = (1 - rate * bound.mu) * delta + rate**2 * (bound.B + bound.C)
        yield L / 2 * delta


@pytest.mark.parametrize("E", [1, 5, 200])  # for 200 > 8κ = 64, γ is E
def test_bound_solves_the_papers_recursion(E):
    for bound in (bounds.full(constants(E=E)), bounds.scheme_one(constants(E=E), 2)):
        worst = list(recursion(bound, 20_000))
        stated = [bound.bound(t + 1) for t in range(20_000)]
        assert all(w <= s * (1 + 1e-12) for w, s in zip(worst, stated, strict=True))
        # For long runs the recursion is dominated by its noise term, and the bound is sharp.
    noise = bounds.full(constants(E=E, distance=0.0))
    *_, last = recursion(noise, 300_000)
    assert last == pytest.approx(noise.bound(300_000), rel=0.01)


def test_start_of_the_bound():
    """At T = 0 with no noise the bound is smoothness: F(w_0) − F* ≤ (L/2)|w_0 − w*|²."""
    quiet = dict(sigma=torch.zeros(4), Gamma=0.0, G=0.0)
    for E in (5, 200):
        bound = bounds.full(constants(E=E, **quiet))
        assert bound.bound(0) == pytest.approx(4.0 / 2 * 1.5**2)
    short = bounds.full(constants(**quiet))  # the printed form, 2L|w_0 − w*|²
    assert short.bound(10) == pytest.approx(2 * 8 / (64 + 10) * 2 * 4.0 * 1.5**2)


def test_constants_by_hand():
    c = constants()
    assert pytest.approx(4 * 0.25**2 * 0.09 + 6 * 4 * 0.1 + 8 * 16 * 4) == bounds.full(c).B
    assert bounds.full(c).C == 0
    assert pytest.approx(4 * 25 * 4 / 2) == bounds.scheme_one(c, 2).C
    assert pytest.approx(2 / 3 * 4 * 25 * 4 / 2) == bounds.scheme_two(c, 2).C
    assert bounds.scheme_two(c, 4).C == 0  # everyone: Theorem 1
    two = constants(q=torch.full((2,), 0.5), sigma=torch.zeros(2))
    assert pytest.approx(1 / 1 * 4 * 25 * 4 / 1) == bounds.scheme_two(two, 1).C  # (N−K)/(N−1) = 1
    alone = constants(q=torch.ones(1), sigma=torch.zeros(1))
    assert bounds.scheme_two(alone, 1) == bounds.full(alone)


def test_learning_rate_meets_the_proofs_conditions():
    for L, mu, E in ((4.0, 0.5, 5), (1.0, 1.0, 50)):
        rates = [bounds.learning_rate(t, L, mu, E) for t in range(300)]
        assert rates[0] <= 1 / (4 * L) + 1e-15
        assert all(a <= 2 * b + 1e-15 for a, b in zip(rates, rates[E:], strict=False))
        bound = bounds.full(constants(L=L, mu=mu, E=E))
        assert rates == [bound.learning_rate(t) for t in range(300)]


def test_transformed_scheme_two():
    c = constants(q=torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64))
    with pytest.raises(ValueError, match="transformed_scheme_two"):
        bounds.scheme_two(c, 2)
    bound = bounds.transformed_scheme_two(c, 2)
    assert bound.kappa == pytest.approx(4.0 * 1.6 / (0.5 * 0.4))
    assert pytest.approx(2 / 3 * 4 * 25 * (1.6 * 2.0) ** 2 / 2) == bound.C
    noise = sum((4 * q * 0.3) ** 2 / 16 for q in (0.4, 0.3, 0.2, 0.1))
    assert pytest.approx(noise + 6 * 1.6 * 4 * 0.1 + 8 * 16 * (1.6 * 2.0) ** 2) == bound.B
    # The scaled stochastic gradients N·p_k·g_k have mean noise Σ p_k²σ_k², unchanged.
    quiet = c._replace(G=0.0, Gamma=0.0)
    assert pytest.approx(bounds.full(quiet).B) == bounds.transformed_scheme_two(quiet, 2).B
    equal = constants()
    assert bounds.transformed_scheme_two(equal, 2) == bounds.scheme_two(equal, 2)


def problem(seed=0, N=5, d=3, classes=3):
    rng = torch.Generator().manual_seed(seed)
    features, labels = [], []
    for k in range(N):
        n = 8
        features.append(torch.randn(n, d, dtype=torch.float64, generator=rng) + 0.3 * k)
        truth = torch.randn(classes, d, dtype=torch.float64, generator=rng)
        labels.append((features[-1] @ truth.T).argmax(1))
    return LogisticRegression(features, labels, classes, weight_decay=0.5)


def run(p, q, rates, E, rounds, combine, noise, rng):
    """FedAvg with Gaussian gradient noise; returns F at every round and the largest gradient²."""
    x = torch.zeros(p.dimension, dtype=torch.float64)
    values, squares = [], []
    for r in range(rounds):
        ends = []
        for k in range(len(p)):
            y = x
            for i in range(E):
                g = p.gradient(k, y)
                squares.append(float(g @ g))
                g = g + noise * torch.tensor(rng.normal(size=p.dimension))
                y = y - rates[r * E + i] * g
            ends.append(y)
        x = combine(torch.stack(ends))
        values.append(sum(float(q[k]) * p.value(k, x) for k in range(len(p))))
    return np.array(values), max(squares)


@pytest.mark.parametrize("scheme", ["full", "I", "II"])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_bound_is_above_what_fedavg_does(scheme, noise):
    p, E, rounds, K = problem(), 4, 40, 2
    N = len(p)
    q = torch.full((N,), 1 / N, dtype=torch.float64)
    L, mu = p.smoothness(), p.convexity()
    best = p.optimum(q)
    F_star = sum(float(q[k]) * p.value(k, best) for k in range(N))
    minima = torch.tensor([p.value(k, p.local_optimum(k)) for k in range(N)])
    Gamma = heterogeneity.gamma(p, q, F_star, minima)
    assert Gamma > 0.01  # the clients do disagree
    rates = [bounds.learning_rate(t, L, mu, E) for t in range(E * rounds)]
    rng = np.random.default_rng(0)
    combine = {
        "full": lambda ends: q @ ends,
        "I": lambda ends: ends[rng.choice(N, K, p=q.numpy())].mean(0),
        "II": lambda ends: ends[rng.permutation(N)[:K]].mean(0),
    }[scheme]
    repeats = 1 if scheme == "full" and not noise else 12
    runs = [run(p, q, rates, E, rounds, combine, noise, rng) for _ in range(repeats)]
    gap = np.mean([values for values, _ in runs], 0) - F_star
    sigma2 = noise**2 * p.dimension
    c = bounds.Constants(
        L=L,
        mu=mu,
        E=E,
        q=q,
        sigma=torch.full((N,), sigma2**0.5),
        G=(max(square for _, square in runs) + sigma2) ** 0.5,
        Gamma=Gamma,
        distance=float(best.norm()),
    )
    make = {"full": lambda: bounds.full(c), "I": lambda: bounds.scheme_one(c, K)}
    bound = make.get(scheme, lambda: bounds.scheme_two(c, K))()
    stated = np.array([bound.bound(E * (r + 1)) for r in range(rounds)])
    assert np.all(gap > 0) and np.all(gap <= stated)


def tridiagonal(N=5, p=4, mu=2e-4):
    """The example of Theorem 5."""
    D = N * p + 1
    H = mu * torch.eye(D, dtype=torch.float64).repeat(N, 1, 1)
    for k in range(N):
        for j in range(k * p, (k + 1) * p):
            H[k, j : j + 2, j : j + 2] += torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    H[0, 0, 0] += 1
    H[-1, -1, -1] += 1
    b = torch.zeros(N, D, dtype=torch.float64)
    b[0, 0] = 1
    return H, b, torch.full((N,), 1 / N, dtype=torch.float64)


def test_tridiagonal_optimum_is_the_published_one():
    H, b, q = tridiagonal()
    w = fixed_points.surrogate_optimum(H, b, q)
    F = float(torch.einsum("k,i,kij,j->", q, w, H, w)) / 2 - float((q @ b) @ w)
    assert pytest.approx(-0.09479301538508, rel=1e-12) == F
    assert float(w.norm()) == pytest.approx(2.52974596883, rel=1e-10)


def test_published_fixed_rate_distances():
    """The paper's curves: η = .2 on twice the gradient. (E = 1 is exact; the limits of the others
    are reached within 10 000 rounds to the printed digits.)"""
    H, b, q = tridiagonal()
    best = fixed_points.surrogate_optimum(H, b, q)
    for E, distance in ((5, 0.1402), (10, 0.2381), (50, 0.4792), (100, 0.6442)):
        stop = fixed_points.fedavg(2 * H, 2 * b, q, 0.2, E)
        assert float((stop - best).norm()) == pytest.approx(distance, abs=1e-3)


@pytest.mark.parametrize("E", [1, 2, 5, 20])
def test_fixed_rate_bias_is_the_leading_term(E):
    H, b, q = tridiagonal()
    best = fixed_points.surrogate_optimum(H, b, q)
    for lr in (1e-5, 1e-6):
        exact = fixed_points.fedavg(H, b, q, lr, E) - best
        stated = bounds.fixed_rate_bias(H, b, q, lr, E)
        scale = max(float(stated.norm()), 1e-30)
        assert float((exact - stated).norm()) <= 20 * E * lr * scale + 1e-11
    # Theorem 5: at least (E−1)η/16 |A_1 A_2 w*|.
    least = (E - 1) * 1e-5 / 16 * float((H[0] @ H[1] @ best).norm())
    assert float(bounds.fixed_rate_bias(H, b, q, 1e-5, E).norm()) >= least


@pytest.mark.parametrize(
    "call",
    [
        lambda: bounds.full(constants(mu=0.0)),
        lambda: bounds.full(constants(mu=5.0)),
        lambda: bounds.full(constants(E=0)),
        lambda: bounds.full(constants(G=-1.0)),
        lambda: bounds.full(constants(q=torch.ones(4))),
        lambda: bounds.scheme_one(constants(), 0),
        lambda: bounds.scheme_two(constants(), 5),
    ],
)
def test_bad_input_gets_a_sentence(call):
    with pytest.raises(ValueError, match=r"^\w+: .*\.$"):
        call()
