"""Which engine computes the clients' work, and what it may use."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undrift.engines.auto import AutoEngine
from undrift.engines.base import Engine, Job
from undrift.engines.serial import SerialEngine
from undrift.engines.strategies import candidates
from undrift.errors import require_choice, require_range, require_type, require_whole
from undrift.losses import Losses

ENGINES = {
    "auto": "the fastest way, timed on the first round's work and remembered",
    "vectorised": "many clients at once, by a fixed rule",
    "serial": "one client after another",
}
"""Every engine by name, with what it does."""


@dataclass(frozen=True)
class EngineOptions:
    """Which engine computes the clients' work, and what it may use.

    Parameters
    ----------
    name
        "auto", "vectorised" or "serial"
    threads
        how many threads it may use; None: as many as torch does
    chunk
        how many clients work at once; None: what suits the model
    memory
        the most megabytes for models at work, which bounds the chunk
    """

    name: str = "auto"
    threads: int | None = None
    chunk: int | None = None
    memory: float = 1000

    def __post_init__(self) -> None:
        require_choice("engine", self.name, ENGINES)
        if self.threads is not None:
            require_whole("The engine's threads", self.threads, at_least=1)
        if self.chunk is not None:
            require_whole("The engine's chunk", self.chunk, at_least=1)
        require_range("The engine's memory", self.memory, above=0)

    def __call__(self, losses: Losses, job: Job) -> Engine:
        """Make the engine."""
        threads = self.threads or torch.get_num_threads()
        if self.name == "auto":
            return AutoEngine(losses, job, threads, self.memory, self.chunk)
        if self.name == "serial":
            return SerialEngine(losses, job)
        found = candidates(losses, len(job.roster), threads, self.memory, self.chunk)
        engine = found.strategies[0].engine(losses, job)
        if found.reason:
            engine.strategy = f"{engine.strategy} ({found.reason})"
        return engine


def engine_options(engine: str | EngineOptions) -> EngineOptions:
    """The options of an engine that is given by its name."""
    if isinstance(engine, str):
        return EngineOptions(engine)
    require_type("engine", engine, EngineOptions, "a name or ud.EngineOptions(…)")
    return engine
