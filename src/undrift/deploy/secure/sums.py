"""Weighted uploads as words, and the sums that are decoded from them.

A site multiplies each vector by its weight in every sum that the method declares, so that the
server needs nothing but the sums. Both sides name a sum by its vector and its weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from undrift.compression.wire import UploadCoder
from undrift.core.problem import Client, Upload
from undrift.core.replies import Weight
from undrift.deploy.orders import split
from undrift.deploy.secure.site_noise import NoiseShare
from undrift.deploy.wire_format import TensorSpec
from undrift.privacy.secure.fixed_point import WORD_TYPES, FixedPoint, Words
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
    round: int,
    noise: NoiseShare | None = None,
    coder: UploadCoder | None = None,
) -> dict[str, Words]:
    """The weighted vectors of an upload, with the site's noise, encoded, by their sums' names.

    `coder` leaves of compressed vectors what travels of them in this round.
    """
    _, vectors = split(upload)
    found = {}
    for name, value in vectors.items():
        if coder is not None and name in coder.names:
            value = coder.added_values(name, value, round)
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


SENT_TYPES = {16: torch.int16, 24: torch.uint8, 32: torch.int32, 64: torch.int64}
"""The types of masked words in messages; a word of 24 bits is three bytes, the lowest first."""


def words_spec(coding: FixedPoint, words: int) -> TensorSpec:
    """The type and shape of the tensor in which so many words are sent."""
    shape = (words, coding.word_bytes) if coding.word_bits == 24 else (words,)
    return TensorSpec(SENT_TYPES[coding.word_bits], shape)


def as_tensors(words: Mapping[str, Words], coding: FixedPoint) -> dict[str, Tensor]:
    """Masked words as tensors that can be sent."""
    if coding.word_bits == 24:
        return {
            name: torch.from_numpy(value.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].copy())
            for name, value in words.items()
        }
    kind = f"i{coding.word_bytes}"
    return {name: torch.from_numpy(value.view(kind)) for name, value in words.items()}


def as_words(tensors: Mapping[str, Tensor], coding: FixedPoint) -> dict[str, Words]:
    """Masked words in tensors that arrived."""
    kind = WORD_TYPES[coding.word_bits]
    if coding.word_bits != 24:
        return {name: tensor.numpy().view(kind) for name, tensor in tensors.items()}
    found: dict[str, Words] = {}
    for name, tensor in tensors.items():
        whole = np.zeros((len(tensor), 4), dtype=np.uint8)
        whole[:, :3] = tensor.numpy()
        found[name] = whole.reshape(-1).view("<u4").astype(kind)
    return found


def decoded(
    totals: Mapping[str, Words],
    sums: Sums,
    coding: FixedPoint,
    like: Tensor,
    round: int,
    coder: UploadCoder | None = None,
) -> dict[tuple[str, str], Tensor]:
    """Decoded sums of the size of `like`, by the names of their vectors and weights."""
    found = {}
    for name, weights in sums.items():
        for weight in weights:
            if sum_name(name, weight) in totals:
                values = torch.from_numpy(coding.decode(totals[sum_name(name, weight)]))
                if coder is not None and name in coder.names:
                    values = coder.added_vector(name, values, len(like), round)
                found[name, weight.__name__] = values.to(like.device)
    return found
