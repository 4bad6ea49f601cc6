"""A fingerprint of federated data, by which a resumed run checks that its data are the same."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from undrift.data.federated import FederatedData


def fingerprint(data: FederatedData) -> str:
    """A 128-bit hash, in hexadecimal digits, of every sample, its client and the augmentations."""
    found = blake2b(repr((data.ids, data.augmentations)).encode(), digest_size=16)
    for name, part in data.parts().items():
        found.update(name.encode())
        for values in (part.x, part.y, part.rows, part.bounds):
            if values is not None:
                found.update(repr((values.shape, values.stride(), values.dtype)).encode())
                found.update(_bytes(values))
    return found.hexdigest()


def _bytes(values: Tensor) -> Any:
    """The bytes of a tensor's storage, without a copy.

    Overlapping windows on one text, which are views, are hashed as that text once.
    """
    whole = torch.empty(0, dtype=torch.uint8).set_(values.cpu().untyped_storage())  # type: ignore[call-overload]
    return whole.numpy()
