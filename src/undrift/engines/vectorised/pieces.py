"""The algebra of methods with client states, one piece of columns after another.

The vectors of a chunk, `[C, P]`, are larger than the cache, and a method's formulas read and write
several of them. Formulas that treat every number alike (`Method.elementwise`) are computed here for
a piece of columns at a time, from the clients' states to the sums of their uploads, so that what is
between them never leaves the cache and is never allocated in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undrift.core.method import Method
from undrift.core.problem import Client, Download, Keep, LocalProblem, LocalResult, Upload
from undrift.core.replies import Weight, accumulator_dtype
from undrift.core.unformed import Moves, UnformedRows
from undrift.core.validation import check_declared

PIECE_NUMBERS = 1_000_000
"""Numbers of all clients in a piece. Pieces that fit a core's own cache would need so many small
operators that threads wait for each other's Python code."""


class SummedRows(UnformedRows):
    """Vectors of several clients of which only the declared sums were kept.

    Parameters
    ----------
    clients, like
        number of clients, and a vector `[P]` of the shape and type of each
    sums
        pairs of weights `[C]` and the sum with these weights, `[P]` in double precision
    """

    def __init__(self, clients: int, like: Tensor, sums: Sequence[tuple[Tensor, Tensor]]):
        self._clients, self._like, self._sums = clients, like, sums

    @property
    def center(self) -> Tensor:
        return self._like

    @property
    def dtype(self) -> torch.dtype:
        return self._like.dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self._clients, *self._like.shape))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum over clients with weights `[C]`, which must be among the declared ones."""
        total = next(total for own, total in self._sums if torch.equal(own, weights))
        # Weights may be equal, and the caller changes its sum: two of its sums must not be one.
        return total if len(self._sums) == 1 else total.clone()


@dataclass(frozen=True)
class ClientVectors:
    """What a chunk's clients received and keep, in pieces of columns.

    Parameters
    ----------
    down, states
        the download, and each client's state
    client
        all clients as one, with `[C, 1]` tensors
    size
        P, the numbers of a model
    """

    down: Download
    states: Sequence[Keep]
    client: Client
    size: int

    def pieces(self) -> list[slice]:
        """The columns of each piece."""
        width = max(1, PIECE_NUMBERS // len(self.states))
        return [slice(a, min(a + width, self.size)) for a in range(0, self.size, width)]

    def of(self, columns: slice) -> tuple[Download, Keep]:
        """A piece of the download, `[w]`, and of the states, `[C, w]`."""
        down = {name: self._cut(value, columns) for name, value in self.down.items()}
        rows = [[self._cut(v, columns) for _, v in keep.items()] for keep in self.states]
        names = [name for name, _ in self.states[0].items()]
        mine = {
            name: torch.stack(list(values))
            for name, values in zip(names, zip(*rows, strict=True), strict=True)
        }
        return Download(**down), Keep(**mine)  # type: ignore[arg-type]

    def _cut(self, value: object, columns: slice) -> object:
        return value[..., columns] if self.is_vector(value) else value  # type: ignore[index]

    def is_vector(self, value: object) -> bool:
        """Whether a value is a vector of the model's size, or several."""
        return isinstance(value, Tensor) and value.ndim > 0 and value.shape[-1] == self.size


def assembled_problem(method: Method, vectors: ClientVectors) -> LocalProblem:
    """The local problems of a chunk's clients."""
    found: LocalProblem | None = None
    parts: dict[str, Tensor] = {}
    for columns in vectors.pieces():
        down, mine = vectors.of(columns)
        piece = method.problem(down, mine, vectors.client)
        if found is None:
            found, parts = _begun(piece, down, vectors)
        for name, whole in parts.items():
            whole[..., columns] = getattr(piece, name)
    assert found is not None
    return found


def _begun(
    piece: LocalProblem, down: Download, vectors: ClientVectors
) -> tuple[LocalProblem, dict[str, Tensor]]:
    """A problem of whole vectors like that of a piece, and its vectors that must be filled."""
    known: dict[int, Tensor] = {
        id(value): getattr(vectors.down, name) for name, value in down.items()
    }
    fill: dict[str, Tensor] = {}
    for name in ("start", "linear", "center"):
        value = getattr(piece, name)
        if value is not None and id(value) not in known:
            known[id(value)] = fill[name] = value.new_empty(*value.shape[:-1], vectors.size)
    fields = {
        name: None if value is None else known[id(value)]
        for name in ("start", "linear", "center")
        for value in (getattr(piece, name),)
    }
    return replace(piece, **fields), fill  # type: ignore[arg-type]


@dataclass(frozen=True)
class Finishing:
    """A method's `finish` on a chunk's clients, one piece of columns after another."""

    method: Method
    vectors: ClientVectors
    result: LocalResult

    def pieces(self) -> Iterator[tuple[slice, Tensor, Upload, Keep]]:
        """The columns of each piece, and in them the models, the uploads and the new states."""
        for columns in self.vectors.pieces():
            down, mine = self.vectors.of(columns)
            cut = {
                name: value[:, columns]
                for name in ("x", "first_gradient", "last_gradient")
                if (value := getattr(self.result, name)) is not None
            }
            piece = replace(self.result, **cut)
            finished = self.method.finish(down, mine, piece, self.vectors.client)
            if not columns.start:
                check_declared(self.method, finished, piece.x)
            yield columns, piece.x, *finished


class NewStates:
    """The new states of a chunk's clients, each in memory of its own, filled piece by piece."""

    def __init__(self, clients: int, like: Tensor, new_vector: Callable[[Tensor], Tensor]):
        self._clients, self._like, self._new_vector = clients, like, new_vector
        self._kept: dict[str, Sequence[Tensor]] = {}

    def fill(self, columns: slice, keep: Keep) -> None:
        """Write a piece of the states."""
        width = columns.stop - columns.start
        for name, value in keep.items():
            vector = value.shape[-1] == width
            if name not in self._kept:
                self._kept[name] = (
                    [self._new_vector(self._like) for _ in range(self._clients)]
                    if vector
                    else value.unbind()
                )
            if vector:
                rows = [row[columns] for row in self._kept[name]]
                torch._foreach_copy_(rows, list(value.unbind()))

    def states(self) -> list[Keep]:
        """Each client's new state."""
        rows = zip(*self._kept.values(), strict=True)
        return [Keep(**dict(zip(self._kept, own, strict=True))) for own in rows]


def finished_in_pieces(
    method: Method, vectors: ClientVectors, result: LocalResult
) -> tuple[Upload, list[Keep]]:
    """The uploads as sums, and each client's new state in memory of its own."""
    clients, like = len(vectors.states), result.x[0]
    weights = _weights(method.sums(), vectors.client, clients, like)
    sums: dict[str, list[tuple[Tensor, Tensor]]] = {}
    numbers: dict[str, Tensor | float] = {}
    states = NewStates(clients, like, torch.empty_like)
    for columns, _, upload, keep in Finishing(method, vectors, result).pieces():
        if not columns.start:
            for name, value in upload.items():
                if name not in weights:
                    numbers[name] = value
                    continue
                sums[name] = [(w, w.new_empty(vectors.size)) for w in weights[name]]
        for name, totals in sums.items():
            wide = getattr(upload, name).to(weights[name][0].dtype)
            for own, total in totals:
                torch.mv(wide.t(), own, out=total[columns])
        states.fill(columns, keep)
    uploads = {name: SummedRows(clients, like, totals) for name, totals in sums.items()}
    return Upload(**numbers, **uploads), states.states()  # type: ignore[arg-type]


class RecomputedRows(UnformedRows):
    """Uploads of clients with large models: computed again, in pieces, when a sum is needed.

    Parameters
    ----------
    finishing
        computes the uploads
    name
        the name of the vector in the upload
    finite
        whether all its numbers are finite
    moves
        the moves of the clients' models, if the vector is equal to them
    """

    def __init__(self, finishing: Finishing, name: str, finite: bool, moves: Moves | None):
        self._finishing, self._name, self._finite, self._equal = finishing, name, finite, moves

    @property
    def center(self) -> Tensor:
        return self._finishing.result.x[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.center.dtype

    @property
    def shape(self) -> torch.Size:
        return self._finishing.result.x.shape

    def finite(self) -> bool:
        return self._finite

    def whole_moves(self) -> Moves | None:
        return self._equal

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = weights.new_zeros(self.shape[1])
        self.add_weighted_sum(weights, total)
        return total

    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> None:
        with torch.no_grad():
            for columns, _, upload, _ in self._finishing.pieces():
                wide = getattr(upload, self._name).to(total.dtype)
                total[columns].addmv_(wide.t(), weights)


def finished_large(
    method: Method,
    vectors: ClientVectors,
    result: LocalResult,
    moves: Moves,
    new_vector: Callable[[Tensor], Tensor],
) -> tuple[Upload, list[Keep]]:
    """The uploads, to be computed again for each of their sums, and each client's new state.

    `new_vector` returns memory for a vector of a state. No sum of the chunk and no upload is in
    memory as a whole.
    """
    finishing = Finishing(method, vectors, result)
    declared = method.sums()
    numbers: dict[str, Tensor | float] = {}
    totals: dict[str, Tensor] = {}
    is_move: dict[str, bool] = {}
    states = NewStates(len(vectors.states), result.x[0], new_vector)
    for columns, x, upload, keep in finishing.pieces():
        moved = x - moves.center[..., columns]
        for name, value in upload.items():
            if name not in declared:
                numbers[name] = value
                continue
            # A NaN or infinity in any number makes the sum of all numbers one.
            total = value.sum(dtype=accumulator_dtype(value))
            totals[name] = totals[name] + total if name in totals else total
            is_move[name] = is_move.get(name, True) and torch.equal(value, moved)
        states.fill(columns, keep)
    uploads = {
        name: RecomputedRows(
            finishing, name, bool(total.isfinite()), moves if is_move[name] else None
        )
        for name, total in totals.items()
    }
    return Upload(**numbers, **uploads), states.states()  # type: ignore[arg-type]


def _weights(
    sums: Mapping[str, tuple[Weight, ...]], client: Client, clients: int, like: Tensor
) -> dict[str, list[Tensor]]:
    """The weights `[C]` of every declared sum, in double precision."""
    dtype = accumulator_dtype(like)
    return {
        name: [
            torch.as_tensor(by(client), device=like.device).to(dtype).reshape(-1).expand(clients)
            for by in several
        ]
        for name, several in sums.items()
    }
