"""Augmentations: random changes of training inputs, such as crops and flips of images.

Targets that are images themselves, such as the classes of all pixels, change with their inputs.
Random numbers are keyed by seed, round and client. Drawing them is separate from applying them, so
that an engine may draw client by client and apply to many clients at once. Evaluation uses the
unchanged inputs.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from undrift.data.samples.structure import Tree, concatenated, rows_of
from undrift.utils.errors import UndriftError, require, require_range, require_whole
from undrift.utils.keys import global_generators_kept, seed_global_generators


class Augmentation(ABC):
    """A random change of training inputs; the base class of your own augmentations.

    A subclass implements `draw`, which makes the random numbers, and `apply`, which uses them:

        class Brightness(ud.data.Augmentation):
            def draw(self, samples, rng):
                return torch.from_numpy(rng.uniform(0.8, 1.2, samples))

            def apply(self, x, drawn):
                return x * drawn.to(x)[:, None, None, None]

        data = data.augmented(Brightness())

    If targets are images, `apply_target` says what becomes of them.
    """

    @abstractmethod
    def draw(self, samples: int, rng: np.random.Generator) -> Tensor:
        """The random numbers of a batch: a tensor with one row per sample.

        Parameters
        ----------
        samples
            number of samples in the batch
        rng
            the only source of randomness to use: it depends on seed, round and client
        """

    @abstractmethod
    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """The changed inputs, of the same shape and type; `x` itself must not be changed.

        Parameters
        ----------
        x
            inputs, one row per sample, perhaps on another device than `drawn`
        drawn
            what `draw` returned, one row per sample
        """

    def apply_target(self, y: Tensor, drawn: Tensor) -> Tensor:
        """The targets of changed inputs; called only if targets are images, `[n, …, H, W]`.

        An augmentation that moves no pixels returns `y` itself.
        """
        raise UndriftError(
            f"The targets are images, but {type(self).__name__} does not say what becomes of them: "
            f"define apply_target(self, y, drawn), which returns y if no pixel is moved."
        )

    def apply_both(self, x: Tensor, y: Tree, drawn: Tensor) -> tuple[Tensor, Tree]:
        """Changed inputs, and the targets that belong to them."""
        changed = self.apply(x, drawn)
        return changed, self.apply_target(y, drawn) if targets_are_images(x, y) else y

    def __repr__(self) -> str:
        # The repr is part of the data's fingerprint, so it must not contain a memory address.
        arguments = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({arguments})"


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Pad images with zeros and cut out a window of the original size at a random position.

    In normalised data, zero is the mean colour. The same window is cut out of targets that are
    images; their border is of class 0.

    Parameters
    ----------
    padding
        width of the border of zeros, in pixels
    """

    padding: int = 4

    def __post_init__(self) -> None:
        require_whole("padding", self.padding, at_least=1)

    def draw(self, samples: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.integers(0, 2 * self.padding + 1, (samples, 2)))

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        _require_images(self, x)
        return self._cropped(x, drawn)

    def apply_target(self, y: Tensor, drawn: Tensor) -> Tensor:
        return self._cropped(y, drawn) if y.ndim == 4 else self._cropped(y[:, None], drawn)[:, 0]

    def _cropped(self, x: Tensor, drawn: Tensor) -> Tensor:
        """The windows of images `[n, channels, height, width]`."""
        height, width = x.shape[-2:]
        padded = self._padded(x)
        top, left = drawn.to(x.device).unbind(1)
        rows = top[:, None] + torch.arange(height, device=x.device)
        columns = left[:, None] + torch.arange(width, device=x.device)
        sample = torch.arange(len(x), device=x.device)[:, None, None]
        # Channels go last for indexing by (sample, row, column), and back afterwards.
        window = padded.movedim(1, -1)[sample, rows[:, :, None], columns[:, None, :]]
        return window.movedim(-1, 1).contiguous()

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, (self.padding,) * 4)


@dataclass(frozen=True)
class ReflectedCrop(RandomCrop):
    """`RandomCrop` whose border mirrors the image, for inputs in which zero is black.

    Parameters
    ----------
    padding
        width of the mirrored border, in pixels
    """

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, (self.padding,) * 4, mode="reflect")


@dataclass(frozen=True)
class HorizontalFlip(Augmentation):
    """Mirror each image left to right with probability p, and its target if that is an image.

    Parameters
    ----------
    p
        probability of mirroring an image
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        require_range("p", self.p, at_least=0, at_most=1)

    def draw(self, samples: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.random(samples) < self.p)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        _require_images(self, x)
        return self._flipped(x, drawn)

    def apply_target(self, y: Tensor, drawn: Tensor) -> Tensor:
        return self._flipped(y, drawn)

    def _flipped(self, x: Tensor, drawn: Tensor) -> Tensor:
        chosen = drawn.to(x.device).view(-1, *[1] * (x.ndim - 1))
        return torch.where(chosen, x.flip(-1), x)


class Transform(Augmentation):
    """A function of one image and its target, such as a v2 transform of torchvision.

    It is called as `function(image, target)` and returns both, or as `function(image)` if it takes
    one argument. While it runs, the global generators of torch, NumPy and Python are seeded for the
    sample.

    Parameters
    ----------
    function
        the function; `data.augmented(function)` makes a `Transform` of it
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        try:
            inspect.signature(function).bind(None, None)
            self._takes_target = True
        except TypeError:
            self._takes_target = False

    def draw(self, samples: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.integers(0, 2**62, samples))

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        return self.apply_both(x, torch.zeros(len(x)), drawn)[0]

    def apply_both(self, x: Tensor, y: Tree, drawn: Tensor) -> tuple[Tensor, Tree]:
        if not self._takes_target and targets_are_images(x, y):
            raise UndriftError(
                f"The targets are images, but {self} takes inputs only: write a function of "
                f"(image, target) that returns both."
            )
        images, targets = [], []
        with global_generators_kept():
            for number, seed in enumerate(drawn.tolist()):
                seed_global_generators(seed)
                target = rows_of(y, slice(number, number + 1))
                image, target = self._call(x[number], target)
                images.append(image)
                targets.append(target)
        return torch.stack(images).to(x), concatenated(targets)

    def _call(self, image: Tensor, target: Tree) -> tuple[Tensor, Tree]:
        """The changed image, and the target as a batch of one."""
        if not self._takes_target:
            return torch.as_tensor(self.function(image)), target
        own = target[0] if isinstance(target, Tensor) else target
        found = self.function(image, own)
        if not isinstance(found, list | tuple) or len(found) != 2:
            raise UndriftError(f"{self} must return a pair (image, target).")
        changed = torch.as_tensor(found[1])
        like = target if isinstance(target, Tensor) else changed
        return torch.as_tensor(found[0]), changed.to(like)[None]

    def __repr__(self) -> str:
        function = self.function
        name = getattr(function, "__qualname__", None) or re.sub(
            " at 0x[0-9a-f]+", "", repr(function)
        )
        return f"Transform({name})"


def targets_are_images(x: Tree, y: Tree) -> bool:
    """Whether targets are images of the size of the inputs, such as the classes of all pixels."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.ndim != 4:
        return False
    return y.ndim in (3, 4) and y.shape[-2:] == x.shape[-2:]


def _require_images(augmentation: Augmentation, x: Tensor) -> None:
    """Check that inputs have the shape `[samples, channels, height, width]`."""
    require(
        x.ndim == 4,
        f"{augmentation} needs images of shape [channels, height, width], but an input has shape "
        f"{list(x.shape[1:])}.",
    )
