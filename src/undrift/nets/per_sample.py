"""The loss of every sample, found from a loss that is only known as the mean over a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import Tensor
from torch.func import vmap

from undrift.data.part import Part
from undrift.nets.criteria import Loss
from undrift.utils.keys import generator, torch_generator_set_to

SAMPLES = 64
"""A loss is tried out on so many samples …"""
READ = 2**20
"""… that are found among so many targets."""
NOISE = (0.1, 1.0, 10.0)
"""How far outputs are moved: those of an initial model may all be equal, which hides weights."""
ROUNDING = 256
"""Numbers that differ by so many units in the last place are the same."""
DEPTH = 4
"""How deep it is looked into a loss for notes."""


def telling_rows(part: Part) -> Tensor:
    """Rows of a part to try out a loss on: targets of every kind, the rest evenly spread."""
    places = torch.arange(len(part), device=part.rows.device)
    each = max(1, part.y[:1].numel())
    stride = -(-len(part) * each // READ)
    read = part.y[part.rows[::stride]].flatten()
    if read.is_floating_point():
        special = torch.stack([read.argmin(), read.argmax()])
    else:
        labels, order = read.sort(stable=True)
        first = torch.ones_like(labels, dtype=torch.bool)
        first[1:] = labels[1:] != labels[:-1]
        special = _spread(order[first], SAMPLES * 3 // 4)
    special = special // each * stride
    chosen = torch.cat([special, _spread(places, SAMPLES - len(special))]).unique()
    return part.rows[chosen]


def per_sample_of(
    loss: Loss, outputs: Tensor, targets: Tensor, device: torch.device
) -> Loss | None:
    """(outputs, targets) → the loss of each sample, or None if a batch's is not their mean.

    The loss of a sample is that of a batch with this sample alone, mapped over samples. It is
    accepted if its mean is the loss of the batch for the given samples, for several parts of
    them, and with the outputs moved in several ways. Class weights, a sum, statistics of the
    batch and draws do not pass, nor does a loss that cannot be mapped or keeps notes of what it
    sees.
    """
    with torch_generator_set_to(0, device), torch.no_grad(), _told_of_slow_maps():
        try:
            tried = deepcopy(loss)  # a loss that keeps notes shall have none of these
            before = _notes(tried)
            exact = targets.double() if targets.is_floating_point() else targets
            same = _is_mean(tried, outputs.double(), exact)
            if same is None:  # tensors of its own may have the model's precision
                same = _is_mean(tried, outputs, targets)
            after = _notes(tried)
            noted = len(after) != len(before) or any(
                a[0] is not b[0] or a[1] != b[1] for a, b in zip(after, before, strict=True)
            )
        except Exception:  # whatever a loss of the user's own or torch.func says
            return None
    return _singles(loss) if same and not noted else None


def _singles(loss: Loss) -> Loss:
    """The losses of all samples, each as a batch of its own."""
    return vmap(lambda output, target: loss(output[None], target[None]).reshape(()))


def _is_mean(loss: Loss, outputs: Tensor, targets: Tensor) -> bool | None:
    """Whether a loss is the mean over samples; None if it takes no such outputs."""
    told = None
    for moved in _moved(outputs):
        try:
            usable = bool(loss(moved, targets).isfinite())
        except Exception:  # they may have to be probabilities, say
            usable = False
        if not usable:
            continue
        each = _singles(loss)(moved, targets)
        for some in _batches(len(each)):
            if not _same(loss(moved[some], targets[some]), each[some]):
                return False
        told = bool(told) or not _same(each[0], each)
    return told


def _moved(outputs: Tensor) -> Iterator[Tensor]:
    """Outputs as they are, nearer to zero (probabilities stay such), and with noise."""
    rng = generator(0, "outputs of a loss that is tried out")
    shape = tuple(outputs.shape)
    yield outputs
    yield outputs * torch.from_numpy(rng.uniform(0.5, 1.0, shape)).to(outputs)
    for far in NOISE:
        yield outputs + far * torch.from_numpy(rng.standard_normal(shape)).to(outputs)


def _batches(n: int) -> list[slice]:
    """Batches of several sizes out of n samples."""
    half = n // 2
    found = [(0, n), (0, 1), (0, 2), (1, 4), (0, half), (half, n)]
    return [slice(first, last) for first, last in found if first < min(last, n)]


def _same(value: Tensor, each: Tensor) -> bool:
    """Whether a number is the mean of some, to rounding."""
    allowed = ROUNDING * torch.finfo(each.dtype).eps * each.abs().mean()
    return bool((value - each.mean()).abs() <= allowed)


def _spread(values: Tensor, most: int) -> Tensor:
    """At most so many of some values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return values
    return values[torch.linspace(0, len(values) - 1, most, device=values.device).long()]


def _notes(value: object, depth: int = DEPTH) -> list[tuple[object, int]]:
    """What an object holds, each with a number that changes if it is changed in place."""
    if isinstance(value, Tensor):
        return [(value, value._version)]
    found: list[tuple[object, int]] = [(value, len(value) if isinstance(value, Sized) else 0)]
    if depth and not isinstance(value, type):
        owner = getattr(value, "__self__", None)  # of a method
        held = value if isinstance(value, Mapping) else getattr(owner or value, "__dict__", {})
        for each in list(held.values()):
            found += _notes(each, depth - 1)
    return found


@contextmanager
def _told_of_slow_maps() -> Iterator[None]:
    """No warnings from what is tried out; but an operator that torch maps by a loop is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="There is a performance drop")
        yield
