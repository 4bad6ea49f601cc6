"""Finds the loss of every sample from a loss that is given as a function of a batch.

Engines that train many clients at once, and evaluation of many clients, need a loss per sample.
A user gives a loss per batch; this module decides whether that is a mean over samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from undrift.data.part import Part
from undrift.data.samples.structure import map_tensors, rows_of
from undrift.nets.criteria import Loss
from undrift.utils.errors import first_line
from undrift.utils.keys import generator, torch_generator_set_to

PROBE_SAMPLES = 64
"""Number of samples on which a loss is tested."""
READ_NUMBERS = 2**20
"""Number of targets that are read to choose these samples."""
NOISE = (0.1, 1.0, 10.0)
"""Standard deviations of the noise added to outputs: those of an initial model may all be equal,
and then class weights would not show."""
ROUNDING_ULPS = 256
"""Two numbers that differ by at most this many units in the last place count as equal."""
STATE_DEPTH = 4
"""How many levels of attributes of a loss are searched for state."""

NOT_A_MEAN = "is not a mean of per-sample losses"
HAS_STATE = "changes its own state"


def probe_rows(part: Part) -> Tensor:
    """Rows of a part on which to test a loss: every kind of target, the rest evenly spread."""
    positions = torch.arange(len(part), device=part.rows.device)
    if part.lazy is not None or not isinstance(part.y, Tensor):
        return part.rows[_evenly_spread(positions, PROBE_SAMPLES)]
    size = max(1, part.y[:1].numel())
    stride = -(-len(part) * size // READ_NUMBERS)
    read = part.y[part.rows[::stride]].flatten()
    if read.is_floating_point():
        special = torch.stack([read.argmin(), read.argmax()])
    else:
        # One sample of every label: a weight on a rare class must not go unnoticed.
        labels, order = read.sort(stable=True)
        first = torch.ones_like(labels, dtype=torch.bool)
        first[1:] = labels[1:] != labels[:-1]
        special = _evenly_spread(order[first], PROBE_SAMPLES * 3 // 4)
    special = special // size * stride
    spread = _evenly_spread(positions, PROBE_SAMPLES - len(special))
    return part.rows[torch.cat([special, spread]).unique()]


def per_sample_loss(loss: Loss, outputs: Any, targets: Any, device: torch.device) -> Loss | str:
    """(outputs, targets) → the loss of each sample, or why there is none.

    The loss of a sample is that of a batch with this sample alone, mapped over samples. It is
    accepted if its mean is the loss of the batch for the given samples, for several subsets of
    them, and with the outputs changed in several ways. Losses with class weights, sums,
    statistics of the batch or random numbers do not pass, nor does a loss that cannot be mapped
    or that changes its own state.

    A reason is the end of a sentence that begins with "The loss".
    """
    with torch_generator_set_to(0, device), torch.no_grad(), _only_slow_map_warnings():
        try:
            tried = deepcopy(loss)  # so that the user's object keeps its state
            before = _state(tried)
            is_mean = _is_mean(tried, _double(outputs), _double(targets))
            if is_mean is None:  # tensors inside the loss may have the model's precision
                is_mean = _is_mean(tried, outputs, targets)
            after = _state(tried)
        except Exception as error:  # any error of the user's loss or of torch.func
            return f"cannot be mapped over samples by torch.func.vmap ({first_line(error)})"
    if len(after) != len(before) or any(
        a[0] is not b[0] or a[1] != b[1] for a, b in zip(after, before, strict=True)
    ):
        return HAS_STATE
    return _mapped_over_samples(loss) if is_mean else NOT_A_MEAN


def per_sample_form(loss: Loss) -> str:
    """The loss to use instead of one that is not a mean of per-sample losses, as text."""
    functions = {nn.CrossEntropyLoss: "cross_entropy", nn.NLLLoss: "nll_loss"}
    function = functions.get(type(loss))  # type: ignore[call-overload]
    if function is not None:
        assert isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
        smoothed = getattr(loss, "label_smoothing", 0.0) > 0
        if loss.weight is not None and loss.reduction == "mean" and not smoothed:
            return f'(w[targets] * F.{function}(outputs, targets, reduction="none")).mean()'
    return "a loss of the form per_sample(outputs, targets).mean()"


def _mapped_over_samples(loss: Loss) -> Loss:
    """The losses of all samples, each as a batch of one."""
    return vmap(lambda output, target: loss(_alone(output), _alone(target)).reshape(()))


def _alone(sample: Any) -> Any:
    """A sample as a batch of one."""
    return sample[None] if isinstance(sample, Tensor) else map_tensors(lambda t: t[None], sample)


def _double(tree: Any) -> Any:
    """Floating-point tensors in double precision."""
    return map_tensors(lambda t: t.double() if t.is_floating_point() else t, tree)


def _is_mean(loss: Loss, outputs: Any, targets: Any) -> bool | None:
    """Whether a loss is the mean over samples; None if that cannot be told from these outputs.

    It can be told only where samples have different losses: if all are equal, their mean is equal
    to any weighted mean.
    """
    is_mean = None
    for changed in changed_outputs(outputs):
        try:
            usable = bool(loss(changed, targets).isfinite())
        except Exception:  # outputs may have to be probabilities, for example
            usable = False
        if not usable:
            continue
        each = _mapped_over_samples(loss)(changed, targets)
        for some in subsets(len(each)):
            if not equals_mean(loss(rows_of(changed, some), rows_of(targets, some)), each[some]):
                return False
        is_mean = bool(is_mean) or not equals_mean(each[0], each)
    return is_mean


def changed_outputs(outputs: Any) -> Iterator[Any]:
    """The outputs themselves, scaled towards zero (probabilities stay valid), and with noise."""
    rng = generator(0, "outputs of a loss that is tried out")

    def scaled(values: Tensor) -> Tensor:
        return values * torch.from_numpy(rng.uniform(0.5, 1.0, tuple(values.shape))).to(values)

    def noise_like(values: Tensor) -> Tensor:
        return torch.from_numpy(rng.standard_normal(tuple(values.shape))).to(values)

    yield outputs
    yield map_tensors(scaled, outputs)
    for deviation in NOISE:
        yield map_tensors(partial(_plus, noise_like, deviation), outputs)


def _plus(noise_like: Callable[[Tensor], Tensor], deviation: float, values: Tensor) -> Tensor:
    return values + deviation * noise_like(values)


def subsets(n: int) -> list[slice]:
    """Batches of several sizes out of n samples."""
    half = n // 2
    found = [(0, n), (0, 1), (0, 2), (1, 4), (0, half), (half, n)]
    return [slice(first, last) for first, last in found if first < min(last, n)]


def equals_mean(value: Tensor, each: Tensor) -> bool:
    """Whether a number is the mean of others, up to rounding.

    A loss with `targets.float()` may return single precision for outputs in double precision.
    """
    eps = max(torch.finfo(value.dtype).eps, torch.finfo(each.dtype).eps)
    allowed = ROUNDING_ULPS * eps * each.abs().mean()
    return bool((value - each.mean()).abs() <= allowed)


def _evenly_spread(values: Tensor, most: int) -> Tensor:
    """At most `most` of the values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return values
    last = len(values) - 1
    return values[torch.linspace(0, last, most, device=values.device).long().clamp(max=last)]


def _state(value: object, depth: int = STATE_DEPTH) -> list[tuple[object, int]]:
    """The objects that an object holds, each with a number that in-place changes alter."""
    if isinstance(value, Tensor):
        return [(value, value._version)]
    found: list[tuple[object, int]] = [(value, len(value) if isinstance(value, Sized) else 0)]
    if depth and not isinstance(value, type):
        owner = getattr(value, "__self__", None)  # of a bound method
        held = value if isinstance(value, Mapping) else getattr(owner or value, "__dict__", {})
        for each in list(held.values()):
            found += _state(each, depth - 1)
    return found


@contextmanager
def _only_slow_map_warnings() -> Iterator[None]:
    """Ignore warnings, except that torch maps an operator by a slow loop, which is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="There is a performance drop")
        yield
