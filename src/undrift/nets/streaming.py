"""Passes the pieces of an evaluation to streaming metrics, and finds metrics that can be chunked.

Pieces are computed by several threads, but metrics take them in the order of the samples: sums are
then added in a fixed order, and the number of threads changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from threading import Condition
from typing import Any

import torch
from torch import Tensor

from undrift.data.part import Part
from undrift.data.samples.structure import Tree, rows_in, rows_of
from undrift.nets.calling import rows_of_outputs
from undrift.nets.metrics import Function, Streaming
from undrift.nets.per_sample import changed_outputs, equals_mean, subsets
from undrift.utils.errors import UndriftError, first_line
from undrift.utils.keys import generator


class OrderedUpdates:
    """Streaming metrics over samples that arrive piece by piece, in any order, from threads.

    Parameters
    ----------
    metrics
        the user's metrics by name; they are copied, never changed
    part, first
        the part that is evaluated, and the position of its first evaluated sample
    by_client
        whether the metrics of every client are wanted besides those of all samples
    """

    def __init__(self, metrics: Mapping[str, Streaming], part: Part, first: int, by_client: bool):
        self._all = {name: _fresh(name, metric) for name, metric in metrics.items()}
        self._next = first
        self._failed = False
        self._turn = Condition()
        self._own = {name: _fresh(name, metric) for name, metric in metrics.items()}
        self._bounds = part.bounds.tolist() if by_client and part.bounds is not None else []
        self._client = 0
        self.by_client: dict[str, list[float]] = {name: [] for name in metrics if self._bounds}

    @contextmanager
    def taking_turns(self) -> Iterator[None]:
        """Wake the threads that wait if the one in this block fails."""
        try:
            yield
        except BaseException:
            with self._turn:
                self._failed = True
                self._turn.notify_all()
            raise

    def update(self, start: int, outputs: Any, targets: Tree) -> None:
        """Take the piece that begins at `start`, once all pieces before it were taken."""
        with self._turn:
            self._turn.wait_for(lambda: self._next == start or self._failed)
            if self._failed:
                return
            for name, metric in self._all.items():
                _call(name, metric.update, outputs, targets)
            if self._bounds:
                self._update_clients(start, outputs, targets)
            self._next = start + rows_in(targets)
            self._turn.notify_all()

    def _update_clients(self, start: int, outputs: Any, targets: Tree) -> None:
        """Take a piece client by client; a client that ends in it is computed."""
        at, end = start, start + rows_in(targets)
        while at < end:
            until = min(end, self._bounds[self._client + 1])
            if at < until:
                some = slice(at - start, until - start)
                own = rows_of_outputs(outputs, some), rows_of(targets, some)
                for name, metric in self._own.items():
                    _call(name, metric.update, *own)
            at = until
            if until == self._bounds[self._client + 1]:
                self._finish_client()

    def _finish_client(self) -> None:
        empty = self._bounds[self._client] == self._bounds[self._client + 1]
        for name, metric in self._own.items():
            value = float("nan") if empty else _number(name, metric)
            self.by_client[name].append(value)
            _call(name, metric.reset)
        self._client += 1

    def values(self) -> dict[str, float]:
        """The metrics over all samples; afterwards `by_client` has those of every client."""
        while self._bounds and self._client < len(self._bounds) - 1:
            self._finish_client()  # clients without samples at the end
        return {name: _number(name, metric) for name, metric in self._all.items()}


def is_mean_over_samples(metric: Function, outputs: Tensor, targets: Tensor) -> bool:
    """Whether a metric is the mean of its values for single samples, so that chunks give it.

    It is tried on a few samples, on subsets of them, and with the outputs changed in several ways.
    Where all samples have the same value nothing can be told, and the answer is no.
    """
    told = False
    several = [*changed_outputs(outputs), *_partly_right(outputs, targets)]
    for number, changed in enumerate(several):
        try:
            each = _values(metric, changed, targets, [slice(k, k + 1) for k in range(len(targets))])
            groups = subsets(len(targets))
            means = _values(metric, changed, targets, groups)
        except Exception:  # any error of the user's function
            if number == 0:
                return False
            continue  # outputs may have to be probabilities, for example
        if not all(equals_mean(m, each[some]) for m, some in zip(means, groups, strict=True)):
            return False
        told = told or not equals_mean(each[0], each)
    return told


def _partly_right(outputs: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """The outputs with the score of the true class raised for a random half of all positions.

    Among many classes a model that has not learnt yet is never right: all samples would have the
    same accuracy, zero, and nothing could be told.
    """
    scores = outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1
    if targets.is_floating_point() or not scores:
        return
    right = torch.from_numpy(generator(0, "samples made right").random(tuple(targets.shape)) < 0.5)
    raised = 2 * (outputs.abs().max() + 1) * right.to(outputs)
    places = targets.clamp(0, outputs.shape[1] - 1)[:, None]
    yield outputs.scatter_add(1, places, raised[:, None])


def _values(metric: Function, outputs: Tensor, targets: Tensor, groups: list[slice]) -> Tensor:
    found = [float(metric(outputs[some], targets[some])) for some in groups]
    # Single precision, in which most metrics are computed: it sets the tolerance of comparisons.
    return torch.tensor(found, dtype=torch.float32)


def _fresh(name: str, metric: Streaming) -> Streaming:
    """A copy of the user's metric without samples."""
    copied = deepcopy(metric)
    _call(name, copied.reset)
    return copied


def _number(name: str, metric: Streaming) -> float:
    value = _call(name, metric.compute)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UndriftError(
            f"The metric {name!r} must compute one number: {first_line(error)}."
        ) from error


def _call(name: str, method: Any, *arguments: Any) -> Any:
    """Call a method of the user's metric; its errors become one sentence."""
    try:
        return method(*arguments)
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(f"The metric {name!r} failed: {first_line(error)}.") from error
