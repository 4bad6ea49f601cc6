"""What a model is worth on a part of the data: one pass over its samples, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from undrift.data.part import Part
from undrift.nets.criteria import LOSS, Criterion
from undrift.utils.threads import one_thread, prepare_thread

SAMPLES = 4096
NUMBERS = 2**20
"""A piece has at most so many samples, and so many numbers of inputs and of outputs."""
CHANNELS = 4
"""In a convolution there are more numbers in between: so many times fewer are at its ends."""

OUTPUTS = "@outputs"


class Seen(NamedTuple):
    """What a pass over samples leaves behind."""

    each: Mapping[str, Tensor]
    """the loss and the metrics of each sample, `[n]` in double precision on the CPU, as far as
    they are means over samples"""
    outputs: Tensor | None
    targets: Tensor | None
    """of all samples, where something can be told only from all at once"""


Look = Callable[[str], Seen]
"""Goes over the samples of a part, given by its name."""


class Pass:
    """A model that is asked for its outputs, ready for many pieces.

    Every piece is computed with one thread, and several pieces side by side: so the result has
    the same bits however many threads there are, and threads wait for each other only in the end.
    Where they waited in every operator, a busy machine would make evaluation slower and not faster.

    Parameters
    ----------
    module
        the model; further threads have copies of it that share its tensors
    task
        the loss and the metrics
    threads
        how many pieces may be computed side by side
    width
        how many numbers the output for a sample has
    """

    def __init__(self, module: nn.Module, task: Criterion, threads: int = 1, width: int = 1):
        self._module = module.eval()
        self._task = task
        self._threads = threads
        self._width = width
        convolves = any(isinstance(each, nn.modules.conv._ConvNd) for each in module.modules())
        self._numbers = NUMBERS // CHANNELS if convolves else NUMBERS

    def over(self, part: Part, first: int = 0, last: int | None = None) -> Seen:
        """Look at the samples from one place among the rows of a part to another."""
        last = len(part) if last is None else last
        starts = self.pieces(part, first, last)
        step = starts.step
        found: dict[str, Tensor] = {}

        def look(module: nn.Module, start: int) -> None:
            """Put what a piece gives into its place in the whole."""
            inputs, targets = part.piece(start, min(start + step, last))
            outputs = module(inputs)
            values = self._task.each(outputs, targets)
            if self._task.needs_outputs:
                values[OUTPUTS] = outputs
            if start == first:
                found.update({n: _room(v, last - first, n == OUTPUTS) for n, v in values.items()})
            for name, value in values.items():
                found[name][start - first : start - first + len(value)] = value

        def work(module: nn.Module, own: Sequence[int]) -> None:
            with torch.no_grad():
                for start in own:
                    look(module, start)

        with one_thread():
            work(self._module, starts[:1])  # it says how much room is needed
            modules = self._modules(len(starts) - 1)
            if len(modules) == 1:
                work(self._module, starts[1:])
            else:
                with ThreadPoolExecutor(len(modules), initializer=prepare_thread) as pool:
                    shares = [starts[1 + k :: len(modules)] for k in range(len(modules))]
                    jobs = [pool.submit(work, *each) for each in zip(modules, shares, strict=True)]
                for job in jobs:
                    job.result()
        outputs = found.pop(OUTPUTS, None)
        targets = None if outputs is None else part.piece(first, last)[1]
        return Seen(found, outputs, targets)

    def pieces(self, part: Part, first: int, last: int) -> range:
        """Where the pieces begin, from one place among the rows of a part to another."""
        size = max(1, self._width, part.x[:1].numel())
        return range(first, last, max(1, min(SAMPLES, self._numbers // size)))

    def _modules(self, pieces: int) -> Sequence[nn.Module]:
        """The model for each thread: what a module notes down while it computes is its own."""
        tensors = [*self._module.parameters(), *self._module.buffers()]
        others = max(1, min(self._threads, pieces)) - 1
        try:
            copies = [deepcopy(self._module, {id(t): t for t in tensors}) for _ in range(others)]
        except Exception:  # of what it noted down in training, say: then one thread does it all
            copies = []
        return [self._module, *copies]


def _room(like: Tensor, samples: int, as_it_is: bool) -> Tensor:
    """Room for the values of all samples: of one kind, and where they stay.

    What threads compute goes into it and is not kept by itself: small pieces of memory that stay
    between large ones that come and go would let the process grow with every piece.
    """
    shape = (samples, *like.shape[1:])
    return like.new_empty(shape) if as_it_is else torch.empty(shape, dtype=torch.float64)


def figures(name: str, task: Criterion, seen: Seen) -> dict[str, float]:
    """The loss and the metrics over all samples that were looked at, under their names."""
    found = {f"{name}_{metric}": float(values.mean()) for metric, values in seen.each.items()}
    if seen.outputs is not None and seen.targets is not None:
        if task.per_sample is None:
            found[f"{name}_{LOSS}"] = float(task.loss(seen.outputs, seen.targets))
        found |= task.measured(name, seen.outputs, seen.targets)
    return found


def losses_by_client(task: Criterion, seen: Seen, part: Part) -> Tensor:
    """f_k of each client, `[N]` in double precision.

    A loss that is not known for single samples is asked once for every client.
    """
    if LOSS in seen.each:
        return means_by_client(seen.each[LOSS], part)
    assert seen.outputs is not None
    assert seen.targets is not None
    sizes = part.sizes.tolist()
    pairs = zip(seen.outputs.split(sizes), seen.targets.split(sizes), strict=True)
    return torch.tensor([float(task.loss(o, t)) for o, t in pairs], dtype=torch.float64)


def means_by_client(values: Tensor, part: Part) -> Tensor:
    """The mean of each client's values, `[N]`; NaN for one without samples."""
    sums = torch.zeros(len(part.sizes), dtype=torch.float64)
    return sums.index_add_(0, part.owners(), values) / part.sizes


def spread(name: str, right: Tensor, part: Part) -> dict[str, float]:
    """Accuracy per client: mean, standard deviation, and mean of the worst tenth."""
    each = means_by_client(right, part)[part.sizes > 0].sort().values
    worst = each[: max(1, len(each) // 10)]
    return {
        f"{name}_client_accuracy_mean": float(each.mean()),
        f"{name}_client_accuracy_std": float(each.std(correction=0)),
        f"{name}_client_accuracy_worst_tenth": float(worst.mean()),
    }
