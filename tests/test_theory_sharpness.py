"""Fixed points of FedSAM and FedSpeed against rounds that are really run."""

import numpy as np
import pytest
import torch

from undrift.theory import fixed_points, random_quadratics, sharpness
from undrift.theory.fixed_points import LocalMomentum
from undrift.utils.errors import UndriftError

PROBLEM = random_quadratics(4, 3, 0.5, 1.5, spread=1.0, seed=3)
H, B = PROBLEM.H, PROBLEM.b
Q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
STEPS = [1, 4, 2, 3]


def followed(k, x, rho, share):
    """(1 − a)∇f(x) + a∇f(x + ρ g/|g|) by its definition."""
    h, b = H[k].numpy(), B[k].numpy()
    g = h @ x - b
    return (1 - share) * g + share * (h @ (x + rho * g / np.linalg.norm(g)) - b)


@pytest.mark.parametrize(
    "momentum", [LocalMomentum(), LocalMomentum(0.5), LocalMomentum(0.5, nesterov=True)]
)
def test_fedsam_stops_where_newtons_method_says(momentum):
    lr, rho, share, x = 0.1, 0.2, 0.7, np.zeros(3)
    for _ in range(600):
        total = np.zeros(3)
        for k, tau in enumerate(STEPS):
            y, u = x, np.zeros(3)
            for _ in range(tau):
                s = followed(k, y, rho, share)
                u = momentum.rho * u + s
                y = y - lr * (s + momentum.rho * u if momentum.nesterov else u)
            total += float(Q[k]) * (y - x)
        x = x + total
    point = sharpness.fedsam_point(H, B, Q, lr, STEPS, rho, share, momentum)
    assert np.allclose(point.numpy(), x, atol=1e-10)
    flat = fixed_points.fedavg(H, B, Q, lr, STEPS, momentum)
    assert float((point - flat).norm()) > 1e-3
    near = sharpness.fedsam_point(H, B, Q, lr, STEPS, 1e-9, share, momentum)
    assert torch.allclose(near, flat, atol=1e-8)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_fedspeed_stops_where_the_mean_gradient_vanishes(share):
    point = sharpness.fedspeed_point(H, B, Q, 0.3, share).numpy()
    mean = sum(float(Q[k]) * followed(k, point, 0.3, share) for k in range(4))
    assert np.linalg.norm(mean) < 1e-13
    optimum = fixed_points.surrogate_optimum(H, B, Q)
    assert np.linalg.norm(point - optimum.numpy()) > 1e-3
    assert torch.allclose(sharpness.fedspeed_point(H, B, Q, 0.0), optimum, atol=1e-12)
    assert torch.allclose(sharpness.fedspeed_point(H, B, Q, 0.3, 0.0), optimum, atol=1e-12)


@pytest.mark.parametrize("momentum", [LocalMomentum(0.5), LocalMomentum(0.5, nesterov=True)])
def test_the_steps_of_newtons_method_use_the_derivative(momentum):
    """A wrong Jacobian would converge slowly, or not at all, for a large ρ."""
    x, tau, h = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64), torch.tensor(STEPS), 1e-6
    moves, slope = sharpness._moves(H, B, x, 0.1, tau, 0.3, momentum)
    for direction in torch.eye(3, dtype=torch.float64):
        after, _ = sharpness._moves(H, B, x + h * direction, 0.1, tau, 0.3, momentum)
        assert torch.allclose((after - moves) / h, slope @ direction, atol=1e-5)


def points(b, rho):
    yield sharpness.fedspeed_point(H, b, Q, rho, 0.7)
    yield sharpness.fedsam_point(H, b, Q, 0.1, STEPS, rho, 0.7)


def test_points_scale_with_the_problem():
    """Newton's method stops by relative lengths: in other units it settles as well."""
    for scale in (1e9, 1e-9):
        for point, scaled in zip(points(B, 0.3), points(scale * B, scale * 0.3), strict=True):
            assert torch.allclose(scaled / scale, point, rtol=0, atol=1e-12)


def test_points_at_the_origin_are_found():
    """Clients in opposite pairs: the point is 0 up to rounding, and the step has no scale."""
    h, b, q = H[[0, 0, 1, 1]], torch.stack([B[0], -B[0], B[1], -B[1]]), torch.full((4,), 0.25)
    for point in (
        sharpness.fedspeed_point(h, b, q, 0.1),
        sharpness.fedsam_point(h, b, q, 0.1, 3, 0.1),
    ):
        assert float(point.norm()) < 1e-15


@pytest.mark.parametrize("seed", range(6))
def test_clients_that_agree_have_a_point_only_without_the_radius(seed):
    """Where all gradients vanish they have no direction, so that FedSAM does not settle.

    Without the radius Newton's method is not used: its steps would be rounding errors.
    """
    problem = random_quadratics(1, 3, 0.5, 1.5, seed=seed)
    h, b = problem.H.expand(4, -1, -1), problem.b.expand(4, -1)
    optimum = torch.linalg.solve(h[0], b[0])
    for rho, share in ((0.0, 1.0), (0.3, 0.0)):
        assert torch.allclose(sharpness.fedspeed_point(h, b, Q, rho, share), optimum, atol=1e-12)
        same = sharpness.fedsam_point(h, b, Q, 0.1, STEPS, rho, share)
        assert torch.allclose(same, optimum, atol=1e-12)
    with pytest.raises(UndriftError, match="fedsam_point: Newton's method does not converge"):
        sharpness.fedsam_point(h, b, Q, 0.1, STEPS, 0.3)


def test_a_client_at_its_own_minimum_counts_with_a_zero_direction():
    """g = 0 has no direction: the term aρ H g/|g| is left out, and nothing is divided by zero."""
    h, b = torch.ones(2, 1, 1).double(), torch.tensor([[1.0], [3.0]]).double()
    s, slope = sharpness._gradient(h, b, torch.ones(2, 1).double(), 0.5)
    assert s.tolist() == [[0.0], [-2.5]]
    assert bool(slope.isfinite().all())


def test_bad_input_and_failure_get_a_sentence():
    with pytest.raises(UndriftError, match="share from 0 to 1"):
        sharpness.fedspeed_point(H, B, Q, 0.1, 1.5)
    with pytest.raises(UndriftError, match="rho must be at least 0"):
        sharpness.fedsam_point(H, B, Q, 0.1, STEPS, -0.1)
    with pytest.raises(UndriftError, match="use a smaller rho"):
        sharpness.fedspeed_point(H, B, Q, 10.0)


@pytest.mark.parametrize("factor", [2.0, 10.0])
def test_points_scale_with_the_problem_and_the_radius(factor):
    """x → cx, b → cb and ρ → cρ leave every direction g/|g| as it is; cρ is 1 once."""
    sam = [sharpness.fedsam_point(H, c * B, Q, 0.1, STEPS, c * 0.1) for c in (1.0, factor)]
    speed = [sharpness.fedspeed_point(H, c * B, Q, c * 0.1) for c in (1.0, factor)]
    for small, large in (sam, speed):
        assert torch.allclose(large, factor * small, rtol=0, atol=1e-9)
    plain = fixed_points.fedavg(H, factor * B, Q, 0.1, STEPS)
    assert (sam[1] - plain).norm() > 1e-3
