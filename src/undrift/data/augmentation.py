"""Augmentations: random changes of training inputs, such as crops and flips of images.

Random numbers are keyed by seed, round and client. Drawing them is separate from applying them, so
that an engine may draw client by client and apply to many clients at once. Evaluation uses the
unchanged inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from undrift.utils.errors import require, require_range, require_whole


class Augmentation(ABC):
    """A random change of training inputs; the base class of your own augmentations.

    A subclass implements `draw`, which makes the random numbers, and `apply`, which uses them:

        class Brightness(ud.data.Augmentation):
            def draw(self, samples, rng):
                return torch.from_numpy(rng.uniform(0.8, 1.2, samples))

            def apply(self, x, drawn):
                return x * drawn.to(x)[:, None, None, None]

        data = data.augmented(Brightness())
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

    def __repr__(self) -> str:
        # The repr is part of the data's fingerprint, so it must not contain a memory address.
        arguments = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({arguments})"


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Pad images with zeros and cut out a window of the original size at a random position.

    In normalised data, zero is the mean colour.

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
        height, width = x.shape[-2:]
        padded = F.pad(x, (self.padding,) * 4)
        top, left = drawn.to(x.device).unbind(1)
        rows = top[:, None] + torch.arange(height, device=x.device)
        columns = left[:, None] + torch.arange(width, device=x.device)
        sample = torch.arange(len(x), device=x.device)[:, None, None]
        # Channels go last for indexing by (sample, row, column), and back afterwards.
        window = padded.movedim(1, -1)[sample, rows[:, :, None], columns[:, None, :]]
        return window.movedim(-1, 1).contiguous()


@dataclass(frozen=True)
class HorizontalFlip(Augmentation):
    """Mirror each image left to right with probability p.

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
        return torch.where(drawn.to(x.device)[:, None, None, None], x.flip(-1), x)


def _require_images(augmentation: Augmentation, x: Tensor) -> None:
    """Check that inputs have the shape `[samples, channels, height, width]`."""
    require(
        x.ndim == 4,
        f"{augmentation} needs images of shape [channels, height, width], but an input has shape "
        f"{list(x.shape[1:])}.",
    )
