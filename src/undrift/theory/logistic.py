"""Multinomial logistic regression with an l2 term: strongly convex, with known constants.

The problem of FedAvg-nonIID's experiments. L, μ, F*, w* and every client's own optimum can be
computed, so bounds can be compared with what a method reaches.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.core.losses import Batch, ClientLoss, Losses
from undrift.core.targets import PARTS
from undrift.theory._checks import weights
from undrift.utils.errors import UndriftError, require


class _Samples(NamedTuple):
    """Weighted samples; their loss is Σ_i weight_i · cross-entropy_i."""

    inputs: Tensor  # [n, d + 1], the last column is one
    labels: Tensor  # [n]
    weight: Tensor  # [n], sums to one


class LogisticRegression(Losses):
    """f_k(x) = mean cross-entropy of softmax(W u + c) on client k's samples + (weight_decay/2)|x|².

    x is W [classes, d] row by row and then c [classes], as a flattened `nn.Linear`. Weight
    decay covers the bias too, which makes f_k strongly convex. Everything is computed in float64.
    """

    def __init__(
        self,
        features: Sequence[Tensor],
        labels: Sequence[Tensor],
        classes: int,
        weight_decay: float = 0.0,
    ):
        _check(features, labels, classes, weight_decay)
        self.ids = list(range(len(labels)))
        self.classes = classes
        self.weight_decay = float(weight_decay)
        self.sizes = torch.tensor([len(y) for y in labels])
        self.dimension = classes * (features[0].shape[1] + 1)
        self._clients = []
        for u, y in zip(features, labels, strict=True):
            ones = torch.ones(len(y), dtype=torch.float64)
            inputs = torch.cat([u.double(), ones[:, None]], 1)
            self._clients.append(_Samples(inputs, y.long(), ones / len(y)))

    def initial(self) -> Tensor:
        """x⁰ = 0."""
        return torch.zeros(self.dimension, dtype=torch.float64)

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
    ) -> dict[str, float]:
        """Σ q_k f_k and the norm of its gradient."""
        if "train" not in parts:
            return {}
        values = torch.tensor([self.value(k, x) for k in range(len(self))], dtype=torch.float64)
        norm = self.total_gradient(x, weights).norm()
        return {"train_loss": float(weights @ values), "gradient_norm": float(norm)}

    @contextmanager
    def training(self, k: int, buffers: Mapping[str, Tensor], number: int) -> Iterator[ClientLoss]:
        """Client k's loss; a batch's gradient is the mean over its samples."""
        yield _LogisticLoss(self, self._clients[k])

    def value(self, k: int, x: Tensor) -> float:
        """f_k(x)."""
        return self._value(self._clients[k], x.double())

    def gradient(self, k: int, x: Tensor) -> Tensor:
        """∇f_k(x) [P], in the dtype of x."""
        return self._gradient(self._clients[k], x.double()).to(x.dtype)

    def smoothness(self) -> float:
        """L = ½ max_k λ_max(Ũ_kᵀŨ_k/n_k) + weight decay, Ũ_k the features and a column of ones.

        (A softmax's Hessian diag(p) − ppᵀ has no eigenvalue above ½.)
        """
        largest = [
            torch.linalg.matrix_norm(s.inputs, 2) ** 2 / len(s.labels) for s in self._clients
        ]
        return 0.5 * float(max(largest)) + self.weight_decay

    def convexity(self) -> float:
        """μ: the weight decay."""
        return self.weight_decay

    def optimum(self, q: Tensor, tolerance: float = 1e-12) -> Tensor:
        """The minimiser [P] of F = Σ q_k f_k, by damped Newton until |∇F| ≤ tolerance."""
        parts = zip(self._clients, weights(q, "LogisticRegression", len(self)), strict=True)
        scaled = [s._replace(weight=share * s.weight) for s, share in parts]
        return self._minimise(_Samples(*map(torch.cat, zip(*scaled, strict=True))), tolerance)

    def local_optimum(self, k: int, tolerance: float = 1e-12) -> Tensor:
        """The minimiser of client k's own f_k."""
        return self._minimise(self._clients[k], tolerance)

    def _scores(self, s: _Samples, x: Tensor) -> Tensor:
        split = self.dimension - self.classes
        return s.inputs @ torch.cat([x[:split].view(self.classes, -1), x[split:, None]], 1).T

    def _pull_back(self, s: _Samples, scores: Tensor) -> Tensor:
        """The transpose of `_scores`, with every sample multiplied by its weight."""
        matrix = (s.weight[:, None] * scores).T @ s.inputs
        return torch.cat([matrix[:, :-1].flatten(), matrix[:, -1]])

    def _value(self, s: _Samples, x: Tensor) -> float:
        own = torch.log_softmax(self._scores(s, x), 1).gather(1, s.labels[:, None])[:, 0]
        return float(0.5 * self.weight_decay * (x @ x) - s.weight @ own)

    def _gradient(self, s: _Samples, x: Tensor) -> Tensor:
        error = torch.softmax(self._scores(s, x), 1)
        error[torch.arange(len(error)), s.labels] -= 1.0
        return self._pull_back(s, error) + self.weight_decay * x

    def _hessian(self, s: _Samples, x: Tensor) -> Callable[[Tensor], Tensor]:
        """v ↦ ∇²f(x) v."""
        p = torch.softmax(self._scores(s, x), 1)

        def times(v: Tensor) -> Tensor:
            z = p * self._scores(s, v)
            return self._pull_back(s, z - p * z.sum(1, keepdim=True)) + self.weight_decay * v

        return times

    def _minimise(self, s: _Samples, tolerance: float) -> Tensor:
        require(
            self.weight_decay > 0,
            "LogisticRegression: without weight decay the optimum need not exist or be unique,"
            " so weight_decay must be above 0.",
        )
        x = torch.zeros(self.dimension, dtype=torch.float64)
        for _ in range(100):
            gradient = self._gradient(s, x)
            norm = float(gradient.norm())
            if norm <= tolerance:
                return x
            # An inexact Newton step whose accuracy grows as the gradient shrinks: this keeps
            # quadratic convergence at the least cost.
            step = _conjugate_gradients(self._hessian(s, x), -gradient, min(0.1, norm) * norm)
            value, slope, damping = self._value(s, x), float(gradient @ step), 1.0
            rounding = 1e-15 * max(1.0, abs(value))
            while self._value(s, x + damping * step) > value + 1e-4 * damping * slope + rounding:
                damping /= 2
            x = x + damping * step
        raise UndriftError(
            f"LogisticRegression: the gradient norm stays at {norm:.1e}, above the tolerance"
            f" {tolerance:g}; scale the features down or allow a larger tolerance."
        )


class _LogisticLoss(ClientLoss):
    """One client's loss while a solver works on it."""

    def __init__(self, problem: LogisticRegression, samples: _Samples):
        self.samples = len(samples.labels)
        self._problem = problem
        self._all = samples

    def gradient(self, x: Tensor, batch: Batch = None) -> Tensor:
        chosen = self._all
        if batch is not None:
            rows = torch.from_numpy(batch)
            share = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
            chosen = _Samples(chosen.inputs[rows], chosen.labels[rows], share)
        return self._problem._gradient(chosen, x)


def _conjugate_gradients(
    times: Callable[[Tensor], Tensor], rhs: Tensor, tolerance: float
) -> Tensor:
    """v with |Av − rhs| ≤ tolerance, or the result after 2P steps if they do not suffice."""
    v, residual, direction = torch.zeros_like(rhs), rhs, rhs
    square = float(rhs @ rhs)
    for _ in range(2 * len(rhs)):
        if square <= tolerance**2:
            break
        image = times(direction)
        length = square / float(direction @ image)
        v, residual = v + length * direction, residual - length * image
        square, before = float(residual @ residual), square
        direction = residual + square / before * direction
    return v


def _check(
    features: Sequence[Tensor], labels: Sequence[Tensor], classes: int, weight_decay: float
) -> None:
    require(
        len(features) == len(labels) > 0,
        f"LogisticRegression: there are features of {len(features)} clients and labels of"
        f" {len(labels)}, but every client needs both, and there must be at least one client.",
    )
    require(
        classes >= 2 and weight_decay >= 0,
        f"LogisticRegression: classes = {classes} and weight_decay = {weight_decay:g},"
        " but it needs at least 2 classes and a weight decay of at least 0.",
    )
    width = features[0].shape[-1]
    for k, (u, y) in enumerate(zip(features, labels, strict=True)):
        who = f"LogisticRegression: client {k} has"
        require(
            u.ndim == 2 and u.shape[1] == width and y.shape == u.shape[:1],
            f"{who} features of shape {list(u.shape)} and labels of shape {list(y.shape)},"
            f" but they must be [n, {width}] and [n].",
        )
        require(len(y) > 0, f"{who} no samples, but every client needs at least one.")
        require(
            not y.is_floating_point() and int(y.min()) >= 0 and int(y.max()) < classes,
            f"{who} labels from {y.min()} to {y.max()},"
            f" but they must be whole numbers in 0 … {classes - 1}.",
        )
