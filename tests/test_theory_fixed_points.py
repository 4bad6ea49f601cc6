"""Closed-form fixed points against rounds that are really run."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.theory import fixed_points as f


def quadratics(seed, N=4, P=3, singular=True):
    rng = np.random.default_rng(seed)
    H = []
    for i in range(N):
        A = rng.normal(size=(P, P - 1 if singular and i % 2 else P))
        H.append(A @ A.T / 3)
    return torch.tensor(np.stack(H)), torch.tensor(rng.normal(size=(N, P)))


Q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
STEPS = [1, 7, 3, 12]


def mean_move(H, b, q, lr, steps, x, mu=0.0, momentum=f.NO_MOMENTUM, normalise=False, m=0.0, s=1.0):
    """Σ q_i(x_i − x) of one round by its definition; clients follow s∇f_i + (1 − s)m.

    FedNova, which normalises, divides each client's move by ‖a_i‖₁.
    """
    total = np.zeros_like(x)
    for h, bi, share, tau in zip(H.numpy(), b.numpy(), q.numpy(), steps, strict=True):
        y, u, a_norm, c = x.copy(), np.zeros_like(x), 0.0, 0.0
        for _ in range(tau):
            pull = mu * (y - x)
            g = s * (h @ y - bi) + (1 - s) * m + (pull if momentum.pull_inside else 0)
            u = momentum.rho * u + g
            step = g + momentum.rho * u if momentum.nesterov else u
            y = y - lr * (step + (0 if momentum.pull_inside else pull))
            c = momentum.rho * c + 1
            a_norm = (1 - lr * mu) * a_norm + (1 + momentum.rho * c if momentum.nesterov else c)
        total += share * (y - x) / (a_norm if normalise else 1.0)
    return total


def after(rounds, *problem, server_lr=1.0, **options):
    """The model after rounds that begin at zero."""
    x = np.zeros(3)
    for _ in range(rounds):
        x = x + server_lr * mean_move(*problem, x, **options)
    return x


def test_undamped_momentum_has_a_fixed_point_too():
    H, b = quadratics(1)
    lr, momentum = 0.2 / float(torch.linalg.eigvalsh(H).max()), f.LocalMomentum(1.0)
    point = f.averaging_fixed_point(H, b, Q, lr, STEPS, 0.7, momentum).numpy()
    moved = mean_move(H, b, Q, lr, STEPS, point, 0.7, momentum)
    assert np.allclose(moved, 0, atol=1e-10)


@pytest.mark.parametrize(
    "momentum",
    [f.NO_MOMENTUM, f.LocalMomentum(0.6), f.LocalMomentum(0.6, nesterov=True)],
    ids=["plain", "momentum", "nesterov"],
)
def test_a_round_that_begins_at_the_point_ends_there(momentum):
    H, b = quadratics(1)
    lr, mu, share = 0.2 / float(torch.linalg.eigvalsh(H).max()), 0.7, 0.4
    inside = momentum._replace(pull_inside=True)

    def moves(point, **options):
        options = {"momentum": momentum, **options}
        return np.abs(mean_move(H, b, Q, lr, STEPS, point.numpy(), **options)).max()

    assert moves(f.fedavg(H, b, Q, lr, STEPS, momentum)) < 1e-12
    assert moves(f.fedprox(H, b, Q, lr, STEPS, mu, momentum), mu=mu) < 1e-12
    pulled = f.fedprox(H, b, Q, lr, STEPS, mu, inside)
    assert moves(pulled, mu=mu, momentum=inside) < 1e-12
    nova = f.fednova(H, b, Q, lr, STEPS, mu, momentum)
    assert moves(nova, mu=mu, normalise=True) < 1e-12
    common = f.fedcm(H, b, Q, lr, STEPS, share, momentum)
    assert moves(common, s=share) < 1e-12  # there D = 0
    mime = f.mimelite(H, b, Q, lr, STEPS, 1 - share, momentum)
    gradient = (Q @ (torch.einsum("kij,j->ki", H, mime) - b)).numpy()
    assert np.abs(gradient).max() > 1e-3  # the server's momentum does not vanish there
    assert moves(mime, s=share, m=gradient) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_rounds_stop_where_the_formulas_say(seed):
    H, b = quadratics(seed)
    lr = 0.4 / float(torch.linalg.eigvalsh(H).max())
    assert float(torch.linalg.eigvalsh(H[1]).min()) < 1e-12  # so M_i cannot use an inverse
    cases = [
        (f.fedavg(H, b, Q, lr, STEPS), 0.0, False),
        (f.fedprox(H, b, Q, lr, STEPS, 0.7), 0.7, False),
        (f.fednova(H, b, Q, lr, STEPS), 0.0, True),
        (f.fednova(H, b, Q, lr, STEPS, 0.7), 0.7, True),
    ]
    for point, mu, normalise in cases:
        server_lr = 3.0 if normalise else 1.0  # FedNova's τ_eff: any value stops at the same point
        options = {"mu": mu, "normalise": normalise, "server_lr": server_lr}
        stop = after(4_000, H, b, Q, lr, STEPS, **options)
        assert np.allclose(point.numpy(), stop, rtol=1e-7, atol=1e-9)
    points = torch.stack([case[0] for case in cases])
    assert float((points[0] - points[2]).norm()) > 1e-3  # FedAvg and FedNova differ


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_rounds_with_local_momentum_stop_where_the_formulas_say(nesterov, inside):
    H, b = quadratics(1)
    lr = 0.2 / float(torch.linalg.eigvalsh(H).max())
    momentum, steps = f.LocalMomentum(0.6, nesterov, inside), [1, 4, 3, 5]
    cases = [(f.fedprox(H, b, Q, lr, steps, 0.7, momentum), 0.7, False)]
    if not inside:
        cases += [
            (f.fedavg(H, b, Q, lr, steps, momentum), 0.0, False),
            (f.fednova(H, b, Q, lr, steps, 0.7, momentum), 0.7, True),
        ]
    for point, mu, normalise in cases:
        options = {"mu": mu, "momentum": momentum, "normalise": normalise}
        stop = after(3_000, H, b, Q, lr, steps, **options)
        assert np.allclose(point.numpy(), stop, rtol=1e-7, atol=1e-9)
    plain = f.fedprox(H, b, Q, lr, steps, 0.7)
    assert float((cases[0][0] - plain).norm()) > 1e-3


def test_rounds_of_fedcm_and_mimelite_stop_where_the_formulas_say():
    H, b = quadratics(2, singular=False)
    lr, share = 0.3 / float(torch.linalg.eigvalsh(H).max()), 0.4
    for rule, point in (
        ("FedCM", f.fedcm(H, b, Q, lr, STEPS, share)),
        ("MimeLite", f.mimelite(H, b, Q, lr, STEPS, 1 - share)),
    ):
        x, m = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for _ in range(1_000):
            moves = []
            for h, v, tau in zip(H, b, STEPS, strict=True):
                y = x
                for _ in range(tau):
                    y = y - lr * (share * (h @ y - v) + (1 - share) * m)
                moves.append(y - x)
            mean = Q @ torch.stack(moves)
            if rule == "FedCM":
                m = -mean / (lr * float(Q @ torch.tensor(STEPS).double()))
            else:
                m = share * (Q @ (H @ x - b)) + (1 - share) * m
            x = x + mean
        assert torch.allclose(x, point, rtol=1e-7, atol=1e-8), rule


def pfedme_rounds(H, b, q, lr, steps, lam, eta, R, momentum, rounds):
    """pFedMe by its definition: R times an inner problem from w_k, and w_k ← w_k − ηλ(w_k − θ)."""
    w = np.zeros(b.shape[1])
    for _ in range(rounds):
        ends = []
        for h, v, tau in zip(H.numpy(), b.numpy(), steps, strict=True):
            own = w
            for _ in range(R):
                theta, u = own, np.zeros_like(own)
                for _ in range(tau):
                    g, pull = h @ theta - v, lam * (theta - own)
                    u = momentum.rho * u + g + (pull if momentum.pull_inside else 0)
                    theta = theta - lr * (u + (0 if momentum.pull_inside else pull))
                own = own - eta * lam * (own - theta)
            ends.append(own)
        w = q.numpy() @ np.stack(ends)
    return w


@pytest.mark.parametrize(
    ("R", "momentum"),
    [(1, f.NO_MOMENTUM), (3, f.NO_MOMENTUM), (3, f.LocalMomentum(0.5, pull_inside=True))],
)
def test_rounds_of_pfedme_stop_where_the_formula_says(R, momentum):
    H, b = quadratics(4, singular=False)
    H = H + 0.5 * torch.eye(3)  # so that 300 rounds are enough
    lr, lam, eta = 0.1, 1.3, 0.4
    point = f.pfedme(H, b, Q, lr, STEPS, lam, eta, R, momentum)
    stop = pfedme_rounds(H, b, Q, lr, STEPS, lam, eta, R, momentum, 300)
    assert np.allclose(point.numpy(), stop, rtol=1e-10, atol=1e-10)
    if R == 1:
        assert torch.allclose(point, f.fedprox(H, b, Q, lr, STEPS, lam, momentum))


def test_pfedme_with_many_steps_minimises_the_moreau_envelopes():
    H, b = quadratics(4, singular=False)
    lam = 1.3
    optimum = f.moreau_optimum(H, b, Q, lam)
    many = f.pfedme(H, b, Q, 0.1, 500, lam, 1e-6, 2)
    assert torch.allclose(many, optimum, atol=1e-5)
    w = optimum.clone().requires_grad_()
    nearest = f.prox(H, b, optimum, lam)
    apart = nearest - w  # the envelope's gradient is that of f(θ) + (λ/2)|θ − w|² at θ = prox(w)
    values = torch.einsum("ki,kij,kj->k", nearest, H, nearest) / 2 - (b * nearest).sum(1)
    (Q @ (values + lam / 2 * apart.square().sum(1))).backward()
    assert float(w.grad.norm()) < 1e-12


def test_prox_is_where_the_gradient_vanishes():
    H, b = quadratics(6, singular=False)
    w = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    for lam in (0.0, 0.7):
        own = f.prox(H, b, w, lam)
        gradient = torch.einsum("kij,kj->ki", H, own) - b + lam * (own - w)
        assert float(gradient.abs().max()) < 1e-12


def test_momentum_is_plain_with_the_pull_outside_unless_told():
    """So are ud.SGD and ud.GD."""
    assert f.LocalMomentum(0.6) == f.LocalMomentum(0.6, nesterov=False, pull_inside=False)
    assert f.LocalMomentum().rho == f.NO_MOMENTUM.rho == 0


def test_one_step_or_equal_clients_give_the_optimum():
    H, b = quadratics(5)
    optimum = f.surrogate_optimum(H, b, Q)
    assert torch.allclose(f.fedavg(H, b, Q, 0.1, 1), optimum)
    same_H, same_b = H[:1].expand(4, 3, 3), b[:1].expand(4, 3)
    stop = f.fedavg(same_H, same_b, Q, 0.1, STEPS)
    assert torch.allclose(stop, torch.linalg.solve(H[0], b[0]))


def test_limits_as_the_rate_goes_to_zero():
    """FedAvg tends to the τ-weighted optimum, FedNova to the true one, both at rate O(η)."""
    H, b = quadratics(2)
    w = Q * torch.tensor(STEPS)
    surrogate, optimum = f.surrogate_optimum(H, b, w / w.sum()), f.surrogate_optimum(H, b, Q)
    for method, target in ((f.fedavg, surrogate), (f.fednova, optimum)):
        far, near = ((method(H, b, Q, lr, STEPS) - target).norm() for lr in (1e-4, 1e-5))
        assert float(near) > 0
        assert float(far / near) == pytest.approx(10, rel=0.02)


@given(seed=st.integers(0, 1000), lr=st.floats(0.01, 0.6), mu=st.floats(0, 0.5))
@settings(max_examples=40, deadline=None)
def test_spherical_agrees_with_the_general_formula(seed, lr, mu):
    e = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    eye = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    general = f.averaging_fixed_point(eye, e, Q, lr, STEPS, mu)
    assert torch.allclose(f.spherical(e, Q, lr, STEPS, mu), general)


def test_lemma1_is_the_limit_on_spheres():
    e = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    limit = f.lemma1(e, Q, STEPS)
    by_hand = (0.4 * 1 * e[0] + 0.3 * 7 * e[1] + 0.2 * 3 * e[2] + 0.1 * 12 * e[3]) / 4.3
    assert torch.allclose(limit, by_hand)
    assert torch.allclose(f.spherical(e, Q, 1e-7, STEPS), limit, atol=1e-5)
    # FedNova is at the optimum only in the limit.
    nova = Q / torch.tensor(STEPS)
    assert torch.allclose(f.spherical(e, nova, 1e-7, STEPS), Q @ e, atol=1e-5)
    assert float((f.spherical(e, nova, 0.1, STEPS) - Q @ e).norm()) > 1e-2


def test_scale_of_omega_and_order_of_clients_do_not_matter():
    H, b = quadratics(9)
    point = f.averaging_fixed_point(H, b, Q, 0.1, STEPS)
    assert torch.allclose(f.averaging_fixed_point(H, b, 9 * Q, 0.1, STEPS), point)
    order = [2, 0, 3, 1]
    turned = f.fedavg(H[order], b[order], Q[order], 0.1, [STEPS[i] for i in order])
    assert torch.allclose(turned, point)


@pytest.mark.parametrize(
    "call",
    [
        lambda H, b: f.fedavg(H, b[:3], Q, 0.1, 2),
        lambda H, b: f.fedavg(H, b, Q[:3], 0.1, 2),
        lambda H, b: f.fedavg(H, b, Q, -0.1, 2),
        lambda H, b: f.fedavg(H, b, Q, 0.1, 0),
        lambda H, b: f.fedavg(H, b, Q, 0.1, [1, 2]),
        lambda H, b: f.fedprox(H, b, Q, 0.1, 2, -1.0),
        lambda H, b: f.fedavg(0 * H, b, Q, 0.1, 2),
        lambda H, b: f.averaging_fixed_point(H, b, -Q, 0.1, 2),
    ],
)
def test_bad_input_gets_a_sentence(call):
    with pytest.raises(ValueError, match=r"^\w+: .*\.$"):
        call(*quadratics(0))
