"""`Compressor`: the base class of operators that make a vector smaller to send.

A compressor says what the receiver gets in place of a vector, and how that travels as tensors.
Simulations use the first only; deployments use both, and both give the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from undrift.utils.errors import UndriftError


class InvalidEncoding(UndriftError):
    """Tensors that no vector has as its encoding."""


class Layout(NamedTuple):
    """The type and the shape of one tensor of an encoding."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The bytes of the tensor."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


DENSE = "values"
"""The only tensor of an encoding that is the vector itself."""


class Compressor(ABC):
    """An operator that makes vectors smaller to send. Subclass it to write your own.

    `undrift verify` checks a compressor of your own against what it declares.

    Attributes
    ----------
    unbiased
        whether the mean of what the receiver gets is the vector, if `damped` is False
    additive
        whether all clients of a round send the same coordinates, as they are: then the sum of their
        encodings is the encoding of the sum, which secure aggregation needs
    """

    unbiased: bool = False
    additive: bool = False

    @abstractmethod
    def approximate(self, rows: Tensor, keys: Sequence[int], damped: bool = False) -> Tensor:
        """What the receiver gets in place of each row of `rows`, `[C, P]`.

        Random numbers of a row are a function of its key alone. With `damped`, an unbiased operator
        is divided by 1 + ω, so that its error is smaller than the vector: error feedback and
        compressed differences need that.
        """

    @abstractmethod
    def layout(self, size: int, dtype: torch.dtype) -> dict[str, Layout]:
        """The tensors that travel for a vector of `size` numbers."""

    @abstractmethod
    def encode(self, vector: Tensor, key: int) -> dict[str, Tensor]:
        """The tensors that travel for a vector `[P]` that `approximate` or `representable` gave."""

    @abstractmethod
    def decode(
        self, parts: Mapping[str, Tensor], size: int, dtype: torch.dtype, key: int
    ) -> Tensor:
        """The vector of an encoding with the right layout; `InvalidEncoding` if it has none."""

    def variance(self, size: int) -> float:
        """ω: the variance of an unbiased operator is at most ω|v|²; 0 if it is biased."""
        return 0.0

    @property
    def lossless(self) -> bool:
        """Whether every vector arrives unchanged."""
        return False

    def representable(self, rows: Tensor) -> Tensor:
        """The nearest vectors with an encoding, for rows that were scaled after `approximate`."""
        return rows

    def encoded_bytes(self, size: int, dtype: torch.dtype) -> int:
        """The bytes that travel for a vector of `size` numbers."""
        return sum(each.bytes for each in self.layout(size, dtype).values())

    def damping(self, size: int) -> float:
        """1/(1 + ω)"""
        return 1 / (1 + self.variance(size))


def rows_of(vectors: Tensor) -> Tensor:
    """The vectors as rows, `[C, P]`, also if there is one, `[P]`."""
    return vectors if vectors.ndim == 2 else vectors[None]


def random_rows(keys: Sequence[int], like: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), one row of the width of `like` for each key."""
    width = like.shape[-1]
    rows = [
        torch.rand(width, generator=torch.Generator().manual_seed(key % 2**63), dtype=like.dtype)
        for key in keys
    ]
    return torch.stack(rows).to(like.device)


def require_encoding(condition: bool, why: str) -> None:
    """Raise `InvalidEncoding` with a reason unless a condition holds."""
    if not condition:
        raise InvalidEncoding(why)
