"""Data that take long to read, kept in the user's cache in a form that is read at once."""

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
"""Tensors and lists of words, by name."""


def prepared(kind: str, files: Sequence[Path], read: Callable[[], Tables]) -> Tables:
    """What `read` gives for some files; the next time, while they do not change, from the cache."""
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    digest = blake2b(repr((kind, facts)).encode(), digest_size=16).hexdigest()
    cache = (
        user_cache_path("undrift", appauthor=False) / "prepared" / f"{kind}-{digest}.safetensors"
    )
    try:
        return _load(cache)
    except (OSError, SafetensorError, ValueError):
        tables = read()
        _keep(cache, tables)
        return tables


def _load(cache: Path) -> Tables:
    with safe_open(cache, "pt") as found:
        words = json.loads(found.metadata()["words"])
        return {name: found.get_tensor(name) for name in found.keys()}, words  # noqa: SIM118


def _keep(cache: Path, tables: Tables) -> None:
    """Write the cache whole; one that cannot be written is done without."""
    tensors, words = tables
    partial = cache.with_name(f".{cache.name}.{os.getpid()}.partial")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata={"words": json.dumps(words)})
        partial.replace(cache)
    except (OSError, SafetensorError):
        partial.unlink(missing_ok=True)
