"""Sums and norms of the clients' moves in one pass over their models.

The models of a chunk, `[C, P]`, are larger than the cache. Written as operations on whole chunks,
difference, norm and weighted sum would each read and write all of it; here a piece of columns goes
through all of them while it is in the cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from undrift.core.replies import accumulator_dtype
from undrift.core.unformed import Moves
from undrift.engines.compiled.dense import MoveSums
from undrift.engines.vectorised.factored import FactoredWeight

PIECE_NUMBERS = 40_000
"""Numbers that go through all operations at a time: in single and double precision together they
fill half of a core's cache of one megabyte."""

MOST_SPARE = 8
"""Vectors that are kept for use again, at most."""


class SpareVectors:
    """Vectors whose contents nobody needs any more, to be used again, by any thread.

    The sum of a large model's moves is new memory for every chunk. The system would map and zero
    its pages each time, which takes longer than to compute the sum.
    """

    def __init__(self) -> None:
        self._spare: deque[Tensor] = deque(maxlen=MOST_SPARE)

    def take(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised vector."""
        try:
            found = self._spare.pop()
        except IndexError:
            return torch.empty(size, dtype=dtype, device=device)
        fits = found.shape == (size,) and found.dtype == dtype and found.device == device
        return found if fits else torch.empty(size, dtype=dtype, device=device)

    def give(self, vectors: Iterable[Tensor]) -> None:
        """Let vectors be used again."""
        self._spare.extend(vectors)


class ChunkMoves(Moves):
    """The moves of a chunk's clients.

    Parameters
    ----------
    x
        the models, `[C, P]`; columns of factored weights are undefined
    center
        c, `[P]`, or `[C, P]` if clients have different ones
    weights
        the weights w_k that most sums will have, `[C]`
    factored
        weights of linear layers that were not formed, by their first column
    known
        the sum and the norms, if training computed them, with the weights that it used
    form
        writes the models to `x`, if that was not done
    norms
        whether `squares` will be asked for
    memory
        where the sums are
    """

    def __init__(
        self,
        x: Tensor,
        center: Tensor,
        weights: Tensor,
        factored: Sequence[tuple[int, FactoredWeight]] = (),
        norms: bool = True,
        memory: SpareVectors | None = None,
        known: MoveSums | None = None,
        form: Callable[[], None] | None = None,
    ):
        self._memory = memory or SpareVectors()
        self.center = center
        self.clients = len(x)
        self._x = x
        self._factored = factored
        self._wide = accumulator_dtype(x)
        self._usual = weights.reshape(-1).to(self._wide)
        self._squares = torch.zeros(len(x), dtype=self._wide, device=x.device) if norms else None
        self._usual_sum: Tensor | None = None
        self._form = form
        if known is not None:
            self._usual = known.weights
            self._usual_sum = known.total
            self._squares = known.squares if norms else None

    def squares(self) -> Tensor:
        self._sum_as_usual()
        assert self._squares is not None
        return self._squares

    def sum(self, weights: Tensor) -> Tensor:
        ratio = self._ratio_to_usual(weights)
        if ratio is None:
            return self._summed(weights)
        found = self._sum_as_usual()
        if ratio == 1.0 and self._squares is None:
            self._usual_sum = None  # the caller may change it
            return found
        return found * ratio

    def _sum_as_usual(self) -> Tensor:
        """The sum with the usual weights; the first call computes it, with the norms."""
        if self._usual_sum is None:
            self._usual_sum = self._summed(self._usual, self._squares)
        return self._usual_sum

    def _ratio_to_usual(self, weights: Tensor) -> float | None:
        """The factor by which weights differ from the usual ones, if it is the same for all."""
        first = float(self._usual[0])
        if first == 0.0:
            return None
        ratio = float(weights[0]) / first
        same = torch.allclose(weights, self._usual * ratio, rtol=1e-14, atol=0.0)
        return ratio if same else None

    def _summed(self, weights: Tensor, squares: Tensor | None = None) -> Tensor:
        """Σ w_k·(x_k − c); adds |x_k − c|² to `squares`."""
        if self._form is not None:
            self._form()
            self._form = None
        total = self._memory.take(self._x.shape[1], self._wide, self._x.device)
        at = 0
        for begin, weight in self._factored:
            self._add_formed(at, begin, weights, total, squares)
            at = begin + weight.numbers
            weight.summed_moves(weights, total[begin:at].view(weight.shape))
            if squares is not None:
                squares += weight.square_moves()
        self._add_formed(at, len(total), weights, total, squares)
        return total

    def _add_formed(
        self, begin: int, end: int, weights: Tensor, total: Tensor, squares: Tensor | None
    ) -> None:
        """Sums and norms of columns that were formed."""
        if begin == end:
            return
        x, C = self._x, self.clients
        width = min(end - begin, max(1, PIECE_NUMBERS // C))
        narrow = torch.empty(C, width, dtype=x.dtype, device=x.device)
        wide = torch.empty(C, width, dtype=self._wide, device=x.device)
        for a in range(begin, end, width):
            b = min(a + width, end)
            moved, own = narrow[:, : b - a], wide[:, : b - a]
            torch.sub(x[:, a:b], self.center[..., a:b], out=moved)
            own.copy_(moved)
            if C == 1:
                torch.mul(own[0], weights[0], out=total[a:b])
            else:
                torch.mv(own.t(), weights, out=total[a:b])
            if squares is not None:
                squares += torch.linalg.vector_norm(own, dim=1).square_()


class LargeMoves(ChunkMoves):
    """The moves of clients whose models are so large that no sum of a chunk is formed.

    A sum in double precision takes two copies of the model. So norms are computed without it, and
    `add_sum` adds a piece of columns after another to the sum of the round.
    """

    def __init__(
        self,
        x: Tensor,
        center: Tensor,
        weights: Tensor,
        factored: Sequence[tuple[int, FactoredWeight]] = (),
    ):
        super().__init__(x, center, weights, factored)
        self._measured: Tensor | None = None

    def squares(self) -> Tensor:
        if self._measured is None:
            self._measured = torch.zeros(self.clients, dtype=self._wide, device=self._x.device)
            for _, own in self._moved_pieces():
                self._measured += torch.linalg.vector_norm(own, dim=1).square_()
            for _, weight in self._factored:
                self._measured += weight.square_moves()
        return self._measured

    def add_sum(self, weights: Tensor, total: Tensor) -> None:
        for columns, own in self._moved_pieces():
            if self.clients == 1:
                total[columns].add_(own[0], alpha=float(weights[0]))
            else:
                total[columns].addmv_(own.t(), weights)
        for begin, weight in self._factored:
            part = total[begin : begin + weight.numbers].view(weight.shape)
            weight.summed_moves(weights, part, add=True)

    def _moved_pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """The moves in columns that were formed, in double precision, a piece after another."""
        ends = [(first, first + weight.numbers) for first, weight in self._factored]
        width = max(1, PIECE_NUMBERS // self.clients)
        wide = torch.empty(self.clients, width, dtype=self._wide, device=self._x.device)
        at = 0
        for first, after in [*ends, (self._x.shape[1], self._x.shape[1])]:
            for a in range(at, first, width):
                columns = slice(a, min(a + width, first))
                own = wide[:, : columns.stop - a]
                yield columns, own.copy_(self._x[:, columns] - self.center[..., columns])
            at = after
