"""Any `nn.Module` with any loss on federated data, as functions of a flat vector.

This is what engines and evaluation work with. Methods see parameters only: the trainable ones,
end to end in one vector. Frozen parameters never change; buffers that training changes (BatchNorm
statistics) travel beside the vector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core.losses import Batch, ClientLoss, Losses
from undrift.core.targets import PARTS
from undrift.data.augmentation import Augmentation
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.nets.criteria import LOSS, Criterion, Loss, Metric
from undrift.nets.dropout import MaskGenerator, use_keyed_dropout
from undrift.nets.flat import FlatModule
from undrift.nets.model_check import (
    buffers_changed_by_training,
    check_model,
    warn_about_buffers,
)
from undrift.nets.modes import set_training
from undrift.nets.passes import (
    EvaluationPass,
    PartPass,
    PassResult,
    accuracy_spread,
    losses_by_client,
    metrics_of,
)
from undrift.nets.weights import load_weights
from undrift.utils.errors import require_type
from undrift.utils.keys import generator, torch_generator_set_to
from undrift.utils.threads import one_thread

GRADIENT_SAMPLES = 1024
"""A gradient over all samples of a client is computed from this many samples at a time."""


class ModuleLoss(ClientLoss):
    """One client's loss while a solver trains on it.

    Parameters
    ----------
    flat, criterion
        the model and its loss
    x, y
        the client's inputs and targets
    changing_buffers
        the names of the buffers that training changes
    augmentations, rng
        random changes of the inputs, and the client's generator for them
    """

    def __init__(
        self,
        flat: FlatModule,
        criterion: Criterion,
        x: Tensor,
        y: Tensor,
        changing_buffers: frozenset[str],
        augmentations: Sequence[Augmentation] = (),
        rng: np.random.Generator | None = None,
    ):
        self.samples = len(y)
        self._changing_buffers = changing_buffers
        self._flat = flat
        self._criterion = criterion
        self._x = x
        self._y = y
        self._augmentations = augmentations
        self._rng = rng

    def on_samples(self, x: Tensor, y: Tensor) -> ModuleLoss:
        """The same loss on other samples, without augmentation."""
        return ModuleLoss(self._flat, self._criterion, x, y, self._changing_buffers)

    def gradient(self, x: Tensor, batch: Batch = None) -> Tensor:
        inputs, targets = self._x, self._y
        if batch is not None:
            chosen = torch.from_numpy(batch).to(inputs.device)
            inputs, targets = inputs[chosen], targets[chosen]
        for each in self._augmentations:
            assert self._rng is not None
            inputs = each.apply(inputs, each.draw(len(inputs), self._rng))
        return self._gradient(x, inputs, targets)

    def full_gradient(self, x: Tensor) -> Tensor:
        before = self._flat.buffers()
        gradient = self._gradient(x, self._x, self._y)
        self._flat.load_buffers(before)
        return gradient

    def _gradient(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        self._flat.load(x)
        self._flat.gradient.zero_()
        self._criterion.loss(self._flat.module(inputs), targets).backward()
        return self._flat.gradient

    def buffers(self) -> dict[str, Tensor]:
        own = self._flat.buffers().items()
        return {name: value for name, value in own if name in self._changing_buffers}


class ModuleLosses(Losses):
    """A model on federated data.

    Parameters
    ----------
    module
        any `nn.Module` that maps a batch of inputs to outputs; it is copied, never changed
    data
        the clients' samples
    loss, metrics
        the user's own, each (outputs, targets) → number
    weights
        a safetensors file with the initial weights
    device
        where the model and the data are placed
    """

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        loss: Loss | None = None,
        metrics: Mapping[str, Metric] | None = None,
        weights: str | Path | None = None,
        device: str | torch.device = "cpu",
    ):
        require_type("The model", module, nn.Module, "a torch nn.Module")
        self._users_criterion = loss, metrics
        if weights is not None:
            module = deepcopy(module)
            load_weights(module, Path(weights))
        self.device = torch.device(device)
        self.data = data
        self.ids = data.ids
        self.sizes = data.train.sizes
        self.flat = FlatModule(module, self.device)
        self.dimension = len(self.flat.x)
        self._initial = self.flat.x.clone()
        self._train = _placed_like(self.flat.x, data.train)
        self._test = None if data.test is None else _placed_like(self.flat.x, data.test)
        self._validation = (
            None if data.validation is None else _placed_like(self.flat.x, data.validation)
        )
        self._weighted_sample: tuple[Tensor, Part] | None = None
        self._threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        buffers = self.flat.buffers()
        with torch_generator_set_to(0, self.device):
            before = torch.default_generator.get_state()
            module = self.flat.module
            self.criterion, self._width = check_model(
                module, self._train, self._test, loss, metrics
            )
            self._uses_random_numbers = not torch.equal(before, torch.default_generator.get_state())
            if self._uses_random_numbers:
                self._threads = 1  # one generator gives its numbers in order
            self.changing_buffers = buffers_changed_by_training(self.flat, self._train, buffers)
            """the names of the buffers that training changes"""
        self.flat.load_buffers(buffers)
        self._initial_buffers = {name: buffers[name] for name in sorted(self.changing_buffers)}
        warn_about_buffers(self.changing_buffers)
        self._masks = MaskGenerator(self.device)
        self._is_thread_copy = False

    def constructor_arguments(self) -> tuple[nn.Module, Loss | None, Mapping[str, Metric] | None]:
        """The module, loss and metrics that build equal losses on the same data elsewhere."""
        module = self.flat.filled(self._initial, self._initial_buffers)
        return module, *self._users_criterion

    def thread_copy(self) -> ModuleLosses:
        """The same losses with a module and dropout masks of their own, for another thread."""
        found = copy(self)
        found.__dict__.pop("_trained", None)  # the cached module belongs to the original
        found.flat = FlatModule(self.flat.module, self.device)
        found._masks, found._is_thread_copy = MaskGenerator(self.device), True
        use_keyed_dropout(found.flat.module, found._masks)
        return found

    @property
    def uses_random_numbers_beyond_dropout(self) -> bool:
        """Whether training reads torch's global generator other than through `nn.Dropout`."""
        module = set_training(self.thread_copy().flat.module)
        rows = self._train.rows[:2].repeat(2)
        with torch_generator_set_to(0, self.device), torch.no_grad():
            before = torch.default_generator.get_state()
            module(self._train.x[rows])
            return not torch.equal(before, torch.default_generator.get_state())

    @property
    def train_part(self) -> Part:
        """The training samples, on the model's device."""
        return self._train

    def initial(self) -> Tensor:
        return self._initial.clone()

    def initial_buffers(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._initial_buffers.items()}

    @contextmanager
    def training(self, k: int, buffers: Mapping[str, Tensor], number: int) -> Iterator[ClientLoss]:
        flat = self._trained
        flat.load_buffers(buffers)
        set_training(flat.module)
        x, y = self._train.client(k)
        rng = generator(number, "augmentation")
        augmentations = self.data.augmentations
        loss = ModuleLoss(flat, self.criterion, x, y, self.changing_buffers, augmentations, rng)
        self._masks.seed(number)
        if self._is_thread_copy:
            # torch's global generator is shared by all threads, so a thread must not set it.
            yield loss
        else:
            with torch_generator_set_to(number, self.device):
                yield loss

    @cached_property
    def _trained(self) -> FlatModule:
        """The module that trains; its dropout, if any, uses the same masks as in every engine."""
        if not any(type(each) is nn.Dropout for each in self.flat.module.modules()):
            return self.flat
        flat = FlatModule(self.flat.module, self.device)
        use_keyed_dropout(flat.module, self._masks)
        return flat

    def value(self, k: int, x: Tensor) -> float:
        criterion = Criterion(self.criterion.loss, per_sample=self.criterion.per_sample)
        with self._evaluation_pass(x, criterion) as run:
            result = run.over(self._train, *self._train.places(k))
            return metrics_of("train", criterion, result)[f"train_{LOSS}"]

    def gradient(self, k: int, x: Tensor) -> Tensor:
        self.flat.module.eval()
        inputs, targets = self._train.client(k)
        total = torch.zeros_like(self.flat.x)
        # A mean over samples is computed piece by piece, so that memory does not grow with the
        # client. Any other loss is a function of all samples, so that pieces would be wrong.
        step = len(targets) if self.criterion.per_sample is None else GRADIENT_SAMPLES
        with torch_generator_set_to(0, self.device):
            for first in range(0, len(targets), max(1, step)):
                piece = slice(first, first + step)
                own = ModuleLoss(
                    self.flat,
                    self.criterion,
                    inputs[piece],
                    targets[piece],
                    self.changing_buffers,
                )
                share = len(targets[piece]) / len(targets)
                total += share * own.gradient(x)
        return total

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        if self.criterion.per_sample is None:
            return super().total_gradient(x, weights)
        part = self._with_weight(weights)
        shares = torch.repeat_interleave(weights[weights > 0] / part.sizes, part.sizes)
        shares = shares.to(self.flat.x)
        self.flat.module.eval()
        total = torch.zeros_like(self.flat.x)
        with torch_generator_set_to(0, self.device):
            for first in range(0, len(part), GRADIENT_SAMPLES):
                last = min(first + GRADIENT_SAMPLES, len(part))
                criterion = Criterion(self.criterion.weighted_loss(shares[first:last]))
                inputs, targets = part.piece(first, last)
                piece = ModuleLoss(self.flat, criterion, inputs, targets, self.changing_buffers)
                total += piece.gradient(x)
        return total

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self._parts())

    @one_thread()
    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
        run_pass: PartPass | None = None,
    ) -> dict[str, float]:
        """Metrics of a model, as for all losses.

        `run_pass` evaluates the samples of a part in another place, such as on Ray's workers.
        """
        found: dict[str, float] = {}
        chosen = self._evaluated_parts(weights)
        chosen = {name: part for name, part in chosen.items() if name in parts}
        tested = "test" in chosen and chosen["test"].by_client
        for name, part in chosen.items():
            if run_pass is None:
                result = self.evaluate_samples(name, x, weights, buffers)
            else:
                result = run_pass(name)
            with torch_generator_set_to(0, self.device):  # a loss may use random numbers
                found |= metrics_of(name, self.criterion, result)
                if name == "train":
                    f = losses_by_client(self.criterion, result, part)
                    found[f"train_{LOSS}"] = float(f @ weights[weights > 0])
            several = part.by_client and len(part.sizes) > 1
            accuracy = result.per_sample.get("accuracy")
            if accuracy is not None and several and name == ("test" if tested else "train"):
                found |= accuracy_spread(name, accuracy, part)
        return found

    @one_thread()
    def evaluate_own(
        self,
        k: int,
        x: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
    ) -> dict[str, float]:
        self.flat.load_buffers(buffers)
        found: dict[str, float] = {}
        for name, part in self._parts().items():
            if name in parts and part.by_client and len(part.of(k)):
                with self._evaluation_pass(x) as run:
                    found |= metrics_of(name, self.criterion, run.over(part, *part.places(k)))
        return found

    @one_thread()
    def evaluate_samples(
        self,
        name: str,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        first: int = 0,
        last: int | None = None,
    ) -> PassResult:
        """The pass of a model over positions `first` to `last` (exclusive) of a part."""
        self.flat.load_buffers(buffers)
        with self._evaluation_pass(x) as run:
            return run.over(self._evaluated_parts(weights)[name], first, last)

    def pieces(self, name: str, weights: Tensor) -> range:
        """The positions at which the pieces of a part begin; `stop` is the part's length.

        Evaluating ranges of whole pieces gives the same bits as evaluating the part at once.
        """
        part = self._evaluated_parts(weights)[name]
        run = EvaluationPass(self.flat.module, self.criterion, width=self._width)
        return run.pieces(part, 0, len(part))

    def join_results(self, name: str, weights: Tensor, results: Sequence[PassResult]) -> PassResult:
        """The results of consecutive ranges of a part as the result of the whole part."""
        joined = {
            metric: torch.cat([each.per_sample[metric] for each in results])
            for metric in results[0].per_sample
        }
        if not self.criterion.needs_outputs:
            return PassResult(joined, None, None)
        part = self._evaluated_parts(weights)[name]
        outputs = torch.cat([each.outputs for each in results if each.outputs is not None])
        return PassResult(joined, outputs, part.piece(0, len(part))[1])

    @property
    def evaluates_in_pieces(self) -> bool:
        """Whether pieces can be evaluated in any order, or in parallel.

        They cannot if evaluation reads random numbers, which come in order.
        """
        return not self._uses_random_numbers

    def _evaluated_parts(self, weights: Tensor) -> dict[str, Part]:
        """All parts by name; of the training part, the clients with a weight above zero."""
        parts = self._parts()
        return {**parts, "train": self._with_weight(weights)} if "train" in parts else parts

    def _parts(self) -> dict[str, Part]:
        """The parts that have samples, by name."""
        parts = {"train": self._train, "validation": self._validation, "test": self._test}
        return {name: part for name, part in parts.items() if part is not None and len(part)}

    def _with_weight(self, weights: Tensor) -> Part:
        """The training samples of the clients whose weight is not zero."""
        clients = weights.nonzero().flatten()
        if len(clients) == len(weights):
            return self._train
        if self._weighted_sample is None or not torch.equal(self._weighted_sample[0], clients):
            self._weighted_sample = clients, self._train.of_clients(clients)
        return self._weighted_sample[1]

    @contextmanager
    def _evaluation_pass(
        self, x: Tensor, criterion: Criterion | None = None
    ) -> Iterator[EvaluationPass]:
        """The model with parameters `x`, ready to be evaluated."""
        self.flat.load(x)
        with torch_generator_set_to(0, self.device):
            yield EvaluationPass(
                self.flat.module, criterion or self.criterion, self._threads, self._width
            )


def _placed_like(like: Tensor, part: Part) -> Part:
    """A part on the device of `like`; floating-point samples in its dtype, labels as int64."""

    def move(values: Tensor) -> Tensor:
        if values.is_floating_point():
            return values.to(like.device, like.dtype)
        return values.to(like.device)

    y = part.y if part.y.is_floating_point() else part.y.long()
    return Part(move(part.x), move(y), part.rows.to(like.device), part.bounds)
