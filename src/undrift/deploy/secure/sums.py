"""Weighted uploads as words, and the sums that are decoded from them.

A site multiplies each vector by its weight in every sum that the method declares, so that the
server needs nothing but the sums. Both sides name a sum by its vector and its weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from undrift.core.problem import Client, Upload
from undrift.core.replies import Weight
from undrift.deploy.orders import split
from undrift.deploy.secure.site_noise import NoiseShare
from undrift.privacy.secure.fixed_point import FixedPoint, Words
from undrift.utils.errors import require

Sums = Mapping[str, tuple[Weight, ...]]
"""The weights by which each vector is summed."""


def require_summed(sums: Sums, label: str) -> None:
    """Refuse a method that needs single uploads."""
    for name, weights in sums.items():
        require(
            bool(weights),
            f"Secure aggregation hides single uploads, but {label} needs each client's {name!r}: "
            f"choose another method, or set privacy.secure = false.",
        )


def words_of(
    upload: Upload,
    client: Client,
    sums: Sums,
    coding: FixedPoint,
    noise: NoiseShare | None = None,
) -> dict[str, Words]:
    """The weighted vectors of an upload, with the site's noise, encoded, by their sums' names."""
    _, vectors = split(upload)
    found = {}
    for name, value in vectors.items():
        plain = value.detach().cpu().to(torch.float64).numpy()
        # One noise vector for all sums of a vector: they are multiples of each other.
        added = np.zeros(0) if noise is None else noise.vector(name, len(plain))
        for weight in sums[name]:
            weighted = float(weight(client)) * plain
            if noise is not None:
                weighted = weighted + noise.largest(weight) * added
            found[sum_name(name, weight)] = coding.encode(weighted)
    return found


def sum_names(sums: Sums) -> list[str]:
    """The names of all sums."""
    return [sum_name(name, weight) for name, weights in sums.items() for weight in weights]


def sum_name(name: str, weight: Weight) -> str:
    """The name of a sum in messages."""
    return f"{name} by {weight.__name__}"


def as_tensors(words: Mapping[str, Words]) -> dict[str, Tensor]:
    """Masked words as tensors that can be sent."""
    return {name: torch.from_numpy(value.view(np.int64)) for name, value in words.items()}


def as_words(tensors: Mapping[str, Tensor]) -> dict[str, Words]:
    """Masked words in tensors that arrived."""
    return {name: tensor.numpy().view(np.uint64) for name, tensor in tensors.items()}


def decoded(
    totals: Mapping[str, Words], sums: Sums, coding: FixedPoint, like: Tensor
) -> dict[tuple[str, str], Tensor]:
    """Decoded sums, by the names of their vectors and weights."""
    return {
        (name, weight.__name__): torch.from_numpy(coding.decode(totals[sum_name(name, weight)])).to(
            like.device
        )
        for name, weights in sums.items()
        for weight in weights
        if sum_name(name, weight) in totals
    }
