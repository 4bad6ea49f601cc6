"""Tensors of client states in files, for rounds whose new states do not fit into memory.

The states of a round are committed at its end, all at once. Until then, large ones wait in files
of the run folder that are mapped into memory: the system writes their pages out when it needs
memory.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from undrift.core.problem import Keep

LEAST_BYTES = 1 << 20
"""Smaller tensors stay in memory: a file takes pages of memory, too."""


def in_files(keep: Keep, folder: Path) -> Keep:
    """A state with its large tensors mapped to files, which are gone once nobody uses them."""
    return Keep(**{name: _in_file(value, folder) for name, value in keep.items()})


def _in_file(value: Tensor | float, folder: Path) -> Tensor | float:
    if not isinstance(value, Tensor) or value.numel() * value.element_size() < LEAST_BYTES:
        return value
    found = empty_in_file(value, folder)
    return value if found is None else found.copy_(value)


def empty_in_file(like: Tensor, folder: Path) -> Tensor | None:
    """An uninitialised tensor like another one, mapped to a file; None where that cannot be."""
    # Only POSIX systems keep a file that is mapped when its name is removed.
    if like.device.type != "cpu" or os.name != "posix":
        return None
    handle, path = tempfile.mkstemp(prefix=".state-", dir=folder)
    os.close(handle)
    try:
        found = torch.from_file(path, shared=True, size=like.numel(), dtype=like.dtype)
    finally:
        # The mapping keeps the contents, also if this process is killed: nothing is left behind.
        os.unlink(path)
    # Not a view: `ClientStates.put` would copy one into memory.
    whole = torch.empty(0, dtype=like.dtype)
    stride = torch.empty(like.shape, device="meta").stride()
    return whole.set_(found.untyped_storage(), 0, like.shape, stride)
