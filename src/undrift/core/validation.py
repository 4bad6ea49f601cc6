"""Checks of what a method's `finish` returned: declared names, shapes, finite values."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.core.messages import LAST
from undrift.core.method import Method
from undrift.core.problem import Keep, Upload
from undrift.utils.errors import UndriftError, require


def check_declared(method: Method, finished: object, like: Tensor) -> None:
    """Refuse a method that uploads or keeps something else than it declares."""
    pair = finished if isinstance(finished, tuple) and len(finished) == 2 else (None, None)
    upload, keep = pair
    if not isinstance(upload, Upload) or not isinstance(keep, Keep):
        raise UndriftError(
            f"{method.name}'s finish must return an Upload and a Keep (Keep() for nothing), not "
            f"{finished!r}."
        )
    kept, declared = {name for name, _ in keep.items()} - {LAST}, set(method.kept())
    require(
        kept == declared,
        f"{method.name} declares that clients keep {_names(declared)}, but finish returned "
        f"{_names(kept)}.",
    )
    for name, value in upload.items():
        require(
            name in method.uploads or torch.as_tensor(value).numel() == 1 or like.numel() == 1,
            f"{method.name} uploads the vector {name!r}, but does not declare in its uploads how "
            f"the server adds it up.",
        )


def fault(method: Method, upload: Upload, keep: Keep, like: Tensor) -> str | None:
    """What is wrong with a client's reply, or None."""
    for values in (upload, keep):
        for name, value in values.items():
            value = torch.as_tensor(value)
            if name in method.uploads and values is upload and value.shape != like.shape:
                return f"{name} has shape {list(value.shape)} instead of {list(like.shape)}"
            if not bool(torch.isfinite(value).all()):
                return f"{name} is not finite (NaN or Inf)"
    return None


def fault_of_buffers(buffers: Mapping[str, Tensor]) -> str | None:
    """What is wrong with the statistics of a client's model, or None."""
    for name, value in buffers.items():
        if not bool(torch.isfinite(value).all()):
            return f"buffer {name} is not finite (NaN or Inf)"
    return None


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
