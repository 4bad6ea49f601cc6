"""One pass of a model over the samples of a part, and the metrics that follow from it.

`ModuleLosses.evaluate` is built on this; the Ray engine distributes the pieces of a pass.
"""

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

PIECE_SAMPLES = 4096
"""Largest number of samples in a piece."""
PIECE_NUMBERS = 2**20
"""Largest number of input numbers, and of output numbers, in a piece."""
CONVOLUTION_FACTOR = 4
"""Pieces of models with convolutions are smaller by this factor, since their hidden layers hold
more numbers than their inputs and outputs."""

OUTPUTS = "@outputs"


class PassResult(NamedTuple):
    """What a pass over samples computed."""

    per_sample: Mapping[str, Tensor]
    """the loss and the metrics of each sample, `[n]` in double precision on the CPU, where these
    are means over samples"""
    outputs: Tensor | None
    """of all samples, if the loss or a metric needs them all at once"""
    targets: Tensor | None
    """of all samples, if `outputs` is given"""


PartPass = Callable[[str], PassResult]
"""Evaluates all samples of a part, given by its name."""


class EvaluationPass:
    """A model in evaluation mode, ready to be applied to many pieces of a part.

    Each piece is computed with one thread, and several pieces run in parallel. So the result has
    the same bits for any number of threads, and threads wait for each other only once, at the
    end. If instead every operator were spread over threads, they would wait for each other in
    every operator, and a busy machine would make evaluation slower rather than faster.

    Parameters
    ----------
    module
        the model; further threads get copies of it that share its tensors
    criterion
        the loss and the metrics
    threads
        how many pieces may be computed in parallel
    width
        how many numbers the output for one sample has
    """

    def __init__(self, module: nn.Module, criterion: Criterion, threads: int = 1, width: int = 1):
        self._module = module.eval()
        self._criterion = criterion
        self._threads = threads
        self._width = width
        convolves = any(isinstance(each, nn.modules.conv._ConvNd) for each in module.modules())
        self._numbers = PIECE_NUMBERS // CONVOLUTION_FACTOR if convolves else PIECE_NUMBERS

    def over(self, part: Part, first: int = 0, last: int | None = None) -> PassResult:
        """Evaluate the samples at positions `first` to `last` (exclusive) of a part."""
        last = len(part) if last is None else last
        starts = self.pieces(part, first, last)
        step = starts.step
        found: dict[str, Tensor] = {}

        def evaluate_piece(module: nn.Module, start: int) -> None:
            inputs, targets = part.piece(start, min(start + step, last))
            outputs = module(inputs)
            values = self._criterion.values_of_samples(outputs, targets)
            if self._criterion.needs_outputs:
                values[OUTPUTS] = outputs
            if start == first:
                found.update(
                    {n: _allocate(v, last - first, n == OUTPUTS) for n, v in values.items()}
                )
            for name, value in values.items():
                found[name][start - first : start - first + len(value)] = value

        def evaluate_pieces(module: nn.Module, own: Sequence[int]) -> None:
            with torch.no_grad():
                for start in own:
                    evaluate_piece(module, start)

        with one_thread():
            # The first piece runs alone: its shapes say how much memory all results need.
            evaluate_pieces(self._module, starts[:1])
            modules = self._modules(len(starts) - 1)
            if len(modules) == 1:
                evaluate_pieces(self._module, starts[1:])
            else:
                with ThreadPoolExecutor(len(modules), initializer=prepare_thread) as pool:
                    shares = [starts[1 + k :: len(modules)] for k in range(len(modules))]
                    futures = [
                        pool.submit(evaluate_pieces, module, share)
                        for module, share in zip(modules, shares, strict=True)
                    ]
                for future in futures:
                    future.result()
        outputs = found.pop(OUTPUTS, None)
        targets = None if outputs is None else part.piece(first, last)[1]
        return PassResult(found, outputs, targets)

    def pieces(self, part: Part, first: int, last: int) -> range:
        """The positions at which pieces begin, from `first` to `last` (exclusive) of a part."""
        size = max(1, self._width, part.x[:1].numel())
        return range(first, last, max(1, min(PIECE_SAMPLES, self._numbers // size)))

    def _modules(self, pieces: int) -> Sequence[nn.Module]:
        """A module for each thread, since a module may set attributes while it computes."""
        tensors = [*self._module.parameters(), *self._module.buffers()]
        others = max(1, min(self._threads, pieces)) - 1
        try:
            # The memo makes deepcopy share the tensors instead of copying them.
            copies = [deepcopy(self._module, {id(t): t for t in tensors}) for _ in range(others)]
        except Exception:  # e.g. an attribute that training set cannot be copied: use one thread
            copies = []
        return [self._module, *copies]


def _allocate(like: Tensor, samples: int, keep_kind: bool) -> Tensor:
    """An empty tensor for the values of all samples: double on the CPU, or of the same kind.

    Threads write into it and keep nothing of their own: small tensors that stay between large
    ones that come and go would fragment the memory, and the process would grow with every piece.
    """
    shape = (samples, *like.shape[1:])
    return like.new_empty(shape) if keep_kind else torch.empty(shape, dtype=torch.float64)


def metrics_of(name: str, criterion: Criterion, result: PassResult) -> dict[str, float]:
    """The loss and the metrics over all samples of a pass, as `"{name}_{metric}"`."""
    means = result.per_sample.items()
    found = {f"{name}_{metric}": float(values.mean()) for metric, values in means}
    if result.outputs is not None and result.targets is not None:
        if criterion.per_sample is None:
            found[f"{name}_{LOSS}"] = float(criterion.loss(result.outputs, result.targets))
        found |= criterion.own_metrics(name, result.outputs, result.targets)
    return found


def losses_by_client(criterion: Criterion, result: PassResult, part: Part) -> Tensor:
    """f_k of each client, `[N]` in double precision.

    A loss that is not a mean over samples is computed client by client.
    """
    if LOSS in result.per_sample:
        return means_by_client(result.per_sample[LOSS], part)
    assert result.outputs is not None
    assert result.targets is not None
    sizes = part.sizes.tolist()
    pairs = zip(result.outputs.split(sizes), result.targets.split(sizes), strict=True)
    return torch.tensor([float(criterion.loss(o, t)) for o, t in pairs], dtype=torch.float64)


def means_by_client(values: Tensor, part: Part) -> Tensor:
    """The mean of each client's values, `[N]`; NaN for a client without samples."""
    sums = torch.zeros(len(part.sizes), dtype=torch.float64)
    return sums.index_add_(0, part.owners(), values) / part.sizes


def accuracy_spread(name: str, correct: Tensor, part: Part) -> dict[str, float]:
    """Accuracy over clients: mean, standard deviation, and mean of the worst tenth."""
    accuracies = means_by_client(correct, part)[part.sizes > 0].sort().values
    worst = accuracies[: max(1, len(accuracies) // 10)]
    return {
        f"{name}_client_accuracy_mean": float(accuracies.mean()),
        f"{name}_client_accuracy_std": float(accuracies.std(correction=0)),
        f"{name}_client_accuracy_worst_tenth": float(worst.mean()),
    }
