"""Quadratic losses f_k(x) = ½xᵀH_k x − b_kᵀx + const: problems with known optima."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from undrift.core.losses import Batch, ClientLoss, Losses
from undrift.core.problem import LocalProblem
from undrift.core.regularizers import L1, L2, Box, Regularizer
from undrift.core.targets import PARTS
from undrift.utils.errors import UndriftError, require
from undrift.utils.keys import generator


class QuadraticLoss(ClientLoss):
    """The quadratic loss of one client."""

    def __init__(self, H: Tensor, b: Tensor, samples: int):
        self.samples = samples
        self._H = H
        self._b = b

    def gradient(self, x: Tensor, batch: Batch = None) -> Tensor:
        if batch is not None:
            raise UndriftError("A quadratic loss has no batches: use GD instead of SGD.")
        return torch.addmv(self._b, self._H, x, beta=-1)

    def minimise(self, problem: LocalProblem, weight_decay: float = 0.0) -> Tensor:
        eye = torch.eye(len(self._b), dtype=self._b.dtype)
        A = problem.scale * (self._H + weight_decay * eye)
        rhs = problem.scale * self._b
        if problem.linear is not None:
            rhs = rhs - problem.linear
        if problem.center is not None:
            A = A + problem.weight * eye
            rhs = rhs + problem.weight * problem.center
        return torch.linalg.solve(A, rhs)


class Quadratics(Losses):
    """A problem whose clients have quadratic losses.

    Parameters
    ----------
    H, b
        `[N, d, d]`, symmetric, and `[N, d]`
    sizes
        n_k, the sizes for the objective "samples" (default: all 1)
    constants
        the constant of each f_k (default: zero)
    ids, initial
        the clients' ids (default: 0 … N − 1) and x⁰ (default: zero)
    """

    def __init__(
        self,
        H: Tensor,
        b: Tensor,
        sizes: Sequence[int] | None = None,
        constants: Sequence[float] | None = None,
        ids: Sequence[Hashable] | None = None,
        initial: Tensor | None = None,
    ):
        self.H = torch.as_tensor(H, dtype=torch.float64)
        self.b = torch.as_tensor(b, dtype=torch.float64)
        require(
            self.b.ndim == 2 and self.H.shape == (*self.b.shape, self.b.shape[1]),
            f"Quadratics need H of shape [N, d, d] and b of shape [N, d], not "
            f"{list(self.H.shape)} and {list(self.b.shape)}.",
        )
        clients, self.dimension = self.b.shape
        self.sizes = torch.as_tensor(sizes if sizes is not None else [1] * clients)
        self.constants = torch.zeros(clients, dtype=torch.float64)
        if constants is not None:
            self.constants = torch.as_tensor(constants, dtype=torch.float64)
        self.ids = list(ids) if ids is not None else list(range(clients))
        self._initial = torch.zeros(self.dimension, dtype=torch.float64)
        if initial is not None:
            self._initial = torch.as_tensor(initial, dtype=torch.float64)

    def __repr__(self) -> str:
        return f"Quadratics({len(self)} clients, dimension {self.dimension})"

    def initial(self) -> Tensor:
        return self._initial.clone()

    def value(self, k: int, x: Tensor) -> float:
        return float(x @ (self.H[k] @ x) / 2 - self.b[k] @ x + self.constants[k])

    def gradient(self, k: int, x: Tensor) -> Tensor:
        return torch.addmv(self.b[k], self.H[k], x, beta=-1)

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
    ) -> dict[str, float]:
        if "train" not in parts:
            return {}
        Hx = self.H @ x
        values = Hx @ x / 2 - self.b @ x + self.constants
        gradient = weights @ (Hx - self.b)
        return {"train_loss": float(weights @ values), "gradient_norm": float(gradient.norm())}

    @contextmanager
    def training(self, k: int, buffers: Mapping[str, Tensor], number: int) -> Iterator[ClientLoss]:
        yield QuadraticLoss(self.H[k], self.b[k], int(self.sizes[k]))

    def optimum(self, weights: Tensor, g: Regularizer | None = None) -> Tensor:
        """The minimiser of F = Σ q_k f_k + g."""
        H = torch.einsum("k,kij->ij", weights, self.H)
        b = weights @ self.b
        if g is None:
            return torch.linalg.solve(H, b)
        if isinstance(g, L2):
            return torch.linalg.solve(H + g.strength * torch.eye(self.dimension).to(H), b)
        return composite_optimum(H, b, g)

    def local_optimum(self, k: int) -> Tensor:
        """The minimiser of f_k."""
        return torch.linalg.solve(self.H[k], self.b[k])

    def smoothness(self) -> float:
        """L, the largest eigenvalue of any H_k."""
        return float(torch.linalg.eigvalsh(self.H).max())

    def convexity(self) -> float:
        """μ, the smallest eigenvalue of any H_k."""
        return float(torch.linalg.eigvalsh(self.H).min())


def composite_optimum(H: Tensor, b: Tensor, g: Regularizer, sweeps: int = 20_000) -> Tensor:
    """argmin ½xᵀHx − bᵀx + g(x), by proximal gradient steps.

    For g = L1 or Box, the steps find the active set, and a linear solve on it gives the exact
    minimiser.
    """
    step = 1 / float(torch.linalg.eigvalsh(H).max())
    x = torch.zeros_like(b)
    for _ in range(sweeps):
        new = g.prox(x - step * (H @ x - b), step)
        moved = float((new - x).norm())
        x = new
        if moved < 1e-15 * (1 + float(x.norm())):
            break
    if isinstance(g, L1):
        free, slope = x != 0, g.strength * x.sign()
    elif isinstance(g, Box):
        free, slope = (x > g.low) & (x < g.high), torch.zeros_like(x)
    else:
        return x
    if free.any():
        rest = b - slope - H[:, ~free] @ x[~free]
        x[free] = torch.linalg.solve(H[free][:, free], rest[free])
    return x


def random_quadratics(
    clients: int = 6,
    dimension: int = 5,
    convexity: float = 0.5,
    smoothness: float = 2.0,
    spread: float = 1.0,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
) -> Quadratics:
    """Random quadratics whose H_k have eigenvalues between `convexity` and `smoothness`.

    The entries of the clients' minima are normal with standard deviation `spread`. Sizes are random
    numbers from 5 to 49 unless given.
    """
    rng = generator(seed, "quadratics")
    H = np.empty((clients, dimension, dimension))
    for k in range(clients):
        basis, _ = np.linalg.qr(rng.standard_normal((dimension, dimension)))
        H[k] = basis * rng.uniform(convexity, smoothness, dimension) @ basis.T
    minima = spread * rng.standard_normal((clients, dimension))
    H = (H + H.transpose(0, 2, 1)) / 2
    if sizes is None:
        sizes = [int(n) for n in rng.integers(5, 50, clients)]
    b = np.einsum("kij,kj->ki", H, minima)
    return Quadratics(torch.as_tensor(H), torch.as_tensor(b), sizes)


def random_composite(
    clients: int = 6,
    dimension: int = 8,
    strength: float = 0.3,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
) -> tuple[Quadratics, L1]:
    """A lasso-like problem: random quadratics, and an l1 term that makes some parameters zero."""
    problem = random_quadratics(clients, dimension, sizes=sizes, seed=seed)
    return problem, L1(strength)


def distances(points: Tensor, sizes: Sequence[int] | None = None) -> Quadratics:
    """f_k(x) = ½|x − e_k|², the quadratics of Lemma 1 and Figure 2 of Wang et al. 2020."""
    points = torch.as_tensor(points, dtype=torch.float64)
    clients, dimension = points.shape
    H = torch.eye(dimension, dtype=torch.float64).expand(clients, -1, -1)
    constants = points.square().sum(1) / 2
    return Quadratics(H, points, sizes, constants.tolist())


def tridiagonal(clients: int = 5, block: int = 4, mu: float = 2e-4) -> Quadratics:
    """The example of Theorems 4 and 5 in Li et al., ICLR 2020 (their Appendix C).

    f_k(x) = ½[xᵀA_k x − 2b_kᵀx + μ|x|²], where the A_k act on overlapping parts of a path. The
    published curves are for twice this gradient: use twice their learning rate.
    """
    dimension = clients * block + 1
    H = torch.zeros(clients, dimension, dimension, dtype=torch.float64)
    b = torch.zeros(clients, dimension, dtype=torch.float64)
    for k in range(clients):
        for i in range(k * block, (k + 1) * block):
            H[k, i, i] += 1
            H[k, i + 1, i + 1] += 1
            H[k, i, i + 1] -= 1
            H[k, i + 1, i] -= 1
    H[0, 0, 0] += 1
    H[-1, -1, -1] += 1
    b[0, 0] = 1
    return Quadratics(H + mu * torch.eye(dimension, dtype=torch.float64), b)
