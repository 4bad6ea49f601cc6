"""Weights of linear layers that are not formed: after few small batches their move has a low rank.

After some steps of plain SGD from a shared start W₀, client k's weight is

    W_k = a_k·W₀ − b_k·K − L_kᵀR_k

with the inputs R_k and the scaled output gradients L_k of all its batches so far, and the constant
K of the local problem, which clients share. Products with W_k need a product with W₀, which is one
for all clients and reads W₀ once, and products of batches with batches. The sum of the clients'
moves is one product of all their batches. So no client's weight is ever read, changed or written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.utils.products import pays, product, shared_product

PIECE_BYTES = 1 << 20
"""Sums are computed in pieces of at most this size, which stay in a core's cache."""

DOT_ROWS = 64
"""Rows of a weight that are converted to double precision at a time."""


def factoring_pays(rows: int, outputs: int, inputs: int) -> bool:
    """Whether a weight should stay unformed over batches with this many rows in all.

    It saves reading and writing the weight in every step, and costs products of batches with
    batches. These are at most half as much arithmetic as the products with the weight if this
    holds.
    """
    return rows * (outputs + inputs) <= outputs * inputs


class FactoredWeight:
    """The weights of a linear layer of several clients, `[C, outputs, inputs]`, as factors.

    Parameters
    ----------
    start
        W₀, `[outputs, inputs]`
    constant
        K, of the same shape; None for zero
    clients, rows
        number of clients, and of rows of all batches of a client together
    moves_by_itself
        whether weights move without a gradient, by decay, a pull or the constant
    ragged
        whether some clients take fewer steps than others
    inputs
        the layer's inputs of all batches, `[C, rows, inputs]`, if they are known beforehand
    """

    def __init__(
        self,
        start: Tensor,
        constant: Tensor | None,
        clients: int,
        rows: int,
        moves_by_itself: bool,
        ragged: bool,
        inputs: Tensor | None = None,
    ):
        outputs, width = start.shape
        self.numbers, self.shape = start.numel(), start.shape
        self._start, self._constant = start, constant
        # Rows of steps that a client does not take must count as zero.
        new = start.new_zeros if ragged else start.new_empty
        self._left = new(clients, rows, outputs)
        self._right = new(clients, rows, width) if inputs is None else inputs
        self._used = 0
        self._a = self._b = self._base = self._constant_base = None
        if inputs is not None:
            self._base = shared_product(inputs, start)
        elif moves_by_itself:
            self._base = new(clients, rows, outputs)
        if moves_by_itself:
            self._a, self._b = start.new_ones(clients, 1, 1), start.new_zeros(clients, 1, 1)
        if constant is not None:
            self._constant_base = new(clients, rows, outputs)
            if inputs is not None:
                self._constant_base = shared_product(inputs, constant)
        self._inputs_known = inputs is not None

    def forward(self, x: Tensor) -> Tensor:
        """x_k W_kᵀ for inputs `[C, B, inputs]`; x is not read if all inputs were known."""
        C, batch = x.shape[:2]
        now, past = slice(self._used, self._used + batch), slice(self._used)
        if self._inputs_known:
            assert self._base is not None
            y = self._base[:C, now]
        else:
            self._right[:C, now] = x
            y = shared_product(x, self._start)
            if self._base is not None:
                self._base[:C, now] = y
        if self._a is not None and self._b is not None:
            y = y * self._a[:C]
            if self._constant is not None and self._constant_base is not None:
                if not self._inputs_known:
                    self._constant_base[:C, now] = shared_product(x, self._constant)
                y.sub_(self._constant_base[:C, now] * self._b[:C])
        if not self._used:
            return y
        batches = torch.bmm(self._right[:C, now], self._right[:C, past].transpose(1, 2))
        return torch.baddbmm(y, batches, self._left[:C, past], alpha=-1)

    def backward(self, gradient: Tensor) -> Tensor:
        """g_k W_k, the gradient of the inputs, for that of the outputs `[C, B, outputs]`."""
        C, past = len(gradient), slice(self._used)
        back = shared_product(gradient, self._start.t())
        if self._a is not None and self._b is not None:
            back.mul_(self._a[:C])
            if self._constant is not None:
                back.sub_(shared_product(gradient, self._constant.t()).mul_(self._b[:C]))
        if self._used:
            batches = torch.bmm(gradient, self._left[:C, past].transpose(1, 2))
            back.baddbmm_(batches, self._right[:C, past], alpha=-1)
        return back

    def step(self, gradient: Tensor, rate: float, decay: Tensor | float, pull: float) -> None:
        """W ← (1 − η·decay)W − η·gᵀx − η·K + η·pull·W₀, with x of the last `forward`."""
        C, batch = gradient.shape[:2]
        if self._a is not None and self._b is not None:
            kept = 1 - rate * (decay.view(-1, 1, 1) if isinstance(decay, Tensor) else decay)
            self._left[:C, : self._used].mul_(kept)
            self._a[:C] = self._a[:C] * kept + rate * pull
            self._b[:C] = self._b[:C] * kept + rate
        now = slice(self._used, self._used + batch)
        torch.mul(gradient, rate, out=self._left[:C, now])
        self._used += batch

    def form(self, out: Tensor) -> None:
        """Write the weights to `out`, `[C, outputs, inputs]`."""
        out.copy_(self._start)
        if self._a is not None and self._b is not None:
            out.mul_(self._a)
            if self._constant is not None:
                out.sub_(self._constant * self._b)
        out.baddbmm_(self._left.transpose(1, 2), self._right, alpha=-1)

    def summed_moves(self, weights: Tensor, out: Tensor, add: bool = False) -> None:
        """Write Σ w_k·(W_k − W₀) to `out`, `[outputs, inputs]` in double precision, or add it."""
        w = weights.to(self._left.dtype).view(-1, 1, 1)
        left, right = (self._left * -w).flatten(0, 1).t(), self._right.flatten(0, 1)
        large = pays(len(left), len(right), right.shape[1], left)
        start = constant = 0.0
        if self._a is not None and self._b is not None:
            start, constant = float((w * (self._a - 1)).sum()), -float((w * self._b).sum())
        # By pieces of rows: one is still in the cache when it is converted to double precision.
        pieces = -(-self.numbers * left.element_size() // PIECE_BYTES)
        for rows in torch.arange(len(left)).tensor_split(pieces):
            some = slice(int(rows[0]), int(rows[-1]) + 1)
            own = left[some]
            total = product(own.contiguous(), right.t()) if large else own @ right
            if start:
                total.add_(self._start[some], alpha=start)
            if constant and self._constant is not None:
                total.add_(self._constant[some], alpha=constant)
            if add:
                out[some] += total
            else:
                out[some] = total

    def square_moves(self) -> Tensor:
        """|W_k − W₀|² of each client, `[C]` in double precision, from products of batches."""
        L, R = self._left, self._right
        # |LᵀR|² = ⟨LLᵀ, RRᵀ⟩
        found = _dots(torch.bmm(L, L.transpose(1, 2)), torch.bmm(R, R.transpose(1, 2)))
        if self._a is None or self._b is None or self._base is None:
            return found
        a, b = (self._a - 1).double().flatten(), self._b.double().flatten()
        W, K = self._start, self._constant
        found += a**2 * _dot(W, W) - 2 * a * _dots(self._base, L)
        if K is not None and self._constant_base is not None:
            found += b**2 * _dot(K, K) - 2 * a * b * _dot(W, K)
            found += 2 * b * _dots(self._constant_base, L)
        return found


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """The inner product of two matrices in double precision, without a copy of either in it."""
    pairs = zip(one.split(DOT_ROWS), other.split(DOT_ROWS), strict=True)
    return torch.stack([(a.double() * b.double()).sum() for a, b in pairs]).sum()


def _dots(one: Tensor, other: Tensor) -> Tensor:
    """The inner product of each client's matrices, `[C]` in double precision."""
    return (one * other).sum((1, 2), dtype=torch.float64)
