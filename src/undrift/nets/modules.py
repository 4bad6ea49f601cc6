"""Any `nn.Module` with any loss, on federated data, as functions of a flat vector.

Methods see parameters only: the trainable ones, end to end in one vector. Frozen
parameters stay what they are; buffers (BatchNorm statistics) travel beside the vector.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from undrift.core.losses import Batch, ClientLoss, Losses
from undrift.core.targets import PARTS
from undrift.data.augmentation import Augmentation
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.nets.criteria import LOSS, Criterion, Loss, Metric, criterion_for
from undrift.nets.dropout import Coins, with_keyed_dropout
from undrift.nets.modes import mark_resting, set_training
from undrift.nets.passes import Look, Pass, Seen, figures, losses_by_client, spread
from undrift.nets.per_sample import per_sample_of, telling_rows
from undrift.utils.errors import UndriftError, first_line, require, require_type, warn
from undrift.utils.files import written_whole
from undrift.utils.keys import generator, torch_generator_set_to
from undrift.utils.threads import one_thread

GRADIENT_BATCH = 1024


class FlatModule:
    """A copy of a module whose trainable parameters are views into one vector."""

    def __init__(self, module: nn.Module, device: torch.device):
        self.module = deepcopy(module).to(device)
        mark_resting(self.module)
        self.device = device
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        require(bool(named), "The model has no trainable parameters.")
        dtypes = {p.dtype for _, p in named}
        require(
            len(dtypes) == 1,
            f"All trainable parameters must have one type, but this model has "
            f"{', '.join(sorted(str(t) for t in dtypes))}.",
        )
        self.names = [n for n, _ in named]
        self.shapes = [p.shape for _, p in named]
        size = sum(p.numel() for _, p in named)
        self.x = torch.empty(size, dtype=dtypes.pop(), device=device)
        self.gradient = torch.zeros_like(self.x)
        first = 0
        for _, p in named:
            last = first + p.numel()
            self.x[first:last] = p.data.reshape(-1)
            p.data = self.x[first:last].view(p.shape)
            p.grad = self.gradient[first:last].view(p.shape)
            first = last

    def load(self, x: Tensor) -> None:
        """Set the parameters."""
        if x.data_ptr() != self.x.data_ptr():
            self.x.copy_(x)

    def buffers(self) -> dict[str, Tensor]:
        """A copy of the buffers."""
        return {name: value.clone() for name, value in self.module.named_buffers()}

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Set the buffers."""
        for name, value in self.module.named_buffers():
            if name in buffers:
                value.copy_(buffers[name])

    def filled(self, x: Tensor, buffers: Mapping[str, Tensor]) -> nn.Module:
        """A new module with the given parameters and buffers."""
        self.load(x)
        self.load_buffers(buffers)
        copy = deepcopy(self.module)
        for p in copy.parameters():
            p.data = p.data.clone()
            p.grad = None
        return copy.eval()


class ModuleLoss(ClientLoss):
    """A client's loss while a solver works on it."""

    def __init__(
        self,
        flat: FlatModule,
        task: Criterion,
        x: Tensor,
        y: Tensor,
        moving: frozenset[str],
        augmentations: Sequence[Augmentation] = (),
        rng: np.random.Generator | None = None,
    ):
        self.samples = len(y)
        self._moving = moving
        self._flat = flat
        self._task = task
        self._x = x
        self._y = y
        self._augmentations = augmentations
        self._rng = rng

    def of(self, x: Tensor, y: Tensor) -> ModuleLoss:
        """The same on other samples, as they are."""
        return ModuleLoss(self._flat, self._task, x, y, self._moving)

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
        self._task.loss(self._flat.module(inputs), targets).backward()
        return self._flat.gradient

    def buffers(self) -> dict[str, Tensor]:
        return {name: value for name, value in self._flat.buffers().items() if name in self._moving}


class ModuleLosses(Losses):
    """A network on federated data.

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
        where the model and the data are
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
        self._own_task = loss, metrics
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
        self._train = _on(data.train, self.flat.x)
        self._test = None if data.test is None else _on(data.test, self.flat.x)
        self._validation = None if data.validation is None else _on(data.validation, self.flat.x)
        self._sample: tuple[Tensor, Part] | None = None
        self._threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        self._moving: frozenset[str] = frozenset()
        buffers = self.flat.buffers()
        with torch_generator_set_to(0, self.device):
            before = torch.default_generator.get_state()
            self.task = self._try_out(loss, metrics)
            self._draws = not torch.equal(before, torch.default_generator.get_state())
            if self._draws:
                self._threads = 1  # what it draws comes in order
            self._moving = self._statistics(buffers)
        self.flat.load_buffers(buffers)
        self._initial_buffers = {name: buffers[name] for name in sorted(self._moving)}
        self._warn_about_statistics()
        self._coins = Coins(self.device)
        self._threaded = False

    def ingredients(self) -> tuple[nn.Module, Loss | None, Mapping[str, Metric] | None]:
        """What makes the same losses again from the same data, in another process say."""
        module = self.flat.filled(self._initial, self._initial_buffers)
        return module, *self._own_task

    def twin(self) -> ModuleLosses:
        """The same losses with a module of its own, which draws from a generator of its own."""
        found = copy(self)
        found.__dict__.pop("_trained", None)
        found.flat = FlatModule(self.flat.module, self.device)
        found._coins, found._threaded = Coins(self.device), True
        with_keyed_dropout(found.flat.module, found._coins)
        return found

    @property
    def draws_otherwise(self) -> bool:
        """Whether the model draws from torch's generator in another way than by `nn.Dropout`."""
        module = set_training(self.twin().flat.module)
        rows = self._train.rows[:2].repeat(2)
        with torch_generator_set_to(0, self.device), torch.no_grad():
            before = torch.default_generator.get_state()
            module(self._train.x[rows])
            return not torch.equal(before, torch.default_generator.get_state())

    @property
    def train_part(self) -> Part:
        """The training samples, where the model is."""
        return self._train

    @property
    def moving(self) -> frozenset[str]:
        """The buffers that training changes."""
        return self._moving

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
        loss = ModuleLoss(flat, self.task, x, y, self._moving, self.data.augmentations, rng)
        self._coins.seed(number)
        if self._threaded:
            yield loss
        else:
            with torch_generator_set_to(number, self.device):
                yield loss

    @cached_property
    def _trained(self) -> FlatModule:
        """The module that trains: where it has dropout, one that draws as every engine does."""
        if not any(type(each) is nn.Dropout for each in self.flat.module.modules()):
            return self.flat
        flat = FlatModule(self.flat.module, self.device)
        with_keyed_dropout(flat.module, self._coins)
        return flat

    def value(self, k: int, x: Tensor) -> float:
        task = Criterion(self.task.loss, per_sample=self.task.per_sample)
        with self._looking(x, task) as look:
            seen = look.over(self._train, *self._train.places(k))
        return figures("train", task, seen)[f"train_{LOSS}"]

    def gradient(self, k: int, x: Tensor) -> Tensor:
        self.flat.module.eval()
        inputs, targets = self._train.client(k)
        total = torch.zeros_like(self.flat.x)
        with torch_generator_set_to(0, self.device):
            # Piece by piece, so that memory does not grow with the client.
            for some in range(0, len(targets), GRADIENT_BATCH):
                piece = slice(some, some + GRADIENT_BATCH)
                own = ModuleLoss(self.flat, self.task, inputs[piece], targets[piece], self._moving)
                share = len(targets[piece]) / len(targets)
                total += share * own.gradient(x)
        return total

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        if self.task.per_sample is None:
            return super().total_gradient(x, weights)
        part = self._with_weight(weights)
        shares = torch.repeat_interleave(weights[weights > 0] / part.sizes, part.sizes)
        shares = shares.to(self.flat.x)
        self.flat.module.eval()
        total = torch.zeros_like(self.flat.x)
        with torch_generator_set_to(0, self.device):
            for first in range(0, len(part), GRADIENT_BATCH):
                last = min(first + GRADIENT_BATCH, len(part))
                task = Criterion(self.task.weighted(shares[first:last]))
                piece = ModuleLoss(self.flat, task, *part.piece(first, last), self._moving)
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
        look: Look | None = None,
    ) -> dict[str, float]:
        """Metrics of a model, as for all losses; `look` goes over a part's samples elsewhere."""
        found: dict[str, float] = {}
        chosen = self._judged(weights)
        chosen = {name: part for name, part in chosen.items() if name in parts}
        tested = "test" in chosen and chosen["test"].by_client
        for name, part in chosen.items():
            seen = self.look(name, x, weights, buffers) if look is None else look(name)
            found |= figures(name, self.task, seen)
            if name == "train":
                f = losses_by_client(self.task, seen, part)
                found[f"train_{LOSS}"] = float(f @ weights[weights > 0])
            several = part.by_client and len(part.sizes) > 1
            if "accuracy" in seen.each and several and name == ("test" if tested else "train"):
                found |= spread(name, seen.each["accuracy"], part)
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
                with self._looking(x) as look:
                    found |= figures(name, self.task, look.over(part, *part.places(k)))
        return found

    @one_thread()
    def look(
        self,
        name: str,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        first: int = 0,
        last: int | None = None,
    ) -> Seen:
        """What a model gives on a part's samples, from one place to another."""
        self.flat.load_buffers(buffers)
        with self._looking(x) as look:
            return look.over(self._judged(weights)[name], first, last)

    def pieces(self, name: str, weights: Tensor) -> range:
        """Where the pieces begin in which a part is looked at, and where the last one ends.

        Whoever looks at some of them finds the same bits as one who looks at all.
        """
        part = self._judged(weights)[name]
        return Pass(self.flat.module, self.task, width=self._width).pieces(part, 0, len(part))

    def joined(self, name: str, weights: Tensor, several: Sequence[Seen]) -> Seen:
        """What was seen of a part in several turns, as if in one."""
        each = {n: torch.cat([seen.each[n] for seen in several]) for n in several[0].each}
        if not self.task.needs_outputs:
            return Seen(each, None, None)
        part = self._judged(weights)[name]
        outputs = torch.cat([seen.outputs for seen in several if seen.outputs is not None])
        return Seen(each, outputs, part.piece(0, len(part))[1])

    @property
    def in_pieces(self) -> bool:
        """Whether pieces can be looked at side by side: not where the model draws meanwhile."""
        return not self._draws

    def _judged(self, weights: Tensor) -> dict[str, Part]:
        """The parts that a model is judged on, with the training data of those who count."""
        parts = self._parts()
        return {**parts, "train": self._with_weight(weights)} if "train" in parts else parts

    def _parts(self) -> dict[str, Part]:
        """The parts of the data that there are."""
        parts = {"train": self._train, "validation": self._validation, "test": self._test}
        return {name: part for name, part in parts.items() if part is not None and len(part)}

    def _with_weight(self, weights: Tensor) -> Part:
        """The training samples of the clients whose weight is not zero."""
        clients = weights.nonzero().flatten()
        if len(clients) == len(weights):
            return self._train
        if self._sample is None or not torch.equal(self._sample[0], clients):
            self._sample = clients, self._train.of_clients(clients)
        return self._sample[1]

    @contextmanager
    def _looking(self, x: Tensor, task: Criterion | None = None) -> Iterator[Pass]:
        """The model with some parameters, ready to be asked for its outputs."""
        self.flat.load(x)
        with torch_generator_set_to(0, self.device):
            yield Pass(self.flat.module, task or self.task, self._threads, self._width)

    def _try_out(self, loss: Loss | None, metrics: Mapping[str, Metric] | None) -> Criterion:
        """Try the model on a few samples, to refuse what does not fit with a sentence."""
        y = self._train.y
        whole = not y.is_floating_point()
        labels = (int(y.min()), int(y.max())) if whole and len(y) else None
        if whole and self._test is not None and len(self._test.y) and labels is not None:
            t = self._test.y
            labels = min(labels[0], int(t.min())), max(labels[1], int(t.max()))
        self.flat.module.eval()
        outputs = targets = None
        for part in (self._test, self._train):
            if part is None or not len(part):
                continue
            rows = part.rows[:2]
            inputs, targets = part.x[rows], part.y[rows]
            try:
                outputs = self.flat.module(inputs)
            except Exception as error:
                whole = not inputs.is_floating_point() and "dtype" in str(error)
                cure = "; data.with_inputs(lambda x: x.float() / 255) makes fractions of bytes"
                raise UndriftError(
                    f"The model cannot take inputs of shape {list(inputs.shape)} and type "
                    f"{inputs.dtype}: {first_line(error)}{cure if whole else ''}."
                ) from error
        require(outputs is not None, "There are no samples.")
        require_type("What the model returns", outputs, Tensor, "one tensor")
        assert outputs is not None
        assert targets is not None
        task = criterion_for(outputs, targets, labels, loss, metrics)
        found = self._try_loss(task, outputs, targets)
        require(
            isinstance(found, Tensor) and found.numel() == 1 and found.requires_grad,
            "The loss must return the mean over the batch, a single number with a gradient.",
        )
        self._width = outputs[:1].numel()
        if loss is None:
            _warn_about_one_hot(targets)
            return task
        return replace(task, per_sample=self._per_sample(loss))

    def _per_sample(self, loss: Loss) -> Loss | None:
        """The loss of the user's own for single samples, where there is such a thing."""
        rows = telling_rows(self._train)
        with torch.no_grad():
            outputs = self.flat.module(self._train.x[rows])
        return per_sample_of(loss, outputs, self._train.y[rows], self.device)

    def _try_loss(self, task: Criterion, outputs: Tensor, targets: Tensor) -> object:
        """The loss of a few samples; what it says against their shapes is refused."""
        shapes = (
            f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)}"
        )
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Using a target size")
                return task.loss(outputs, targets)
        except Exception as error:
            raise UndriftError(
                f"The loss failed on {shapes} and type {targets.dtype}: {first_line(error)}."
            ) from error

    def _statistics(self, before: Mapping[str, Tensor]) -> frozenset[str]:
        """The buffers that training changes, such as BatchNorm's; others are constants."""
        if not before:
            return frozenset()
        rows = self._train.rows[:2].repeat(2)  # batch statistics need more than one sample
        set_training(self.flat.module)
        with torch.no_grad():
            self.flat.module(self._train.x[rows])
        after = self.flat.buffers()
        return frozenset(name for name, value in before.items() if not _same(value, after[name]))

    def _warn_about_statistics(self) -> None:
        layers = sorted({name.rpartition(".")[0] for name in self._moving})
        if layers:
            warn(
                f"The model has buffers in {', '.join(layers)} that training changes; they are "
                f"averaged over the cohort by sample weight, which no method's theory covers: "
                f"GroupNorm has none."
            )


def _warn_about_one_hot(targets: Tensor) -> None:
    """Classes as rows with a single one are taken as values, which is seldom meant."""
    rows = targets.is_floating_point() and targets.ndim == 2 and targets.shape[1] > 1
    if rows and bool(((targets == 0) | (targets == 1)).all() & (targets.sum(1) == 1).all()):
        warn(
            "The targets look like one-hot classes, but are floating-point numbers, so that the "
            "loss is the squared error: targets.argmax(1) makes classes of them."
        )


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, NaN counting as equal to NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _on(part: Part, like: Tensor) -> Part:
    """The samples where the model is; floating-point ones in its precision."""

    def move(values: Tensor) -> Tensor:
        if values.is_floating_point():
            return values.to(like.device, like.dtype)
        return values.to(like.device)

    y = part.y if part.y.is_floating_point() else part.y.long()
    return Part(move(part.x), move(y), part.rows.to(like.device), part.bounds)


def save_weights(module: nn.Module, path: Path) -> None:
    """Write a module's parameters and buffers; what is tied is written once."""
    values: dict[str, Tensor] = {}
    written: set[int] = set()
    for name, value in module.state_dict().items():
        if value.numel() == 0 or value.data_ptr() not in written:
            values[name] = value.contiguous()
            written.add(value.data_ptr())
    with written_whole(path) as partial:
        save_file(values, partial)


def load_weights(module: nn.Module, path: Path) -> None:
    """Read a module's parameters and buffers, as `save_weights` writes them."""
    require(path.is_file(), f"There is no file of initial weights at {path}.")
    try:
        found = load_file(path)
    except SafetensorError as error:
        raise UndriftError(f"{path} is not a safetensors file: {error}.") from None
    wanted = module.state_dict()
    places = {value.data_ptr() for name, value in wanted.items() if name in found}
    for name, value in wanted.items():
        if name not in found:
            require(value.data_ptr() in places, f"{path} has no weights for {name!r}.")
            continue  # tied to one that is there
        require(
            found[name].shape == value.shape,
            f"{path} has {name!r} of shape {list(found[name].shape)}, but the model's is "
            f"{list(value.shape)}.",
        )
    module.load_state_dict({n: found[n] for n in wanted if n in found}, strict=False)
