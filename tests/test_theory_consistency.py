"""FedNova's accumulation vectors, effective weights and Theorems 1–2, against simulations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.theory import consistency as c


def displacement(gradients, lr, momentum, nesterov, mu, factors):
    """Minus the movement of torch-style SGD with momentum and a pull to the start, over lr."""
    x = np.zeros_like(gradients[0])
    buffer = np.zeros_like(x)
    for g, factor in zip(gradients, factors, strict=True):
        buffer = momentum * buffer + g
        used = g + momentum * buffer if nesterov else buffer
        x = x - lr * factor * (used + mu * x)
    return -x / lr


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(1, 12),
    momentum=st.floats(0, 0.99),
    nesterov=st.booleans(),
    pull=st.floats(0, 0.5),
    data=st.data(),
)
def test_coefficients_are_what_a_simulated_solver_accumulates(
    steps, momentum, nesterov, pull, data
):
    factors = data.draw(st.lists(st.floats(0, 2), min_size=steps, max_size=steps))
    lr = 0.3
    gradients = list(np.random.default_rng(steps).normal(size=(steps, 4)))
    a = c.coefficients(steps, momentum=momentum, nesterov=nesterov, pull=pull, factors=factors)
    expected = displacement(gradients, lr, momentum, nesterov, pull / lr, factors)
    assert np.allclose(a.numpy() @ np.stack(gradients), expected, rtol=1e-9, atol=1e-9)
    # One gradient at a time reads the entries off, so they are right one by one.
    for s in range(steps):
        one_hot = list(np.eye(steps)[s][:, None])
        got = displacement(one_hot, lr, momentum, nesterov, pull / lr, factors)[0]
        assert math.isclose(got, float(a[s]), rel_tol=1e-9, abs_tol=1e-9)


def test_coefficients_agree_with_torch_sgd():
    targets = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for nesterov in (False, True):
        x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.SGD([x], lr=0.1, momentum=0.8, nesterov=nesterov)
        for g in targets:
            x.grad = g.clone()
            optimiser.step()
        a = c.coefficients(7, momentum=0.8, nesterov=nesterov)
        assert torch.allclose(-x.detach() / 0.1, a @ targets)


def test_numbers_known_from_the_papers():
    assert float(c.a_norm_momentum(2, 0.9)) == pytest.approx(2.9)
    assert float(c.a_norm_momentum(10, 0.9)) == pytest.approx(41.38, abs=5e-3)
    both = c.coefficients(10, momentum=0.9, pull=0.01)
    assert float(both.sum()) == pytest.approx(40.05, abs=5e-3)
    assert c.coefficients(3, pull=0.2).tolist() == pytest.approx([0.64, 0.8, 1.0])
    assert c.coefficients(3, momentum=0.5).tolist() == pytest.approx([1.75, 1.5, 1.0])


@given(tau=st.integers(1, 40), x=st.floats(0, 0.99))
@settings(max_examples=60, deadline=None)
def test_closed_forms_sum_the_coefficients(tau, x):
    assert float(c.a_norm_sgd(tau)) == float(c.coefficients(tau).sum())
    proximal = float(c.coefficients(tau, pull=x).sum())
    assert float(c.a_norm_proximal(tau, x)) == pytest.approx(proximal, rel=1e-10)
    decay = float(c.coefficients(tau, factors=[x**s for s in range(tau)]).sum())
    assert float(c.a_norm_decay(tau, x)) == pytest.approx(decay, rel=1e-10)
    momentum = float(c.coefficients(tau, momentum=x).sum())
    assert float(c.a_norm_momentum(tau, x)) == pytest.approx(momentum, rel=1e-8)


def test_closed_forms_at_their_limits():
    tau = torch.tensor([1.0, 5.0, 300.0], dtype=torch.float64)
    for limit in (c.a_norm_proximal(tau, 0.0), c.a_norm_decay(tau, 1.0)):
        assert torch.equal(limit, tau.double())
    assert c.a_norm_proximal(tau, 1.0).tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(c.a_norm_momentum(tau, 0.0), tau.double())
    # Close to the limit [1 − (1−α)^τ]/α cancels; its expansion is τ − ατ(τ−1)/2 + …
    near = c.a_norm_proximal(tau, 1e-12)
    assert torch.allclose(near, tau - 1e-12 * tau * (tau - 1) / 2, rtol=1e-13, atol=0)
    assert float(c.a_norm_decay(3, 2.0)) == pytest.approx(7.0)


def test_plain_averaging_moves_along_the_effective_weights():
    """Σ p_i Δ_i = −η τ_eff Σ w_i d_i with d_i the normalised gradients (eq. 5 and 6)."""
    rng = np.random.default_rng(3)
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    a = [c.coefficients(t, momentum=0.7, pull=0.05) for t in (2, 9, 4)]
    G = [torch.tensor(rng.normal(size=(len(v), 6))) for v in a]
    lr = 0.2
    moved = sum(share * -lr * (v @ g) for share, v, g in zip(p, a, G, strict=True))
    a_norm = torch.stack([v.sum() for v in a])
    w, tau = c.effective_weights(p, a_norm), c.tau_effective(p, a_norm)
    normalised = sum(x * (v @ g) / v.sum() for x, v, g in zip(w, a, G, strict=True))
    assert torch.allclose(moved, -lr * tau * normalised)
    assert float(w.sum()) == pytest.approx(1.0)
    assert torch.allclose(c.effective_weights(p, torch.full((3,), 7.0)), p)


def test_chi_square_is_the_variance_of_the_density():
    p = torch.tensor([0.2, 0.8], dtype=torch.float64)
    w = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert c.chi_square(p, w) == pytest.approx(0.36)  # Σ p²/w − 1 = .08 + 1.28 − 1
    assert c.chi_square(p, p) == 0.0
    assert c.chi_square(w, torch.tensor([1.0, 0.0])) == math.inf
    assert c.chi_square(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])) == 0.0


def test_theorem1_constants_of_plain_sgd():
    w = torch.tensor([0.25, 0.75], dtype=torch.float64)
    a = [c.coefficients(t) for t in (4, 10)]
    A, B, C = c.theorem1(w, a, tau_eff=6.0)
    assert pytest.approx(2 * 6 * (0.25**2 / 4 + 0.75**2 / 10)) == A
    assert pytest.approx(0.25 * 3 + 0.75 * 9) == B
    assert pytest.approx(10 * 9) == C
    halving = c.theorem1(torch.ones(1), [torch.tensor([1.0, 0.5, 0.25])], tau_eff=1.75)
    assert halving == pytest.approx((1.75 * 1.3125 / 1.75**2, 1.25, 1.75 * 1.5))
    same = c.theorem1(torch.full((5,), 0.2), [c.coefficients(8)] * 5, tau_eff=8.0)
    assert pytest.approx(1.0) == same.A  # m clients with τ steps: σ²/(mτ), times mτ_eff


def test_theorem1_A_is_the_variance_of_the_aggregated_gradient():
    """With noise of variance σ² per gradient, E|Σ w_i d_i|² = σ²A/(mτ_eff)."""
    a = [c.coefficients(3, momentum=0.9), c.coefficients(8, pull=0.1), c.coefficients(5)]
    w = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    noise = torch.Generator().manual_seed(1)
    total = torch.zeros(200_000, dtype=torch.float64)
    for share, v in zip(w, a, strict=True):
        g = torch.randn(200_000, len(v), dtype=torch.float64, generator=noise)
        total += share * (g @ v) / v.sum()
    A = c.theorem1(w, a, tau_eff=4.0).A
    assert float(total.square().mean()) == pytest.approx(A / (3 * 4.0), rel=0.02)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_theorem1_bound_is_above_what_fedavg_does(momentum, noise):
    rng = np.random.default_rng(0)
    m, P, T, taus = 4, 3, 60, [1, 3, 6, 2]
    H = np.stack([np.diag(rng.uniform(0.2, 1.0, P)) for _ in range(m)])
    b = rng.normal(size=(m, P))
    L = max(np.linalg.eigvalsh(h)[-1] for h in H)
    p = torch.full((m,), 1 / m, dtype=torch.float64)
    a = [c.coefficients(t, momentum=momentum) for t in taus]
    a_norm = torch.stack([v.sum() for v in a])
    w, tau_eff = c.effective_weights(p, a_norm), c.tau_effective(p, a_norm)
    constants, lr = c.theorem1(w, a, tau_eff), 0.02 / L
    weights = w.numpy()
    best = np.linalg.solve(np.tensordot(weights, H, 1), weights @ b)

    def surrogate(x):
        return sum(wi * (x @ h @ x / 2 - bi @ x) for wi, h, bi in zip(weights, H, b, strict=True))

    squares, kappa2, start = [], 0.0, np.full(P, 2.0)
    for _ in range(20 if noise else 1):
        x = start.copy()
        for _ in range(T):
            gradients = np.stack([h @ x - bi for h, bi in zip(H, b, strict=True)])
            mean = weights @ gradients
            kappa2 = max(kappa2, weights @ (gradients**2).sum(1) - mean @ mean)
            squares.append(mean @ mean)
            ends = []
            for i in range(m):
                y, buffer = x.copy(), np.zeros(P)
                for _ in range(taus[i]):
                    buffer = momentum * buffer + H[i] @ y - b[i] + noise * rng.normal(size=P)
                    y = y - lr * buffer
                ends.append(y)
            x = np.mean(ends, 0)
    bound = c.theorem1_bound(
        constants,
        lr=lr,
        tau_eff=tau_eff,
        rounds=T,
        clients=m,
        L=L,
        gap=surrogate(start) - surrogate(best),
        sigma2=noise**2 * P,
        kappa2=kappa2,
    )
    assert np.mean(squares) <= bound <= 12 * np.mean(squares)


def test_theorem1_bound_with_the_papers_rate_is_equation_8():
    m, T, taus = 3, 10_000, torch.tensor([2, 4, 9])
    p = torch.full((m,), 1 / m, dtype=torch.float64)
    a = [c.coefficients(int(t)) for t in taus]
    tau_eff = c.tau_effective(p, c.a_norm_sgd(taus))
    A, B, C = constants = c.theorem1(c.effective_weights(p, c.a_norm_sgd(taus)), a, tau_eff)
    mean = float(taus.double().mean())
    lr = math.sqrt(m / (mean * T))
    shared = dict(lr=lr, tau_eff=tau_eff, rounds=T, clients=m, L=1.0)
    root, fast = math.sqrt(m * mean * T), mean * T / m
    noiseless = c.theorem1_bound(constants, gap=1.0, **shared)
    assert noiseless == pytest.approx(4 * (mean / tau_eff) / root)
    only_noise = c.theorem1_bound(constants, gap=0.0, sigma2=1.0, **shared)
    assert only_noise == pytest.approx(4 * A / root + 6 * B / fast)
    assert c.theorem1_bound(constants, gap=0.0, kappa2=1.0, **shared) == pytest.approx(
        12 * C / fast
    )
    with pytest.raises(ValueError, match="too large"):
        c.theorem1_bound(constants, gap=1.0, **(shared | {"lr": 0.2}))


@given(seed=st.integers(0, 10_000), beta2=st.floats(1, 3))
@settings(max_examples=80, deadline=None)
def test_theorem2_holds_for_any_gradients(seed, beta2):
    rng = torch.Generator().manual_seed(seed)
    p, w = torch.rand(2, 5, dtype=torch.float64, generator=rng) + 0.02
    p, w = p / p.sum(), w / w.sum()
    g = torch.randn(5, 3, dtype=torch.float64, generator=rng)
    surrogate = float((w @ g).square().sum())
    kappa2 = max(0.0, float(w @ g.square().sum(1)) - beta2 * surrogate)
    true = float((p @ g).square().sum())
    assert true <= c.theorem2_bound(p, w, surrogate, beta2=beta2, kappa2=kappa2) * (1 + 1e-12)


def test_figure_4():
    rng = np.random.default_rng(0)
    tau = torch.tensor(np.clip(np.rint(rng.normal(20, 20, 30)), 1, None))
    p = torch.full((30,), 1 / 30, dtype=torch.float64)
    # FedAvg, α = 0: w_i ∝ τ_i, so χ² = (1/m) Σ τ̄/τ_i − 1.
    assert c.weight_bias(0.0, tau, p) == pytest.approx(float((tau.mean() / tau).mean()) - 1)
    assert c.slowdown(0.0, tau, p) == pytest.approx(1.0)
    assert c.relative_variance(0.0, tau, p) == pytest.approx(1.0)
    # α = 1: one step for everyone, consistent and τ̄ times slower.
    assert c.weight_bias(1.0, tau, p) == pytest.approx(0.0, abs=1e-12)
    assert c.slowdown(1.0, tau, p) == pytest.approx(float(tau.mean()))
    assert c.relative_variance(1.0, tau, p) == pytest.approx(1.0)
    grid = np.linspace(0, 1, 21)
    assert np.all(np.diff([c.weight_bias(x, tau, p) for x in grid]) < 0)
    assert np.all(np.diff([c.slowdown(x, tau, p) for x in grid]) > 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: c.coefficients(0),
        lambda: c.coefficients(2.5),
        lambda: c.coefficients(3, factors=[1.0]),
        lambda: c.coefficients(3, factors=[1.0, -1.0, 1.0]),
        lambda: c.coefficients(3, momentum=1.0),
        lambda: c.coefficients(3, pull=1.5),
        lambda: c.coefficients(2, pull=0.6, factors=[1.0, 2.0]),
        lambda: c.a_norm_proximal(3, -0.1),
        lambda: c.a_norm_momentum(3, 1.0),
        lambda: c.a_norm_decay(3, math.nan),
        lambda: c.effective_weights(torch.tensor([0.5, 0.6]), torch.ones(2)),
        lambda: c.effective_weights(torch.tensor([0.5, 0.5]), torch.ones(3)),
        lambda: c.effective_weights(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])),
        lambda: c.chi_square(torch.tensor([1.0]), torch.tensor([0.5, 0.5])),
        lambda: c.theorem1(torch.tensor([1.0]), [torch.ones(2), torch.ones(2)], 2.0),
    ],
)
def test_bad_input_gets_a_sentence(call):
    with pytest.raises(ValueError, match=r"^\w+: .*\.$"):
        call()


def test_theorem_1_term_by_term():
    constants = c.Theorem1Constants(A=2.0, B=3.0, C=5.0)
    options = dict(lr=0.01, tau_eff=4.0, rounds=7, clients=6, L=1.5, gap=1.3, beta2=1.2)
    start = 4 * 1.3 / (0.01 * 4 * 7)
    noise = 4 * 0.01 * 1.5 * 0.2 * 2 / 6 + 6 * 0.015**2 * 0.2 * 3
    drift = 12 * 0.015**2 * 0.4 * 5
    assert c.theorem1_bound(constants, **options) == pytest.approx(start)
    with_noise = c.theorem1_bound(constants, **options, sigma2=0.2)
    assert with_noise - start == pytest.approx(noise)
    assert c.theorem1_bound(constants, **options, kappa2=0.4) - start == pytest.approx(drift)


def test_theorem_2_term_by_term():
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    w = torch.tensor([0.8, 0.2], dtype=torch.float64)
    chi = 0.3**2 / 0.8 + 0.3**2 / 0.2
    found = c.theorem2_bound(p, w, 0.7, beta2=1.5, kappa2=0.4)
    assert found == pytest.approx(2 * (chi * 0.5 + 1) * 0.7 + 2 * chi * 0.4)
