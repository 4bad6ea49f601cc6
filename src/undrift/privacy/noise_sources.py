"""Sources of Gaussian noise: keyed in a simulation, the operating system's in a deployment."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from undrift.utils.keys import key

LEAST_AHEAD, MOST_AHEAD = 10_000, 4_000_000
"""How many numbers are drawn ahead for the next round: fewer are drawn at once, and more would take
much memory."""


class NoiseSource(ABC):
    """Gives standard normal numbers in double precision."""

    @abstractmethod
    def normal(self, purpose: str, round: int, size: int) -> Tensor:
        """`size` independent numbers from N(0, 1), for one purpose of a round."""


class KeyedNoise(NoiseSource):
    """Noise that is a function of (seed, purpose, round): the same in every repetition.

    Whoever knows the seed can subtract it. A simulation with a published seed has no guarantee; it
    shows how well a method learns under one.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self._ahead: dict[tuple[str, int, int], Future[Tensor]] = {}
        self._drawer: ThreadPoolExecutor | None = None

    def normal(self, purpose: str, round: int, size: int) -> Tensor:
        drawn = self._ahead.pop((purpose, round, size), None)
        found = self._draw(purpose, round, size) if drawn is None else drawn.result()
        if LEAST_AHEAD <= size <= MOST_AHEAD:
            # While the clients of the next round train, a thread draws that round's noise.
            self._drawer = self._drawer or ThreadPoolExecutor(1)
            following = purpose, round + 1, size
            self._ahead = {each: v for each, v in self._ahead.items() if each[1] >= round}
            self._ahead[following] = self._drawer.submit(self._draw, *following)
        return found

    def _draw(self, purpose: str, round: int, size: int) -> Tensor:
        # The fastest of NumPy's generators, twice as fast as torch's in double precision.
        bits = np.random.SFC64(key(self.seed, f"privacy {purpose}", round))
        return torch.from_numpy(np.random.Generator(bits).standard_normal(size))


class NoNoise(NoiseSource):
    """No noise at the server, because the clients have added it to what they sent."""

    def normal(self, purpose: str, round: int, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.float64)


class SystemNoise(NoiseSource):
    """Noise from the operating system's generator, which nobody can repeat.

    The polar form of Box and Muller's transform turns pairs of uniform numbers of 53 bits into
    pairs of normal ones. They are floating-point numbers: an attacker who sees all bits of a
    release may learn more than from real numbers (Mironov, CCS 2012).
    """

    def normal(self, purpose: str, round: int, size: int) -> Tensor:
        pairs = -(-size // 2)
        bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64)
        # In (0, 1]: the logarithm of 0 would be infinite.
        uniform = ((bits >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
        radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
        found = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return torch.from_numpy(found[:size])
