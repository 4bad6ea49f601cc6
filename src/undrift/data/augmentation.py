"""Random changes of training images: each draw is keyed by seed, round and client.

An augmentation draws first and applies then, so that an engine may draw for one client and apply
to many. Evaluation sees the images as they are.
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
    """A random change of inputs."""

    @abstractmethod
    def draw(self, samples: int, rng: np.random.Generator) -> Tensor:
        """What is random about it, a row per sample."""

    @abstractmethod
    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        """The changed inputs, of the same shape."""


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """A window of the image's own size out of the image with a border of zeros around it.

    The border is zero in the units of the data: the mean colour where they are normalised.
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
        # One index for sample, row and column puts the channels last: bring them back.
        window = padded.movedim(1, -1)[sample, rows[:, :, None], columns[:, None, :]]
        return window.movedim(-1, 1).contiguous()


@dataclass(frozen=True)
class HorizontalFlip(Augmentation):
    """The image or its mirror image, the latter with probability p."""

    p: float = 0.5

    def __post_init__(self) -> None:
        require_range("p", self.p, at_least=0, at_most=1)

    def draw(self, samples: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(rng.random(samples) < self.p)

    def apply(self, x: Tensor, drawn: Tensor) -> Tensor:
        _require_images(self, x)
        return torch.where(drawn.to(x.device)[:, None, None, None], x.flip(-1), x)


def _require_images(augmentation: Augmentation, x: Tensor) -> None:
    require(
        x.ndim == 4,
        f"{augmentation} changes images of shape [channels, height, width], but an input has shape "
        f"{list(x.shape[1:])}.",
    )
