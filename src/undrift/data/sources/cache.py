"""A cache of parsed data files in the user's cache folder, for formats that are slow to read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

from platformdirs import user_cache_path
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

Tables = tuple[dict[str, Tensor], dict[str, list[str]]]
"""Tensors by name, and lists of strings by name."""


def cached(kind: str, files: Sequence[Path], read: Callable[[], Tables]) -> Tables:
    """The result of `read`, from the cache if these files were read before and did not change.

    Parameters
    ----------
    kind
        the name of the data set
    files
        the files that `read` reads; a change of path, size or time of one means a new entry
    read
        reads the files
    """
    versions = [
        (str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files
    ]
    digest = blake2b(repr((kind, versions)).encode(), digest_size=16).hexdigest()
    folder = user_cache_path("undrift", appauthor=False) / "prepared"
    entry = folder / f"{kind}-{digest}.safetensors"
    try:
        return _load(entry)
    except (OSError, SafetensorError, ValueError):
        tables = read()
        _store(entry, tables)
        return tables


def _load(entry: Path) -> Tables:
    with safe_open(entry, "pt") as stored:
        words = json.loads(stored.metadata()["words"])
        return {name: stored.get_tensor(name) for name in stored.keys()}, words  # noqa: SIM118


def _store(entry: Path, tables: Tables) -> None:
    """Write a cache entry atomically; do nothing if the cache cannot be written."""
    tensors, words = tables
    partial = entry.with_name(f".{entry.name}.{os.getpid()}.partial")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata={"words": json.dumps(words)})
        partial.replace(entry)
    except (OSError, SafetensorError):
        partial.unlink(missing_ok=True)
