"""Vectors of several clients that are not formed, because a fold needs only their weighted sums.

An engine that can sum the clients' moves without writing down every client's model hands a method
`UnformedRows` in place of the models `[C, P]`. Most methods only subtract what they sent, or scale
the result; then a chunk's models are read once, or never exist. A method that does anything else
with them raises an error here, and the engine forms the models for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from undrift.core.problem import Number


class Moves(ABC):
    """The moves x_k − c of several clients from a common point c."""

    center: Tensor
    """c, `[P]`"""
    clients: int

    @abstractmethod
    def sum(self, weights: Tensor) -> Tensor:
        """Σ w_k·(x_k − c), `[P]` in double precision, in memory of its own."""

    def add_sum(self, weights: Tensor, total: Tensor) -> None:
        """Add Σ w_k·(x_k − c) to a vector in double precision."""
        total.add_(self.sum(weights))

    @abstractmethod
    def squares(self) -> Tensor:
        """|x_k − c|² of each client, `[C]` in double precision."""


class UnformedRows:
    """φ_k·(x_k − c) + Σ_i β_ki·s_i for each client k: a vector that is affine in its model x_k.

    Parameters
    ----------
    moves
        the moves x_k − c
    factor
        φ, a number or one for each client, `[C, 1]`
    shared
        the vectors s_i, `[P]`, with their factors β_i
    """

    ndim = 2

    def __init__(
        self, moves: Moves, factor: Number = 1.0, shared: tuple[tuple[Tensor, Number], ...] = ()
    ):
        self._moves = moves
        self._factor = factor
        self._shared = shared

    @staticmethod
    def models(moves: Moves) -> UnformedRows:
        """The models x_k = (x_k − c) + c."""
        return UnformedRows(moves, 1.0, ((moves.center, 1.0),))

    @property
    def center(self) -> Tensor:
        """The point c from which the moves are measured, `[P]`."""
        return self._moves.center

    @property
    def dtype(self) -> torch.dtype:
        return self._moves.center.dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self._moves.clients, *self._moves.center.shape))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over clients with weights `[C]`, `[P]` in double precision."""
        total = self._moves.sum(weights * _flat(self._factor, weights))
        for vector, factor in self._shared:
            total.add_(vector, alpha=float((weights * _flat(factor, weights)).sum()))
        return total

    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> None:
        """Add the sum over clients with weights `[C]` to a vector in double precision."""
        self._moves.add_sum(weights * _flat(self._factor, weights), total)
        for vector, factor in self._shared:
            total.add_(vector, alpha=float((weights * _flat(factor, weights)).sum()))

    def norms(self) -> Tensor:
        """The norm of each client's vector, `[C, 1]` in double precision, if it is its move."""
        moves = self.whole_moves()
        if moves is None:
            raise TypeError("Only the norms of moves are known.")
        return moves.squares().sqrt().unsqueeze(1)

    def finite(self) -> bool:
        """Whether all moves are finite; it needs their norms."""
        return bool(self._moves.squares().isfinite().all())

    def same_as(self, other: UnformedRows) -> bool:
        """Whether the vectors of both are known to be equal."""
        mine = self.whole_moves()
        return mine is not None and mine is other.whole_moves()

    def whole_moves(self) -> Moves | None:
        """The moves, if the vectors are the moves and nothing else; None otherwise."""
        return self._moves if not self._shared and _always_one(self._factor) else None

    def __add__(self, other: object) -> UnformedRows:
        return self._plus(other, 1.0)

    __radd__ = __add__

    def __sub__(self, other: object) -> UnformedRows:
        return self._plus(other, -1.0)

    def __rsub__(self, other: object) -> UnformedRows:
        return (-self)._plus(other, 1.0)

    def __neg__(self) -> UnformedRows:
        return self._times(-1.0)

    def __mul__(self, other: Number) -> UnformedRows:
        return self._times(other) if self._is_number(other) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> UnformedRows:
        return self._times(1 / other) if self._is_number(other) else NotImplemented

    def _plus(self, other: object, factor: float) -> UnformedRows:
        if not isinstance(other, Tensor) or other.shape != self._moves.center.shape:
            return NotImplemented
        found: list[tuple[Tensor, Number]] = []
        for vector, own in self._shared:
            if vector is other:
                # x_k − c: the factors cancel exactly, and c is not added and subtracted again.
                own, factor = own + factor, 0.0
            if isinstance(own, Tensor) or own != 0.0:
                found.append((vector, own))
        if factor:
            found.append((other, factor))
        return UnformedRows(self._moves, self._factor, tuple(found))

    def _times(self, number: Number) -> UnformedRows:
        shared = tuple((vector, own * number) for vector, own in self._shared)
        return UnformedRows(self._moves, self._factor * number, shared)

    def _is_number(self, value: object) -> bool:
        if isinstance(value, Tensor):
            return value.ndim == 0 or value.shape == (self._moves.clients, 1)
        return isinstance(value, int | float)


def _flat(value: Number, like: Tensor) -> Tensor | float:
    """Numbers of clients, `[C]` in the dtype of `like`."""
    return value.to(like.dtype).reshape(-1) if isinstance(value, Tensor) else value


def _always_one(value: Number) -> bool:
    return bool((torch.as_tensor(value) == 1.0).all())
