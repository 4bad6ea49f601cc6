"""One pass of a model over the samples of a part, and the metrics that follow from it.

`ModuleLosses.evaluate` is built on this; the Ray engine distributes the pieces of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from undrift.data.part import Part
from undrift.data.samples.structure import Tree, row_numbers, rows_in, rows_of
from undrift.nets.calling import (
    call_model,
    for_streaming,
    joined_outputs,
    outputs_of_samples,
    rows_of_outputs,
)
from undrift.nets.criteria import LOSS, Criterion
from undrift.nets.metrics import Function
from undrift.nets.streaming import OrderedUpdates
from undrift.utils.products import LinearByOneDNN
from undrift.utils.threads import one_thread, prepare_thread

PIECE_SAMPLES = 4096
"""Largest number of samples in a piece."""
PIECE_NUMBERS = 2**20
"""Largest number of input numbers, and of output numbers, in a piece."""
BATCH_SAMPLES = 256
"""Largest number of samples in a batch whose loss is only known for the batch as a whole."""
CONVOLUTION_FACTOR, SEQUENCE_FACTOR = 8, 128
"""Pieces of models with convolutions, and of those that read sequences, are smaller by these
factors: their hidden layers hold more numbers than inputs and outputs, and must stay in a core's
cache."""
PLAIN_LAYERS = (nn.Linear, nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
"""Layers that use each of their parameters about once per sample."""

OUTPUTS = "@outputs"


class PassResult(NamedTuple):
    """What a pass over samples computed."""

    per_sample: Mapping[str, Tensor]
    """the loss and the metrics of each sample, `[n]` in double precision on the CPU, where these
    are means over samples"""
    outputs: Any
    """of all samples, if the loss or a metric needs them all at once"""
    targets: Any
    """of all samples, if `outputs` is given"""
    streamed: Mapping[str, float] = {}
    """the user's streaming metrics over all samples"""
    streamed_by_client: Mapping[str, Sequence[float]] = {}
    """the same of every client, if clients are told apart; NaN for one without samples"""


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
        layers = list(module.modules())
        convolves = any(isinstance(each, nn.modules.conv._ConvNd) for each in layers)
        reads = (nn.RNNBase, nn.Embedding, nn.MultiheadAttention)
        factor = SEQUENCE_FACTOR if any(isinstance(each, reads) for each in layers) else 1
        self._numbers = PIECE_NUMBERS // (CONVOLUTION_FACTOR if convolves else factor)
        self._channels_last = any(type(each) is nn.Conv2d for each in layers)

    def over(
        self, part: Part, first: int = 0, last: int | None = None, by_client: bool = False
    ) -> PassResult:
        """Evaluate the samples at positions `first` to `last` (exclusive) of a part.

        With `by_client` clients are told apart; streaming metrics need the whole part for that.
        """
        last = len(part) if last is None else last
        bounds = part.bounds if by_client else None
        whole = (first, last) == (0, len(part))
        updates = OrderedUpdates(self._criterion.streaming, part, first, by_client and whole)
        starts = self.pieces(part, first, last)
        step = starts.step
        found: dict[str, Tensor] = {}
        structured: dict[int, Any] = {}
        """by position, the outputs of pieces that are not one tensor"""
        allocating = Lock()

        def evaluate_piece(module: nn.Module, start: int, inputs: Tree, targets: Tree) -> None:
            samples = rows_in(inputs)
            cuts = [] if bounds is None else cuts_within(bounds, start, start + samples)
            values, outputs = self._evaluated(module, inputs, targets, cuts)
            if self._criterion.streaming:
                updates.update(start, for_streaming(outputs, samples), targets)
            if not self._criterion.needs_outputs:
                outputs = None
            if isinstance(outputs, Tensor):
                values[OUTPUTS] = outputs
            elif outputs is not None:
                structured[start] = outputs_of_samples(outputs, samples)
            with allocating:
                # The shapes of a piece say how much memory the results of all pieces need.
                if not found:
                    found.update(
                        {n: _allocate(v, last - first, n == OUTPUTS) for n, v in values.items()}
                    )
            for name, value in values.items():
                found[name][start - first : start - first + len(value)] = value

        def evaluate_pieces(module: nn.Module, own: Sequence[int]) -> None:
            pieces = [(start, min(start + step, last)) for start in own]
            if self._criterion.batchwise:
                pieces = [span for piece in pieces for span in part.cut_by_client(*piece)]
            with torch.no_grad(), updates.taking_turns(), LinearByOneDNN():
                for (start, _), (inputs, targets) in zip(pieces, part.read(pieces), strict=True):
                    evaluate_piece(module, start, self._laid_out(inputs), targets)

        with one_thread():
            modules = self._modules(len(starts))
            if len(modules) == 1:
                evaluate_pieces(self._module, starts)
            else:
                with ThreadPoolExecutor(len(modules), initializer=prepare_thread) as pool:
                    shares = [starts[k :: len(modules)] for k in range(len(modules))]
                    futures = [
                        pool.submit(evaluate_pieces, module, share)
                        for module, share in zip(modules, shares, strict=True)
                    ]
                for future in futures:
                    future.result()
        outputs: Any = found.pop(OUTPUTS, None)
        if structured:
            outputs = joined_outputs([structured[start] for start in sorted(structured)])
        targets = None if outputs is None else part.piece(first, last)[1]
        return PassResult(found, outputs, targets, updates.values(), updates.by_client)

    def _evaluated(
        self, module: nn.Module, inputs: Tree, targets: Tree, cuts: Sequence[int]
    ) -> tuple[dict[str, Tensor], Any]:
        """The values of each sample of a batch, and the outputs unless a step needs none."""
        criterion = self._criterion
        if criterion.step is not None:
            values = {LOSS: _of_each(criterion.loss_of(module, inputs, targets), rows_in(inputs))}
            return values, call_model(module, inputs) if criterion.uses_outputs else None
        outputs = call_model(module, inputs)
        values = criterion.values_of_samples(outputs, targets, cuts)
        if criterion.batchwise:
            values[LOSS] = _of_each(criterion.loss(outputs, targets), rows_in(inputs))
        return values, outputs

    def _laid_out(self, inputs: Tree) -> Tree:
        """The inputs in the memory order in which a CPU convolves images about twice as fast."""
        images = isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.device.type == "cpu"
        if self._channels_last and images:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    def pieces(self, part: Part, first: int, last: int) -> range:
        """The positions at which pieces begin, from `first` to `last` (exclusive) of a part."""
        size = max(1, self._width, input_numbers(part))
        most = BATCH_SAMPLES if self._criterion.batchwise else PIECE_SAMPLES
        return range(first, last, max(1, min(most, self._numbers // size)))

    def _modules(self, pieces: int) -> Sequence[nn.Module]:
        """A module for each thread, since a user's module may set attributes while it computes."""
        others = max(1, min(self._threads, pieces)) - 1
        if all(_is_torchs(each) for each in self._module.modules()):
            return [self._module] * (1 + others)  # torch's own layers set none
        tensors = [*self._module.parameters(), *self._module.buffers()]
        try:
            # The memo makes deepcopy share the tensors instead of copying them.
            copies = [deepcopy(self._module, {id(t): t for t in tensors}) for _ in range(others)]
        except Exception:  # e.g. an attribute that training set cannot be copied: use one thread
            copies = []
        return [self._module, *copies]


def _is_torchs(layer: nn.Module) -> bool:
    """Whether a layer is one of torch's own, without hooks of the user."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks
    return type(layer).__module__.startswith("torch.nn.") and not hooks


def input_numbers(part: Part) -> int:
    """How many numbers the inputs of one sample have."""
    if part.lazy is None:
        return row_numbers(part.x)
    return row_numbers(part.samples(part.rows[:1])[0]) if len(part) else 1


def products(module: nn.Module, inputs: int) -> int:
    """About how many multiplications the forward pass of one sample takes, at most.

    A linear layer uses each parameter once. Other layers may use theirs at every position of an
    image or a text: for a model with such layers, each parameter counts once per input number.
    """
    own = {id(each): each.numel() for each in module.parameters()}
    layers = [each for each in module.modules() if any(True for _ in each.parameters(False))]
    plain = all(isinstance(each, PLAIN_LAYERS) for each in layers)
    return sum(own.values()) * (1 if plain else inputs)


def _of_each(loss: Tensor, samples: int) -> Tensor:
    """The loss of a batch as that of each of its samples, `[n]`: its mean is the same."""
    return loss.detach().reshape(1).expand(samples)


def _allocate(like: Tensor, samples: int, keep_kind: bool) -> Tensor:
    """An empty tensor for the values of all samples: double on the CPU, or of the same kind.

    Threads write into it and keep nothing of their own: small tensors that stay between large
    ones that come and go would fragment the memory, and the process would grow with every piece.
    """
    shape = (samples, *like.shape[1:])
    return like.new_empty(shape) if keep_kind else torch.empty(shape, dtype=torch.float64)


def cuts_within(bounds: Tensor, first: int, last: int) -> list[int]:
    """The positions, counted from `first`, at which a client begins between two positions."""
    inside = bounds[(bounds > first) & (bounds < last)]
    return (inside - first).unique().tolist()


def metrics_of(name: str, criterion: Criterion, result: PassResult) -> dict[str, float]:
    """The loss and the metrics over all samples of a pass, as `"{name}_{metric}"`."""
    means = result.per_sample.items()
    found = {f"{name}_{metric}": float(values.mean()) for metric, values in means}
    if result.outputs is not None and result.targets is not None:
        if LOSS not in result.per_sample:
            found[f"{name}_{LOSS}"] = float(criterion.loss(result.outputs, result.targets))
        found |= criterion.own_metrics(name, result.outputs, result.targets)
    return found | {f"{name}_{metric}": value for metric, value in result.streamed.items()}


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


def values_by_client(criterion: Criterion, result: PassResult, part: Part) -> dict[str, Tensor]:
    """The loss and the metrics of each client, `[N]`; NaN where a metric is not defined."""
    found = {name: means_by_client(values, part) for name, values in result.per_sample.items()}
    if result.outputs is not None and result.targets is not None:
        whole: dict[str, Function] = dict(criterion.metrics)
        if LOSS not in found:
            whole[LOSS] = criterion.loss
        assert part.bounds is not None
        own = [slice(first, last) for first, last in pairwise(part.bounds.tolist())]
        pairs = [(rows_of_outputs(result.outputs, s), rows_of(result.targets, s)) for s in own]
        for name, metric in whole.items():
            values = [_value_of(metric, *pair) for pair in pairs]
            found[name] = torch.tensor(values, dtype=torch.float64)
    for name, each in result.streamed_by_client.items():
        found[name] = torch.tensor(each, dtype=torch.float64)
    return found


def _value_of(metric: Function, outputs: Any, targets: Tree) -> float:
    """A metric of one client; NaN without samples, and where the user's function fails."""
    try:
        return float(metric(outputs, targets)) if rows_in(targets) else float("nan")
    except Exception:  # such as an AUC of a single class
        return float("nan")


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
