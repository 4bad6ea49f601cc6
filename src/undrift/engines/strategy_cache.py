"""Remembers in the user's cache folder which strategy `TunedEngine` chose, and how noisily.

Strategies differ in the last bits of their results, and the choice depends on measured times. A
choice that was timed on a quiet machine holds from then on, so that the same experiment gives the
same bits again on that machine; one that was timed on a busy machine is made again.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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

NOISY = 0.1
"""Times that differ by more than this share of themselves do not tell which strategy is best."""


@dataclass(frozen=True)
class Choice:
    """A strategy that was chosen by timing.

    `noise` is how much repeated times differed, relative to the shortest; `seconds` are the
    shortest times of each strategy, per step of a client.
    """

    strategy: Strategy
    noise: float
    seconds: Mapping[Strategy, float] = field(default_factory=dict)

    def holds(self, candidates: Collection[Strategy]) -> bool:
        """Whether it need not be timed again."""
        return self.strategy in candidates and self.noise <= NOISY

    def with_earlier(self, earlier: Choice) -> Choice:
        """The choice from the shortest times of both timings.

        Other processes only make times longer, so the shortest ones are the most precise.
        """
        both = {
            each: min(seconds, earlier.seconds.get(each, seconds))
            for each, seconds in self.seconds.items()
        }
        if not both:
            return self
        return Choice(min(both, key=lambda each: both[each]), self.noise, both)

    def as_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can store."""
        times = [{**each.as_dict(), "seconds": s} for each, s in self.seconds.items()]
        return {**self.strategy.as_dict(), "noise": self.noise, "times": times}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Choice:
        """The choice that `as_dict` described."""
        times = {Strategy.from_dict(each): float(each["seconds"]) for each in found["times"]}
        return Choice(Strategy.from_dict(found), float(found["noise"]), times)


_known: dict[str, Choice] = {}
"""The choices this process made: they hold for all its runs, also on machines whose cache folder
cannot be written."""


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


def lookup(name: str, candidates: Collection[Strategy]) -> Choice | None:
    """The choice that was made before, if it holds."""
    known = _known.get(name)
    if known is not None and known.strategy in candidates:
        return known  # even if it was noisy: all runs of a process use the same strategy
    stored = _read(name)
    return stored if stored is not None and stored.holds(candidates) else None


def store(name: str, choice: Choice, candidates: Collection[Strategy]) -> Choice:
    """Store a choice and return the one that holds.

    If another process stored one first that was not noisy, that one holds: both processes then
    compute the same bits. A noisy one is replaced, with the shortest times of both.
    """
    file, earlier = _file(name), _read(name)
    if earlier is not None and not earlier.holds(candidates):
        choice = choice.with_earlier(earlier)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=file.parent, encoding="utf-8", delete=False) as partial:
            json.dump(choice.as_dict(), partial)
        try:
            os.link(partial.name, file)  # unlike a rename, a link never replaces a file
        except FileExistsError:
            earlier = _read(name)
            if earlier is not None and earlier.holds(candidates):
                choice = earlier
            else:
                os.replace(partial.name, file)
        finally:
            Path(partial.name).unlink(missing_ok=True)
    except OSError:
        pass  # a cache that cannot be written must not stop a run
    _known[name] = choice
    return choice


def _read(name: str) -> Choice | None:
    try:
        return Choice.from_dict(json.loads(_file(name).read_text("utf-8")))
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
