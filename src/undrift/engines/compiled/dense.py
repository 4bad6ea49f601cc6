"""Dense networks that the C kernel trains: which they are, and the call of the kernel.

torch's operators take a microsecond each, whatever their size, and a step needs ten of them. On a
small network that is most of the time, above all if clients take different numbers of steps. On a
larger one, the kernel keeps a client's model in a core's caches from its first step to the sum of
the clients' moves, without writing it to memory in between. It does all steps of a chunk's clients
in one call, during which other threads run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from undrift.data.part import Part
from undrift.engines.compiled.building import kernel

MOST_NUMBERS = 600_000
"""Parameters of the largest network for the kernel. A client's model should stay in a core's caches
during its steps; from about a million numbers on, torch's products are faster."""


@dataclass(frozen=True)
class MoveSums:
    """Memory for Σ w_k·(x_k − start) and each |x_k − start|², all in double precision."""

    weights: Tensor
    """w, `[C]`; with `most`, training divides the weights of longer moves by their excess"""
    total: Tensor
    """`[P]`"""
    squares: Tensor
    """`[C]`"""
    most: float = 0.0
    """the norm to which longer moves are cut in the sum; 0: they are not"""


@dataclass(frozen=True)
class DenseChain:
    """A chain of linear layers with ReLU between them.

    Parameters
    ----------
    sizes
        numbers of a sample, of every hidden layer, and of classes
    weights, biases
        the places of the layers' parameters in the model's vector; −1 without a bias
    """

    sizes: tuple[int, ...]
    weights: tuple[int, ...]
    biases: tuple[int, ...]

    def suits(self, part: Part, like: Tensor) -> bool:
        """Whether the kernel can train on some samples, with numbers like those of `like`."""
        x, y = part.x, part.y
        numbers = sum((a + 1) * b for a, b in pairwise(self.sizes))
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or numbers > MOST_NUMBERS:
            return False
        plain = x.device.type == "cpu" and x.dtype == like.dtype and y.dtype == torch.int64
        shaped = y.ndim == 1 and len(y) > 0 and x[0].numel() == self.sizes[0]
        if not plain or not shaped or not x.is_contiguous() or not y.is_contiguous():
            return False
        # The kernel does not check labels, so that it would write to other memory.
        labelled = int(y.min()) >= 0 and int(y.max()) < self.sizes[-1]
        return labelled and kernel(like.dtype) is not None

    def train(
        self,
        part: Part,
        rows: np.ndarray,
        counts: np.ndarray,
        start: Tensor,
        rates: Sequence[float],
        scales: Tensor | float,
        decays: Tensor | float,
        constant: Tensor | None,
        x: Tensor | None,
        sums: MoveSums | None = None,
    ) -> None:
        """Take all steps of plain SGD of several clients, from `start`, `[C, P]` or shared, `[P]`.

        `rows`, `[steps, C, B]`, are the samples' positions in the part, and `counts`, `[steps, C]`,
        how many of them are a client's batch; 0 after its last step.
        A step is x ← (1 − η·decay)x − η(scale·∇f + constant); numbers are `[C]` or the same for
        all clients, and the constant is `[C, P]` or `[P]`.
        `x`, `[C, P]`, receives the models, and `sums` the sums of the moves from a shared start.
        """
        library = kernel(start.dtype)
        assert library is not None
        assert isinstance(part.x, Tensor)
        clients, layers = counts.shape[1], len(self.weights)
        if not part.in_order:
            rows = part.rows.numpy()[rows]
        if rows.strides[2] != rows.itemsize:
            rows = np.ascontiguousarray(rows)
        start, constant = start.contiguous(), None if constant is None else constant.contiguous()
        steps = np.count_nonzero(counts, axis=0)
        width = rows.shape[2]
        places = self.sizes, self.weights, self.biases
        integers = [np.array(each, dtype=np.int64) for each in places]
        scratch = torch.empty(
            library.scratch_bytes(
                _long(layers), _address(integers[0]), _long(width), _long(sums is not None)
            ),
            dtype=torch.uint8,
        )
        floats = [np.array(rates, dtype=np.float64), _each(scales, clients), _each(decays, clients)]
        wanted = (None, None, None) if sums is None else (sums.weights, sums.total, sums.squares)
        library.train(
            *(_long(clients), _long(layers), *map(_address, integers)),
            *(_pointer(part.x), _pointer(part.y)),
            *(_address(rows), *(_long(each // rows.itemsize) for each in rows.strides[:2])),
            *(_address(counts), *(_long(each // counts.itemsize) for each in counts.strides)),
            *(_long(width), _address(steps), *map(_address, floats)),
            *(_pointer(constant), _stride(constant), _pointer(start), _stride(start)),
            *(_pointer(x), _stride(x), *map(_pointer, wanted)),
            *(ctypes.c_double(0.0 if sums is None else sums.most), _pointer(scratch)),
        )


def _each(value: Tensor | float, clients: int) -> np.ndarray:
    """A number of each client, in double precision."""
    own = value.double().numpy() if isinstance(value, Tensor) else value
    return np.ascontiguousarray(np.broadcast_to(np.asarray(own, dtype=np.float64), clients))


def _stride(vectors: Tensor | None) -> ctypes.c_int64:
    """Numbers from a client's vector to the next; 0 if clients share one."""
    return _long(0 if vectors is None or vectors.ndim == 1 else vectors.stride(0))


def _long(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(int(value))


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
