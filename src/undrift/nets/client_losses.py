"""One client's loss of a model while a solver trains on it, on samples in memory or lazy ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from undrift.core.losses import Batch, ClientLoss
from undrift.data.augmentation import Augmentation
from undrift.data.samples.lazy import LazySamples, Pair, Request
from undrift.data.samples.structure import Tree, rows_in, rows_of
from undrift.nets.criteria import Criterion
from undrift.nets.dropout import MaskGenerator
from undrift.nets.flat import FlatModule
from undrift.nets.personal import packed, unpacked
from undrift.utils.keys import key

ONE_SAMPLE_ERROR = "Expected more than 1 value per channel"
"""How torch's BatchNorm refuses a batch of one sample."""
ONE_SAMPLE_CURE = (
    "BatchNorm needs at least two samples in every batch that it trains on, so use drop_last=True, "
    "another batch_size, or GroupNorm, and leave out clients with a single sample"
)


class OneSampleBatch(ValueError):
    """BatchNorm was to train on a batch of one sample; the message says what to do."""


class ModuleLoss(ClientLoss):
    """One client's loss while a solver trains on it.

    Parameters
    ----------
    flat, criterion
        the model and its loss
    x, y
        the client's inputs and targets, each a tensor or a tree of tensors
    changing_buffers
        the names of the buffers that training changes
    augmentations, rng
        random changes of the inputs, and the client's generator for them
    """

    personal_buffers: Mapping[str, Tensor] = {}
    """buffers that rest with the client, at their initial values"""
    masks: MaskGenerator | None = None
    """the generator of the client's dropout masks"""

    def __init__(
        self,
        flat: FlatModule,
        criterion: Criterion,
        x: Tree,
        y: Tree,
        changing_buffers: frozenset[str],
        augmentations: Sequence[Augmentation] = (),
        rng: np.random.Generator | None = None,
    ):
        self.samples = rows_in(x)
        self.shapes = flat.shapes
        self._changing_buffers = changing_buffers
        self._flat = flat
        self._criterion = criterion
        self._x = x
        self._y = y
        self._augmentations = augmentations
        self._rng = rng

    def on_samples(self, x: Tree, y: Tree) -> ModuleLoss:
        """The same loss on other samples, without augmentation."""
        return ModuleLoss(self._flat, self._criterion, x, y, self._changing_buffers)

    def gradient(self, x: Tensor, batch: Batch = None) -> Tensor:
        return self._gradient(x, *self._augmented(batch))

    def on_batch(self, batch: Batch = None) -> Callable[[Tensor], Tensor]:
        inputs, targets = self._augmented(batch)
        mask_state = self.masks.state() if self.masks is not None else None
        is_first = True

        def gradient(x: Tensor) -> Tensor:
            nonlocal is_first
            if is_first:
                is_first = False
                return self._gradient(x, inputs, targets)
            if self.masks is not None:
                self.masks.restore(mask_state)
            before = self._flat.buffers()
            found = self._gradient(x, inputs, targets)
            self._flat.load_buffers(before)
            return found

        return gradient

    def _augmented(self, batch: Batch) -> Pair:
        """The inputs and targets of a batch, randomly changed."""
        inputs, targets = self._batch(batch)
        for each in self._augmentations:
            assert self._rng is not None
            drawn = each.draw(len(inputs), self._rng)
            inputs, targets = each.apply_both(inputs, targets, drawn)
        return inputs, targets

    def full_gradient(self, x: Tensor) -> Tensor:
        before = self._flat.buffers()
        gradient = self._gradient(x, self._x, self._y)
        self._flat.load_buffers(before)
        return gradient

    def _batch(self, batch: Batch) -> Pair:
        """The inputs and targets of a batch."""
        if batch is None:
            return self._x, self._y
        chosen = torch.from_numpy(batch).to(self._flat.device)
        return rows_of(self._x, chosen), rows_of(self._y, chosen)

    def _gradient(self, x: Tensor, inputs: Tree, targets: Tree) -> Tensor:
        self._flat.load(x)
        self._flat.gradient.zero_()
        try:
            loss = self._criterion.loss_of(self._flat.module, inputs, targets)
        except ValueError as error:
            if ONE_SAMPLE_ERROR in str(error) and rows_in(inputs) == 1:
                raise OneSampleBatch(ONE_SAMPLE_CURE) from None
            raise
        loss.backward()
        return self._flat.gradient

    def buffers(self) -> dict[str, Tensor]:
        own = self._flat.buffers().items()
        return {name: value for name, value in own if name in self._changing_buffers}

    def load_personal(self, state: Tensor) -> Tensor:
        """The personal parameters of a client's state; its personal buffers are loaded."""
        size = len(self._flat.x) - self._flat.shared
        self._flat.load_buffers(unpacked(state[size:], self.personal_buffers))
        return state[:size]

    def personal_state(self, parameters: Tensor) -> Tensor:
        """A client's state of personal parameters and the personal buffers after its work."""
        buffers = self._flat.buffers()
        return packed(parameters, {name: buffers[name] for name in self.personal_buffers})


class LazyModuleLoss(ModuleLoss):
    """One client's loss on samples that are read when a batch needs them.

    Parameters
    ----------
    flat, criterion, changing_buffers, augmentations, rng
        as for `ModuleLoss`
    lazy, rows
        all samples, and the rows of the client's
    number
        keys the random numbers with which samples are read, together with the epoch and the row
    piece
        samples from which a gradient over all of them is computed at a time; None for all
    """

    def __init__(
        self,
        flat: FlatModule,
        criterion: Criterion,
        lazy: LazySamples,
        rows: np.ndarray,
        number: int,
        piece: int | None,
        changing_buffers: frozenset[str],
        augmentations: Sequence[Augmentation] = (),
        rng: np.random.Generator | None = None,
    ):
        super().__init__(flat, criterion, lazy, None, changing_buffers, augmentations, rng)
        self.samples = len(rows)
        self._lazy, self._rows, self._number = lazy, rows, number
        self._piece = piece or len(rows)
        self._reading: Iterator[Pair] | None = None

    def expect(self, gradients: Iterator[tuple[int, Batch]]) -> None:
        self._reading = self._lazy.batches(
            Request(self._rows_of(batch), key(self._number, "samples", epoch))
            for epoch, batch in gradients
        )

    def full_gradient(self, x: Tensor) -> Tensor:
        before = self._flat.buffers()
        total = torch.zeros_like(self._flat.x)
        rows = self._rows.tolist()
        pieces = [rows[k : k + self._piece] for k in range(0, len(rows), self._piece)]
        for own, samples in zip(pieces, self._lazy.batches(map(Request, pieces)), strict=True):
            total.add_(self._gradient(x, *samples), alpha=len(own) / len(rows))
        self._flat.load_buffers(before)
        return total

    def _batch(self, batch: Batch) -> Pair:
        if self._reading is None:
            return self._lazy.samples(self._rows_of(batch))
        return next(self._reading)

    def _rows_of(self, batch: Batch) -> list[int]:
        return (self._rows if batch is None else self._rows[batch]).tolist()
