"""Checks of what a method's `finish` returned: declared names, shapes, finite values.

A wrong declaration is a bug in the method and raises; a wrong value concerns one client, whose
reply is rejected while the round continues.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.core.method import Method
from undrift.core.problem import Keep, Upload
from undrift.utils.errors import UndriftError, require


def check_declared(method: Method, finished: object, like: Tensor) -> None:
    """Raise unless `finish` returned an `Upload` and a `Keep` with the names it declares.

    `like` is the client's model, `[P]`, or `[C, P]` for several clients.
    """
    pair = finished if isinstance(finished, tuple) and len(finished) == 2 else (None, None)
    upload, keep = pair
    if not isinstance(upload, Upload) or not isinstance(keep, Keep):
        raise UndriftError(
            f"{method.name}'s finish must return an Upload and a Keep (Keep() for nothing), not "
            f"{finished!r}."
        )
    if like.ndim == 2:  # stacked: all clients have the same names and shapes
        upload, keep = upload.row(0), keep.row(0)
    # A method may return `mine.replace(…)`: then the library's own states, "@…", come along.
    kept = {name for name, _ in keep.items() if not name.startswith("@")}
    declared = set(method.kept())
    require(
        kept == declared,
        f"{method.name} declares that clients keep {_names(declared)}, but finish returned "
        f"{_names(kept)}.",
    )
    for name, value in upload.items():
        require(
            name in method.uploads or torch.as_tensor(value).numel() == 1 or like.shape[-1] == 1,
            f"{method.name} uploads the vector {name!r}, but its uploads do not declare how the "
            f"server sums it: uploads = {{{name!r}: ud.q}}, for example.",
        )


def well_shaped(method: Method, upload: Upload, like: Tensor) -> bool:
    """Whether every declared vector has the shape of the model, `[P]` or `[C, P]`."""
    return all(
        torch.as_tensor(value).shape == like.shape
        for name, value in upload.items()
        if name in method.uploads
    )


def fault(method: Method, upload: Upload, keep: Keep, like: Tensor) -> str | None:
    """The reason to reject one client's upload and state, or None; `like` is its model."""
    for name, value in upload.items():
        shape = torch.as_tensor(value).shape
        if name in method.uploads and shape != like.shape:
            return f"{name} has shape {list(shape)} instead of {list(like.shape)}"
    for values in (upload, keep):
        for name, value in values.items():
            value = torch.as_tensor(value)
            if not bool(torch.isfinite(value).all()):
                return f"{name} is not finite (NaN or Inf)"
    return None


def buffer_fault(buffers: Mapping[str, Tensor]) -> str | None:
    """The reason to reject the buffers of a client's model, or None."""
    for name, value in buffers.items():
        if not bool(torch.isfinite(value).all()):
            return f"buffer {name} is not finite (NaN or Inf)"
    return None


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
