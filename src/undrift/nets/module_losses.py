"""Any `nn.Module` with any loss on federated data, as functions of a flat vector.

This is what engines and evaluation work with. Methods see parameters only: the trainable ones,
end to end in one vector. Frozen parameters never change; buffers that training changes (BatchNorm
statistics) travel beside the vector.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from undrift.core.client_metrics import ClientMetrics
from undrift.core.losses import ClientLoss, EvaluationCost, Losses
from undrift.core.targets import PARTS
from undrift.data.arrays import warn_of_rounding
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.data.samples.structure import Tree, named_tensors, target_name
from undrift.nets.calling import inputs_for, joined_outputs, placed
from undrift.nets.client_losses import LazyModuleLoss, ModuleLoss
from undrift.nets.criteria import FP32, LOSS, Criterion, Loss, Metric, Metrics, Step
from undrift.nets.dropout import MaskGenerator, use_keyed_dropout
from undrift.nets.flat import FlatModule
from undrift.nets.metrics import named_metrics
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
    input_numbers,
    losses_by_client,
    metrics_of,
    products,
    values_by_client,
)
from undrift.nets.personal import Personal, as_personal, packed, unpacked
from undrift.nets.weights import load_weights
from undrift.utils.errors import require, require_type, warn
from undrift.utils.keys import generator, torch_generator_set_to
from undrift.utils.threads import one_thread

GRADIENT_SAMPLES = 1024
"""A gradient over all samples of a client is computed from this many samples at a time."""


class ModuleLosses(Losses):
    """A model on federated data.

    Parameters
    ----------
    module
        any `nn.Module`; it is called with a batch as PyTorch users expect (`call_model`), copied,
        and never changed
    data
        the clients' samples
    loss, metrics
        the user's own, each (outputs, targets) → number; metrics may also be streaming objects or
        names, see `undrift.nets.metrics`
    weights
        a safetensors file with the initial weights
    device
        where the model and the data are placed
    personal
        the parameters that rest with the clients, see `Personal`; methods see the others only
    step
        the user's own way from a batch to its loss, (model, batch) → number, in place of a loss
    """

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
        weights: str | Path | None = None,
        device: str | torch.device = "cpu",
        personal: Personal | Sequence[str] | str | None = None,
        step: Step | None = None,
    ):
        require_type("The model", module, nn.Module, "a torch nn.Module")
        require(
            step is None or loss is None,
            "Give either a loss, a function of (outputs, targets), or a step, a function of "
            "(model, batch), not both.",
        )
        metrics = named_metrics(metrics)
        self._users_criterion = loss, metrics
        self._users_step = step
        if weights is not None:
            module = deepcopy(module)
            load_weights(module, Path(weights))
        self.device = torch.device(device)
        self.data = data
        self.ids = data.ids
        self.sizes = data.train.sizes
        self.personal = as_personal(personal)
        own = set() if self.personal is None else self.personal.names_in(module)
        if self.personal is not None and data.test is not None and not data.test.by_client:
            warn(
                "The test part is common to all clients, but with personal parameters every client "
                "has a model of its own, which is evaluated on its own data: hold out a test part "
                "of each client, data.with_test(0.2)."
            )
        self.flat = FlatModule(module, self.device, own)
        self.dimension = self.flat.shared
        self._initial_whole = self.flat.x.clone()
        self._initial = self._initial_whole[: self.dimension]  # a view: models may be large
        called = None if step is not None else self.flat.module  # a step gets whole batches
        self._train = _placed_like(self.flat.x, data.train, called)
        self._test = None if data.test is None else _placed_like(self.flat.x, data.test, called)
        self._validation = (
            None if data.validation is None else _placed_like(self.flat.x, data.validation, called)
        )
        self._weighted_sample: tuple[Tensor, Part] | None = None
        self._random_part: tuple[Part, Part] | None = None
        self._threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        buffers = self.flat.buffers()
        with torch_generator_set_to(0, self.device):
            before = torch.default_generator.get_state()
            module = self.flat.module
            self.criterion, self._width = check_model(
                module, self._train, self._test, loss, metrics, step
            )
            self._uses_random_numbers = not torch.equal(before, torch.default_generator.get_state())
            if self._uses_random_numbers:
                self._threads = 1  # one generator gives its numbers in order
            changing = buffers_changed_by_training(self.flat, self._train, buffers, self.criterion)
            self.changing_buffers = changing - self.flat.personal_names
            """the names of the buffers that training changes and that travel"""
        self.flat.load_buffers(buffers)
        personal_buffers = sorted(changing & self.flat.personal_names)
        self._personal_buffers = {name: buffers[name] for name in personal_buffers}
        self._initial_buffers = {name: buffers[name] for name in sorted(self.changing_buffers)}
        warn_about_buffers(self.changing_buffers)
        self._masks = MaskGenerator(self.device)
        self._is_thread_copy = False
        self.precision = FP32
        """the precision in which clients train"""

    def constructor_arguments(
        self,
    ) -> tuple[nn.Module, Loss | None, Mapping[str, Metric], Personal | None]:
        """The module, loss, metrics and personal parameters that build equal losses elsewhere."""
        module = self.flat.filled(self._initial_whole, self._initial_buffers)
        return module, *self._users_criterion, self.personal

    @property
    def step(self) -> Step | None:
        """The user's own way from a batch to its loss, if there is one."""
        return self._users_step

    def thread_copy(self) -> ModuleLosses:
        """The same losses with a module and dropout masks of their own, for another thread."""
        found = copy(self)
        found.__dict__.pop("_trained", None)  # the cached module belongs to the original
        found.flat = FlatModule(self.flat.module, self.device, self.flat.personal_names)
        found._masks, found._is_thread_copy = MaskGenerator(self.device), True
        use_keyed_dropout(found.flat.module, found._masks)
        return found

    def in_precision(self, precision: str) -> ModuleLosses:
        """The same losses whose clients train in another precision; evaluation stays the same."""
        found = copy(self)
        found.precision = precision
        return found

    @property
    def training_criterion(self) -> Criterion:
        """The criterion that clients train with, in their precision."""
        return replace(self.criterion, precision=self.precision)

    @property
    def uses_random_numbers_beyond_dropout(self) -> bool:
        """Whether training reads torch's global generator other than through `nn.Dropout`."""
        module = set_training(self.thread_copy().flat.module)
        inputs, targets = self._train.samples(self._train.rows[:2].repeat(2))
        with torch_generator_set_to(0, self.device), torch.no_grad():
            before = torch.default_generator.get_state()
            self.criterion.loss_of(module, inputs, targets)
            return not torch.equal(before, torch.default_generator.get_state())

    @property
    def train_part(self) -> Part:
        """The training samples, on the model's device."""
        return self._train

    def initial(self) -> Tensor:
        return self._initial.clone()

    def initial_buffers(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self._initial_buffers.items()}

    def initial_personal(self) -> Tensor | None:
        if self.personal is None:
            return None
        return packed(self._initial_whole[self.dimension :], self._personal_buffers)

    def module_with(self, x: Tensor, buffers: Mapping[str, Tensor]) -> nn.Module:
        """A new module with parameters `x`, `[P]` or with personal ones `[P + p]`, and buffers."""
        self._load(x)
        return self.flat.filled(self.flat.x, buffers)

    def _load(self, x: Tensor) -> None:
        """Set the parameters to `x`; without personal ones, these get their initial values."""
        if self.personal is not None:
            own = x[self.dimension :] if len(x) > self.dimension else self.initial_personal()
            assert own is not None
            size = len(self.flat.x) - self.dimension
            self.flat.x[self.dimension :].copy_(own[:size])
            self.flat.load_buffers(unpacked(own[size:], self._personal_buffers))
        self.flat.load(x[: self.dimension])

    @contextmanager
    def training(self, k: int, buffers: Mapping[str, Tensor], number: int) -> Iterator[ClientLoss]:
        flat = self._trained
        flat.load_buffers(buffers)
        set_training(flat.module)
        rng = generator(number, "augmentation")
        augmentations = self.data.augmentations
        options = self.changing_buffers, augmentations, rng
        loss: ModuleLoss
        if self._train.lazy is None:
            x, y = self._train.client(k)
            loss = ModuleLoss(flat, self.training_criterion, x, y, *options)
        else:
            rows = self._train.of(k).numpy()
            lazy = self._train.lazy
            criterion = self.training_criterion
            loss = LazyModuleLoss(flat, criterion, lazy, rows, number, self._piece, *options)
        loss.personal_buffers = self._personal_buffers
        loss.masks = self._masks
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
        flat = FlatModule(self.flat.module, self.device, self.flat.personal_names)
        use_keyed_dropout(flat.module, self._masks)
        return flat

    def value(self, k: int, x: Tensor) -> float:
        criterion = replace(self.criterion, metrics={}, means={}, streaming={}, chunked={})
        with self._evaluation_pass(x, criterion) as run:
            result = run.over(self._train, *self._train.places(k))
            return metrics_of("train", criterion, result)[f"train_{LOSS}"]

    def gradient(self, k: int, x: Tensor) -> Tensor:
        self.flat.module.eval()
        begin, end = self._train.places(k)
        total = torch.zeros_like(self.flat.x)
        # A mean over samples is computed piece by piece, so that memory does not grow with the
        # client. Any other loss is a function of all samples, so that pieces would be wrong.
        step = self._piece or end - begin
        spans = [(first, min(first + step, end)) for first in range(begin, end, max(1, step))]
        with torch_generator_set_to(0, self.device):
            for (first, last), samples in zip(spans, self._train.read(spans), strict=True):
                own = ModuleLoss(self.flat, self.criterion, *samples, self.changing_buffers)
                total += (last - first) / (end - begin) * own.gradient(self._whole(x))
        return total[: self.dimension]

    @property
    def _piece(self) -> int | None:
        """Samples from which a gradient over many is computed at a time; None for all at once."""
        if self.criterion.batchwise:
            run = EvaluationPass(self.flat.module, self.criterion, width=self._width)
            return min(GRADIENT_SAMPLES, run.pieces(self._train, 0, 1).step)
        return None if self.criterion.per_sample is None else GRADIENT_SAMPLES

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        if self.criterion.per_sample is None:
            return super().total_gradient(x, weights)
        part = self._with_weight(weights)
        shares = torch.repeat_interleave(weights[weights > 0] / part.sizes, part.sizes)
        shares = shares.to(self.flat.x)
        self.flat.module.eval()
        total = torch.zeros_like(self.flat.x)
        with torch_generator_set_to(0, self.device):
            firsts = range(0, len(part), GRADIENT_SAMPLES)
            spans = [(first, min(first + GRADIENT_SAMPLES, len(part))) for first in firsts]
            for (first, last), samples in zip(spans, part.read(spans), strict=True):
                criterion = Criterion(self.criterion.weighted_loss(shares[first:last]))
                inputs, targets = samples
                piece = ModuleLoss(self.flat, criterion, inputs, targets, self.changing_buffers)
                total += piece.gradient(self._whole(x))
        return total[: self.dimension]

    def _whole(self, x: Tensor) -> Tensor:
        """Shared parameters with the initial personal ones behind them."""
        return x if self.personal is None else torch.cat([x, self._initial_whole[len(x) :]])

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self._parts())

    @property
    def common_parts(self) -> tuple[str, ...]:
        return tuple(name for name, part in self._parts().items() if not part.by_client)

    @one_thread()
    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str] = PARTS,
        run_pass: PartPass | None = None,
        clients: ClientMetrics | None = None,
        train_samples: int | None = None,
    ) -> dict[str, float]:
        """Metrics of a model, as for all losses.

        `run_pass` evaluates the samples of a part in another place, such as on Ray's workers.
        The metrics of every client, which follow from the same pass, are added to `clients`.
        Metrics of the training data are estimated from `train_samples` of them; None for all.
        """
        found: dict[str, float] = {}
        chosen = self._evaluated_parts(weights, train_samples)
        chosen = {name: part for name, part in chosen.items() if name in parts}
        tested = "test" in chosen and chosen["test"].by_client
        for name, part in chosen.items():
            partial = name == "train" and len(part) < len(self._with_weight(weights))
            if run_pass is None:
                told_apart = clients is not None and part.by_client
                result = self.evaluate_samples(
                    name, x, weights, buffers, by_client=told_apart, train_samples=train_samples
                )
            else:
                result = run_pass(name)
            with torch_generator_set_to(0, self.device):  # a loss may use random numbers
                found |= metrics_of(name, self.criterion, result)
                if partial:
                    shares = self._sample_weights(weights, part)
                    found[f"train_{LOSS}"] = float(shares @ result.per_sample[LOSS])
                elif name == "train":
                    f = losses_by_client(self.criterion, result, part)
                    found[f"train_{LOSS}"] = float(f @ weights[weights > 0])
                if clients is not None and part.by_client:
                    chosen_ids = self._ids_with_weight(weights) if name == "train" else self.ids
                    values = values_by_client(self.criterion, result, part)
                    for number, client in enumerate(chosen_ids):
                        own = {f"{name}_{m}": float(each[number]) for m, each in values.items()}
                        clients.add(client, own)
            several = part.by_client and len(part.sizes) > 1 and not partial
            accuracy = result.per_sample.get("accuracy")
            if accuracy is not None and several and name == ("test" if tested else "train"):
                found |= accuracy_spread(name, accuracy, part)
        return found

    def evaluate_clients(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
        clients: ClientMetrics,
    ) -> dict[str, float]:
        return self.evaluate(x, weights, buffers, parts, None, clients)

    def _ids_with_weight(self, weights: Tensor) -> list[Hashable]:
        return [client for client, q in zip(self.ids, weights.tolist(), strict=True) if q]

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
        by_client: bool = False,
        train_samples: int | None = None,
    ) -> PassResult:
        """The pass of a model over positions `first` to `last` (exclusive) of a part.

        With `by_client`, metrics that are not functions of single samples see one client at a time.
        """
        self.flat.load_buffers(buffers)
        with self._evaluation_pass(x) as run:
            part = self._evaluated_parts(weights, train_samples)[name]
            return run.over(part, first, last, by_client and part.by_client)

    def pieces(self, name: str, weights: Tensor, train_samples: int | None = None) -> range:
        """The positions at which the pieces of a part begin; `stop` is the part's length.

        Evaluating ranges of whole pieces gives the same bits as evaluating the part at once.
        """
        part = self._evaluated_parts(weights, train_samples)[name]
        run = EvaluationPass(self.flat.module, self.criterion, width=self._width)
        return run.pieces(part, 0, len(part))

    def join_results(
        self,
        name: str,
        weights: Tensor,
        results: Sequence[PassResult],
        train_samples: int | None = None,
    ) -> PassResult:
        """The results of consecutive ranges of a part as the result of the whole part."""
        joined = {
            metric: torch.cat([each.per_sample[metric] for each in results])
            for metric in results[0].per_sample
        }
        if not self.criterion.needs_outputs:
            return PassResult(joined, None, None)
        part = self._evaluated_parts(weights, train_samples)[name]
        outputs = joined_outputs([each.outputs for each in results if each.outputs is not None])
        return PassResult(joined, outputs, part.piece(0, len(part))[1])

    @property
    def evaluates_in_pieces(self) -> bool:
        """Whether pieces can be evaluated in any order, or in parallel.

        They cannot if evaluation reads random numbers, which come in order, nor if a streaming
        metric takes them in order.
        """
        return not self._uses_random_numbers and not self.criterion.streaming

    def measured_samples(
        self, weights: Tensor, parts: Collection[str], train_samples: int | None = None
    ) -> dict[str, tuple[int, int]]:
        """By part, on how many of its samples `evaluate` measures, and how many it has."""
        measured = self._evaluated_parts(weights, train_samples)
        return {n: (len(measured[n]), len(part)) for n, part in self._parts().items() if n in parts}

    def evaluation_cost(self) -> EvaluationCost:
        samples = {name: len(part) for name, part in self._parts().items()}
        inputs = input_numbers(self._train)
        return EvaluationCost(
            samples, products(self.flat.module, inputs), self.criterion.per_sample is not None
        )

    def _evaluated_parts(
        self, weights: Tensor, train_samples: int | None = None
    ) -> dict[str, Part]:
        """All parts by name; of the training part, the clients with a weight above zero.

        With `train_samples`, of their samples only as many, if their losses can be told apart.
        """
        parts = self._parts()
        if "train" not in parts:
            return parts
        train = self._with_weight(weights)
        if train_samples is not None and train_samples < len(train):
            require(
                self.criterion.per_sample is not None,
                f"train_samples needs a loss of single samples, but the loss "
                f"{self.criterion.not_per_sample}: use train_clients.",
            )
            kept = self._random_part
            if kept is None or kept[0] is not train or len(kept[1]) != train_samples:
                kept = train, train.random_part(train_samples)
                self._random_part = kept
            train = kept[1]
        return {**parts, "train": train}

    def _sample_weights(self, weights: Tensor, part: Part) -> Tensor:
        """The weight of each sample of a part of the training samples, `[n]`, of sum one.

        A sample stands for as many others whichever client holds it, so that each has the weight
        q_k/n_k of its client's samples, up to scale.
        """
        chosen = weights > 0
        own = (weights[chosen] / self.sizes[chosen])[part.owners()].double()
        return own / own.sum()

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
        self._load(x)
        with torch_generator_set_to(0, self.device):
            yield EvaluationPass(
                self.flat.module, criterion or self.criterion, self._threads, self._width
            )


def _placed_like(like: Tensor, part: Part, module: nn.Module | None) -> Part:
    """A part on the device of `like`; floating-point samples in its dtype, labels as int64.

    Targets among named inputs are left out unless `module` takes them. Samples without targets are
    their own, as an autoencoder's are.
    """

    def place(inputs: Tree, targets: Tree) -> tuple[Tree, Tree]:
        targets = inputs if targets is None else targets
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            targets, name = targets.long(), target_name(inputs)
            inputs = inputs if name is None else {**inputs, name: targets}
        inputs = inputs if module is None else inputs_for(module, inputs)
        return placed(inputs, like), placed(targets, like)

    rows = part.rows.to(like.device)
    if part.lazy is not None:
        return Part(part.lazy.changed(place), part.y, rows, part.bounds)
    if like.dtype == torch.float32:
        for what, tree in (("inputs", part.x), ("targets", part.y)):
            for where, values in named_tensors(tree):
                if values.is_floating_point():
                    warn_of_rounding(values, f"The {what}{where}")
    return Part(*place(part.x, part.y), rows, part.bounds)
