"""Remembers in the user's cache folder which strategy `AutoEngine` chose.

Strategies differ in the last bits of their results, and the choice depends on measured times.
Since it is made once, the same experiment gives the same bits again on the same machine.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Collection
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from platformdirs import user_cache_path
from torch import Tensor

from undrift.data.part import Part
from undrift.data.samples.structure import named_tensors
from undrift.engines.strategies import Strategy
from undrift.local.solvers import SGD, Local
from undrift.nets.module_losses import ModuleLosses

_known: dict[str, Strategy] = {}
"""The choices this process knows, for machines whose cache folder cannot be written."""


def cache_key(losses: ModuleLosses, local: Local, clients: int, options: Any) -> str:
    """A name that depends on the machine, the model and all shapes, and on nothing else."""
    solver = local.of(losses.ids[0])
    part = losses.train_part
    facts = (
        _machine(),
        _device_name(losses.device),
        re.sub(" at 0x[0-9a-f]+", "", repr(losses.flat.module)),
        [list(shape) for shape in losses.flat.shapes],
        # Frozen parameters and parts in evaluation mode do not show in the module's repr.
        (losses.flat.names, sorted(losses.changing_buffers)),
        str(losses.flat.x.dtype),
        getattr(losses.criterion.loss, "__qualname__", "loss"),
        _shapes(part),
        (solver.batch_size, solver.momentum > 0, solver.clip is not None)
        if isinstance(solver, SGD)
        else (type(solver).__name__, getattr(solver, "batch_size", None)),
        clients,
        options,
    )
    return blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def _shapes(part: Part) -> Any:
    """The shapes of a sample; of samples that are read when needed, what reads them."""
    if part.lazy is not None:
        return repr(part.lazy), part.lazy.workers
    if isinstance(part.x, Tensor) and isinstance(part.y, Tensor):
        return list(part.x.shape[1:]), str(part.x.dtype), list(part.y.shape[1:])
    each = [*named_tensors(part.x), *named_tensors(part.y)]
    return [(name, list(tensor.shape[1:]), str(tensor.dtype)) for name, tensor in each]


def lookup(name: str) -> Strategy | None:
    """The strategy that was chosen before, or None."""
    found = _known.get(name) or _read(name)
    if found is not None:
        _known[name] = found
    return found


def store(name: str, strategy: Strategy, candidates: Collection[Strategy]) -> Strategy:
    """Store a choice and return the one that holds.

    If another process stored one first, that one holds: both processes then compute the same
    bits. A stored choice that is damaged, or not among the candidates, is replaced.
    """
    file = _file(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as partial:
            json.dump(strategy.as_dict(), partial)
        try:
            os.link(partial.name, file)  # unlike a rename, a link never replaces a file
        except FileExistsError:
            earlier = _read(name)
            if earlier is not None and earlier in candidates:
                strategy = earlier
            else:
                os.replace(partial.name, file)
        finally:
            Path(partial.name).unlink(missing_ok=True)
    except OSError:
        pass  # a cache that cannot be written must not stop a run
    _known[name] = strategy
    return strategy


def _read(name: str) -> Strategy | None:
    try:
        return Strategy.from_dict(json.loads(_file(name).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _file(name: str) -> Path:
    return user_cache_path("undrift", appauthor=False) / "strategies" / f"{name}.json"


def _device_name(device: torch.device) -> str:
    """The GPU's model name, since speeds differ between models, or the device's type."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def _machine() -> tuple[str, ...]:
    """The processor, and the version of torch that computes on it."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return platform.machine(), model, str(os.cpu_count()), torch.__version__
