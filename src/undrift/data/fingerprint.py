"""A fingerprint of federated data, by which a resumed run checks that its data are the same."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.data.samples.structure import tensors_of

READ_SAMPLES = 16
"""Samples that are read from lazy data: reading all of them could take hours."""


def fingerprint(data: FederatedData) -> str:
    """A 128-bit hash, in hexadecimal digits, of every sample, its client and the augmentations.

    Of samples that are read when they are needed, a few are read.
    """
    found = blake2b(repr((data.ids, data.augmentations)).encode(), digest_size=16)
    for name, part in data.parts().items():
        found.update(name.encode())
        for values in (*_tensors(part), part.rows, part.bounds):
            if values is not None:
                found.update(repr((values.shape, values.stride(), values.dtype)).encode())
                found.update(_bytes(values))
    return found.hexdigest()


def _tensors(part: Part) -> Iterator[Tensor]:
    """The tensors of all samples; of samples that are read when needed, those of a few."""
    if part.lazy is None:
        yield from tensors_of(part.x)
    else:
        last = len(part) - 1
        spread = torch.linspace(0, last, min(len(part), READ_SAMPLES)).long().clamp(max=last)
        for row in part.rows[spread].tolist():
            yield from tensors_of(part.lazy.samples([row]))
        yield torch.frombuffer(bytearray(repr(part.lazy).encode()), dtype=torch.uint8)
    yield from tensors_of(part.y)


def _bytes(values: Tensor) -> Any:
    """The bytes of a tensor's storage, without a copy.

    Overlapping windows on one text, which are views, are hashed as that text once.
    """
    whole = torch.empty(0, dtype=torch.uint8).set_(values.cpu().untyped_storage())  # type: ignore[call-overload]
    return whole.numpy()
