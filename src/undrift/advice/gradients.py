"""How the clients' gradients differ at the initial model, and how curved their losses are.

Large federations and large models are measured on a sample of the clients and of their samples,
chosen by a count of floating-point operations: the answer is the same on every machine.
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

CLIENTS = 100
"""From so many clients the dissimilarity is known to a few per cent."""
SAMPLES = 200
"""… and of each so many samples, at most."""
CURVED = 8
"""The curvature is measured for so many clients."""
LEAST = 5
"""The dissimilarity is measured for no fewer clients, however large the model."""
OPERATIONS = 1e11
"""The floating-point operations of each of the two measurements: some ten seconds on one core."""
FEW = 16
"""Fewer clients rather than fewer samples of each, as long as there are enough clients."""
CHEAP = 1e7
"""A model with fewer operations per sample is measured in double precision."""
ITERATIONS = 20
"""Steps of the power method, at most: each is one gradient. A third of it for large models."""
SETTLED = 0.01
"""It ends when the curvature changes by less than this share."""


@dataclass(frozen=True)
class GradientFacts:
    """How the clients' gradients differ at the initial model."""

    clients: int
    samples: int
    """from how many clients and samples this was measured"""
    everything: bool
    """whether these are all there are"""
    ratio: float
    """B² = Σ q_k|∇f_k|²/|∇F|²: 1 where all gradients are equal"""
    variance: float
    """σ_g² = Σ q_k|∇f_k − ∇F|²"""
    square_mean: float
    """|∇F|²"""
    chance: float
    """the part of σ_g² that samples drawn at random from one population would have as well"""
    beyond_chance: float
    """B² without that part"""


@dataclass(frozen=True)
class Curvature:
    """The smoothness L: the largest curvature of the clients' losses at the initial model."""

    L: float
    clients: int
    samples: int


def measure_gradients(federation: FederationSetup) -> GradientFacts:
    """B² and σ_g² at the initial model, and how much of them chance explains."""
    room = _room(federation)
    sample = _sample(federation, room, CLIENTS, least=LEAST)
    q = sample.weights
    mean = torch.zeros_like(sample.x, dtype=torch.float64)
    square = variance = weight = 0.0
    # What one client's own samples say about the noise of its gradient, per client.
    extra = chance = chance_of_mean = 0.0
    for k, share in enumerate(q.tolist()):
        gradient, noise = sample.gradient(k)
        weight += share
        apart = gradient - mean
        mean += share / weight * apart  # Welford's update, as in theory.dissimilarity
        square += share * float(gradient.square().sum())
        variance += share * (1 - share / weight) * float(apart.square().sum())
        used, held = sample.used[k], sample.held[k]
        of_data = noise * used / held  # the noise of the mean over all samples it holds
        extra += share * (1 - share) * (noise - of_data)
        chance += share * (1 - share) * of_data
        chance_of_mean += share**2 * noise
    square_mean = float(mean.square().sum())
    variance = max(0.0, variance - extra)
    beyond = variance - chance
    # The noise is itself an estimate: what it could be by bad luck is no heterogeneity either.
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
    """The largest |∇²f_k(x⁰)| of some clients, by the power method on differences of gradients."""
    room = _room(federation)
    steps = int(min(ITERATIONS, max(ITERATIONS // 3, room / 100)))
    sample = _sample(federation, room / steps, CURVED, least=1)
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
        if abs(size - found) <= SETTLED * size:
            return size
        found = size
    return found


class Sample:
    """Some clients with some of their samples, each in two halves that tell its noise."""

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
        """A client's gradient at a model."""
        return self.gradient(k, x)[0]

    def gradient(self, k: int, x: Tensor | None = None) -> tuple[Tensor, float]:
        """A client's gradient, and the expected square of its noise."""
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
    """Of how many samples the gradient may be computed; without end where they cost nothing."""
    losses = federation.losses
    return OPERATIONS / operations(losses) if isinstance(losses, ModuleLosses) else math.inf


def _sample(federation: FederationSetup, room: float, clients: int, least: int) -> Sample:
    """Clients drawn at random with samples drawn at random, as many as there is room for."""
    losses, weights = federation.losses, federation.losses.weights(federation.objective)
    number = len(losses)
    rng = generator(federation.seed, "advice: sample")
    clients = int(min(clients, number, max(least, room / FEW)))
    chosen = sorted(rng.permutation(number)[:clients].tolist())
    if not isinstance(losses, ModuleLosses):
        sizes = [[int(losses.sizes[k])] for k in chosen]
        held = [own[0] for own in sizes]
        kept = [[k] for k in chosen]
        return Sample(losses, kept, sizes, held, weights[chosen], len(chosen) == number)
    data = losses.data
    samples = int(min(SAMPLES, max(FEW // 4, room / clients)))
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
    small = _losses(losses, pieces, double=operations(losses) < CHEAP)
    return Sample(small, halves, sizes, held, weights[chosen], everything)


def _losses(losses: ModuleLosses, pieces: Sequence[Tensor], double: bool) -> ModuleLosses:
    """The model's losses on some rows of the data, a client for each piece."""
    train = losses.data.train
    rows = torch.cat(list(pieces))
    bounds = torch.tensor([0, *(len(piece) for piece in pieces)]).cumsum(0)
    part = Part(train.x[rows], train.y[rows], torch.arange(len(rows)), bounds)
    data = FederatedData(part, name=losses.data.name, classes=losses.data.classes)
    module, loss, _ = losses.constructor_arguments()
    with warnings.catch_warnings():
        # Nothing is trained here, so it does not matter that training would change buffers.
        warnings.filterwarnings("ignore", message="The model has buffers")
        if double:
            with suppress(UndriftError):  # not every model works in double precision
                return ModuleLosses(deepcopy(module).double(), data, loss, device=losses.device)
        return ModuleLosses(module, data, loss, device=losses.device)


def operations(losses: ModuleLosses) -> float:
    """The floating-point operations of one sample's gradient, about.

    A layer multiplies all of its parameters once for every place of its output, forwards, and
    twice as often backwards.
    """
    module: nn.Module = losses.flat.module
    x = losses.train_part.x[losses.train_part.rows[:1]]
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
            module(x)
    finally:
        for hook in hooks:
            hook.remove()
    return 3.0 * max(counted, 2 * losses.dimension)
