"""Which strategy was chosen for what, remembered in the user's cache.

Strategies differ in the last bits of what they compute. Whoever runs the same experiment again on
the same machine gets the same bits, since the choice is made once.
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

from undrift.engines.strategies import Strategy, described
from undrift.local.solvers import SGD, Local
from undrift.nets.modules import ModuleLosses

_known: dict[str, Strategy] = {}
"""Those of this process, for machines on which nothing can be written."""


def question(losses: ModuleLosses, local: Local, clients: int, options: Any) -> str:
    """A name for machine, model and shapes: the same question has the same answer."""
    solver = local.of(losses.ids[0])
    part = losses.train_part
    facts = (
        _machine(),
        described(losses.device),
        re.sub(" at 0x[0-9a-f]+", "", repr(losses.flat.module)),
        [list(shape) for shape in losses.flat.shapes],
        (losses.flat.names, sorted(losses.moving)),  # what is frozen or rests is not in its repr
        str(losses.flat.x.dtype),
        getattr(losses.task.loss, "__qualname__", "loss"),
        (list(part.x.shape[1:]), str(part.x.dtype), list(part.y.shape[1:])),
        (solver.batch_size, solver.momentum > 0, solver.clip is not None)
        if isinstance(solver, SGD)
        else type(solver).__name__,
        clients,
        options,
    )
    return blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def recall(name: str) -> Strategy | None:
    """What was chosen before, or None."""
    found = _known.get(name) or _read(name)
    if found is not None:
        _known[name] = found
    return found


def remember(name: str, strategy: Strategy, candidates: Collection[Strategy]) -> Strategy:
    """Write a choice down; gives the one that holds, if another process was faster.

    What is there already, but is damaged or none of the candidates, is written anew.
    """
    file = _file(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as partial:
            json.dump(strategy.as_dict(), partial)
        try:
            os.link(partial.name, file)  # unlike a move, this does not replace what is there
        except FileExistsError:
            earlier = _read(name)
            if earlier is not None and earlier in candidates:
                strategy = earlier
            else:
                os.replace(partial.name, file)
        finally:
            Path(partial.name).unlink(missing_ok=True)
    except OSError:
        pass  # a cache that cannot be written is no reason to stop
    _known[name] = strategy
    return strategy


def _read(name: str) -> Strategy | None:
    try:
        return Strategy.from_dict(json.loads(_file(name).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _file(name: str) -> Path:
    return user_cache_path("undrift", appauthor=False) / "strategies" / f"{name}.json"


@cache
def _machine() -> tuple[str, ...]:
    """The processor and the libraries that compute on it."""
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return platform.machine(), model, str(os.cpu_count()), torch.__version__
