"""Measure how clients' gradients differ at the initial model, and the curvature of their losses.

Large federations and large models are measured on a sample of clients and data. Its size depends on
a count of floating-point operations, not on time, so that every machine gives the same answer.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from undrift.advice.federation import FederationSetup
from undrift.core.losses import Losses
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError
from undrift.utils.keys import generator

SAMPLED_CLIENTS = 100
"""Clients for the dissimilarity: with this many it is known to a few per cent."""
SAMPLES_PER_CLIENT = 200
"""The most samples of each client."""
CURVATURE_CLIENTS = 8
"""Clients for the curvature."""
LEAST_CLIENTS = 5
"""The fewest clients for the dissimilarity, however large the model."""
OPERATIONS = 1e11
"""Floating-point operations of each of the two measurements: about ten seconds on one core."""
PREFERRED_SAMPLES = 16
"""Samples per client below which rather the number of clients is reduced."""
DOUBLE_PRECISION_OPERATIONS = 1e7
"""Models with fewer floating-point operations per sample are measured in double precision."""
POWER_ITERATIONS = 20
"""The most steps of the power method, each one gradient; a third of it for large models."""
POWER_TOLERANCE = 0.01
"""The power method ends when the curvature changes by less than this share."""


@dataclass(frozen=True)
class GradientFacts:
    """The dissimilarity of the clients' gradients at the initial model."""

    clients: int
    samples: int
    """the number of clients and samples it was measured on"""
    everything: bool
    """whether these are all clients and samples"""
    ratio: float
    """B² = Σ q_k|∇f_k|²/|∇F|²: 1 where all gradients are equal"""
    variance: float
    """σ_g² = Σ q_k|∇f_k − ∇F|²"""
    square_mean: float
    """|∇F|²"""
    chance: float
    """the share of σ_g² that clients with random samples of one population would also have"""
    beyond_chance: float
    """B² without that share"""


@dataclass(frozen=True)
class Curvature:
    """The smoothness L: the largest curvature of the clients' losses at the initial model."""

    L: float
    clients: int
    samples: int


def measure_gradients(federation: FederationSetup) -> GradientFacts:
    """B² and σ_g² at the initial model, and how much of them chance explains."""
    room = _room(federation)
    sample = _sample(federation, room, SAMPLED_CLIENTS, least=LEAST_CLIENTS)
    q = sample.weights
    mean = torch.zeros_like(sample.x, dtype=torch.float64)
    square = variance = weight = 0.0
    # Corrections by the noise of each client's gradient, which its two halves of samples reveal.
    extra = chance = chance_of_mean = 0.0
    for k, share in enumerate(q.tolist()):
        gradient, noise = sample.gradient(k)
        weight += share
        apart = gradient - mean
        mean += share / weight * apart  # Welford's update, as in theory.dissimilarity
        square += share * float(gradient.square().sum())
        variance += share * (1 - share / weight) * float(apart.square().sum())
        used, held = sample.used[k], sample.held[k]
        of_data = noise * used / held  # the noise of the gradient over all samples of the client
        extra += share * (1 - share) * (noise - of_data)
        chance += share * (1 - share) * of_data
        chance_of_mean += share**2 * noise
    square_mean = float(mean.square().sum())
    variance = max(0.0, variance - extra)
    beyond = variance - chance
    # The noise is an estimate too: a difference within its error is not heterogeneity.
    sure = beyond > 2 * chance / math.sqrt(len(q)) + 1e-12 * square
    net = max(square_mean - chance_of_mean, 0.0)
    return GradientFacts(
        clients=len(q),
        samples=sum(sample.used),
        everything=sample.everything,
        ratio=_ratio(variance, square_mean),
        variance=variance,
        square_mean=square_mean,
        chance=chance,
        beyond_chance=_ratio(beyond, net) if sure else 1.0,
    )


def measure_curvature(federation: FederationSetup, weight_decay: float = 0.0) -> Curvature:
    """The largest |∇²f_k(x⁰)| of some clients, by the power method on gradient differences."""
    room = _room(federation)
    steps = int(min(POWER_ITERATIONS, max(POWER_ITERATIONS // 3, room / 100)))
    sample = _sample(federation, room / steps, CURVATURE_CLIENTS, least=1)
    largest = 0.0
    for k in range(len(sample.weights)):
        start = torch.from_numpy(
            generator(federation.seed, "advice: direction", 0, k).normal(size=len(sample.x))
        )
        found = _curvature(partial(sample.at, k), sample.x, start, steps)
        largest = max(largest, found)
    return Curvature(largest + weight_decay, len(sample.weights), sum(sample.used))


def _ratio(variance: float, square_mean: float) -> float:
    if square_mean > 0:
        return 1 + max(variance, 0.0) / square_mean
    return math.inf if variance > 0 else 1.0


def _curvature(
    gradient: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor, steps: int
) -> float:
    precision = torch.finfo(x.dtype).eps
    far = precision ** (1 / 3) * max(1.0, float(x.norm()))
    base = gradient(x)
    found = 0.0
    v = direction / direction.norm()
    for _ in range(steps):
        product = (gradient(x + far * v.to(x)) - base) / far
        size = float(product.norm())
        if size == 0 or not math.isfinite(size):
            return found
        v = product / size
        if abs(size - found) <= POWER_TOLERANCE * size:
            return size
        found = size
    return found


class ClientSample:
    """Some clients with some of their samples, in two halves from which the noise is estimated."""

    def __init__(
        self,
        losses: Losses,
        halves: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        held: Sequence[int],
        weights: Tensor,
        everything: bool,
    ):
        self._losses = losses
        self._halves = halves
        self._sizes = sizes
        self.used = [sum(own) for own in sizes]
        self.held = held
        self.weights = weights / weights.sum()
        self.everything = everything
        self.x = losses.initial()

    def at(self, k: int, x: Tensor) -> Tensor:
        """The gradient of client k at x."""
        return self.gradient(k, x)[0]

    def gradient(self, k: int, x: Tensor | None = None) -> tuple[Tensor, float]:
        """The gradient of client k at x, and the expected square of its noise."""
        at = self.x if x is None else x
        parts = [self._losses.gradient(half, at).double() for half in self._halves[k]]
        if len(parts) == 1:
            return parts[0], 0.0
        (a, b), (n_a, n_b) = parts, self._sizes[k]
        n = n_a + n_b
        # |a − b|² is s²(1/n_a + 1/n_b) on average, and the mean of all has s²/n.
        noise = float((a - b).square().sum()) * n_a * n_b / n**2
        return (n_a * a + n_b * b) / n, noise


def _room(federation: FederationSetup) -> float:
    """The number of sample gradients that may be computed; infinite for analytic problems."""
    losses = federation.losses
    return OPERATIONS / operations(losses) if isinstance(losses, ModuleLosses) else math.inf


def _sample(federation: FederationSetup, room: float, clients: int, least: int) -> ClientSample:
    """Random clients with random samples, as many as `room` sample gradients allow."""
    losses, weights = federation.losses, federation.losses.weights(federation.objective)
    number = len(losses)
    rng = generator(federation.seed, "advice: sample")
    clients = int(min(clients, number, max(least, room / PREFERRED_SAMPLES)))
    chosen = sorted(rng.permutation(number)[:clients].tolist())
    if not isinstance(losses, ModuleLosses):
        sizes = [[int(losses.sizes[k])] for k in chosen]
        held = [own[0] for own in sizes]
        kept = [[k] for k in chosen]
        return ClientSample(losses, kept, sizes, held, weights[chosen], len(chosen) == number)
    data = losses.data
    samples = int(min(SAMPLES_PER_CLIENT, max(PREFERRED_SAMPLES // 4, room / clients)))
    pieces: list[Tensor] = []
    halves: list[list[int]] = []
    sizes = []
    for k in chosen:
        own = data.train.of(k)
        picked = own[torch.from_numpy(rng.permutation(len(own))[:samples]).to(own.device)]
        middle = (len(picked) + 1) // 2
        both = [half for half in (picked[:middle], picked[middle:]) if len(half)]
        halves.append([len(pieces) + place for place in range(len(both))])
        sizes.append([len(half) for half in both])
        pieces += both
    held = [int(data.train.sizes[k]) for k in chosen]
    everything = clients == number and sum(held) == sum(sum(own) for own in sizes)
    small = _losses(losses, pieces, double=operations(losses) < DOUBLE_PRECISION_OPERATIONS)
    return ClientSample(small, halves, sizes, held, weights[chosen], everything)


def _losses(losses: ModuleLosses, pieces: Sequence[Tensor], double: bool) -> ModuleLosses:
    """The model's losses on some rows of the data, with one client for each piece."""
    train = losses.data.train
    rows = torch.cat(list(pieces))
    bounds = torch.tensor([0, *(len(piece) for piece in pieces)]).cumsum(0)
    part = Part(*train.samples(rows), torch.arange(len(rows)), bounds)
    data = FederatedData(part, name=losses.data.name, classes=losses.data.classes)
    module, loss, *_ = losses.constructor_arguments()
    with warnings.catch_warnings():
        # Nothing is trained here, so it does not matter that training would change buffers.
        warnings.filterwarnings("ignore", message="The model has buffers")
        if double:
            with suppress(UndriftError):  # not every model works in double precision
                exact = deepcopy(module).double()
                return ModuleLosses(exact, data, loss, device=losses.device, step=losses.step)
        return ModuleLosses(module, data, loss, device=losses.device, step=losses.step)


def operations(losses: ModuleLosses) -> float:
    """The approximate floating-point operations of one sample's gradient.

    A layer uses each parameter once for every position of its output in the forward pass, and
    twice as often in the backward pass.
    """
    module: nn.Module = losses.flat.module
    part = losses.train_part
    x, y = part.samples(part.rows[:1])
    counted = 0

    def count(layer: nn.Module, inputs: object, output: object) -> None:
        nonlocal counted
        result = output[0] if isinstance(output, tuple) else output
        own = list(layer.parameters(recurse=False))
        if own and isinstance(result, Tensor):
            images = max(each.ndim for each in own) > 2  # a convolution's channels come first
            width = result.shape[1 if images else -1]
            counted += 2 * sum(each.numel() for each in own) * (result.numel() // max(1, width))

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    try:
        module.eval()
        with torch.no_grad():
            losses.criterion.loss_of(module, x, y)
    finally:
        for hook in hooks:
            hook.remove()
    return 3.0 * max(counted, 2 * losses.dimension)
